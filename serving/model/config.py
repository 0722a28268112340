"""The shape of a DeepSeek-V3 model, read from a Hugging Face `config.json` and checked before loading.

Only what the architecture needs is kept; what we do not implement (quantised weights, attention biases,
another router) is refused by name, never ignored. Source of the fields: the published DeepSeek-V3
configuration.
"""

import json
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from emulator.errors import UsageError

__all__ = ["PRESETS", "ModelConfig", "YarnConfig", "preset_config"]

# Keys whose only supported value is given here; an absent key means that value.
_ONLY_SUPPORTED: dict[str, Any] = {
    "attention_bias": False,
    "hidden_act": "silu",
    "moe_layer_freq": 1,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "quantization_config": None,
}
_MODEL_TYPES = ("deepseek_v3",)


class YarnConfig(BaseModel):
    """YaRN context extension (Peng et al. 2023, with DeepSeek's `mscale`); lengths in tokens."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    factor: float = Field(ge=1)
    original_max_position_embeddings: int = Field(gt=0)
    beta_fast: float = Field(default=32.0, gt=0)
    beta_slow: float = Field(default=1.0, gt=0)
    mscale: float | None = None
    mscale_all_dim: float | None = None
    attention_factor: float | None = None
    truncate: bool = True


class ModelConfig(BaseModel):
    """A DeepSeek-V3 architecture: names as in the Hugging Face configuration; sizes in elements."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    vocab_size: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    moe_intermediate_size: int = Field(gt=0)
    num_hidden_layers: int = Field(gt=0)
    first_k_dense_replace: int = Field(ge=0)
    num_attention_heads: int = Field(gt=0)
    q_lora_rank: int | None = Field(default=None, gt=0)
    kv_lora_rank: int = Field(gt=0)
    qk_nope_head_dim: int = Field(gt=0)
    qk_rope_head_dim: int = Field(gt=0, multiple_of=2)
    v_head_dim: int = Field(gt=0)
    n_routed_experts: int = Field(gt=0)
    n_shared_experts: int = Field(gt=0)
    num_experts_per_tok: int = Field(gt=0)
    n_group: int = Field(gt=0)
    topk_group: int = Field(gt=0)
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.0
    max_position_embeddings: int = Field(gt=0)
    rms_norm_eps: float = Field(default=1e-6, gt=0)
    rope_theta: float = Field(default=10000.0, gt=0)
    rope_interleave: bool = True
    yarn: YarnConfig | None = None
    tie_word_embeddings: bool = False
    eos_token_id: int | None = None
    vocab_sections: int = Field(default=1, gt=0)
    """Of a made model whose hot experts drift (`serving.model.drift`); no key of published models."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        per_group, rest = divmod(self.n_routed_experts, self.n_group)
        if rest or per_group < 2:
            raise ValueError(
                f"n_routed_experts={self.n_routed_experts} does not split into n_group={self.n_group} "
                "equal groups of at least two"
            )
        if self.topk_group > self.n_group:
            raise ValueError(f"topk_group={self.topk_group} exceeds n_group={self.n_group}")
        if self.num_experts_per_tok > self.topk_group * per_group:
            raise ValueError(
                f"num_experts_per_tok={self.num_experts_per_tok} exceeds the {self.topk_group * per_group} "
                "experts of the chosen groups"
            )
        return self

    @property
    def num_moe_layers(self) -> int:
        """Layers with routed experts: all after the first `first_k_dense_replace`."""
        return max(0, self.num_hidden_layers - self.first_k_dense_replace)

    def is_moe(self, layer: int) -> bool:
        """Whether layer `layer` (from 0) has routed experts."""
        return layer >= self.first_k_dense_replace

    @classmethod
    def from_hf(cls, directory: str | Path) -> "ModelConfig":
        """Read `directory/config.json`.

        Raises:
            UsageError: no such file, not JSON, a field missing or out of range, or a feature we do not
                implement.
        """
        path = Path(directory) / "config.json"
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UsageError(f"{path}: cannot read the model configuration: {error.strerror}") from None
        except ValueError as error:
            raise UsageError(f"{path}: not JSON: {error}") from None
        if not isinstance(raw, dict):
            raise UsageError(f"{path}: expected a JSON object")
        return cls.from_dict(raw, source=str(path))

    @classmethod
    def from_dict(cls, raw: dict[str, Any], source: str = "configuration") -> "ModelConfig":
        """Check a Hugging Face configuration given as a dictionary; `source` names it in errors.

        Raises:
            UsageError: as for `from_hf`.
        """
        _refuse_unsupported(raw, source)
        fields = dict(raw)
        rope = _rope_settings(raw, source)
        fields["rope_theta"] = float(rope.get("rope_theta", raw.get("rope_theta", 10000.0)))
        fields["yarn"] = rope if rope.get("rope_type") == "yarn" else None
        if isinstance(fields.get("eos_token_id"), list):
            fields["eos_token_id"] = fields["eos_token_id"][0]
        try:
            if fields["yarn"] is not None:
                fields["yarn"] = YarnConfig.model_validate(_without_none(fields["yarn"]))
            return cls.model_validate(fields)
        except ValidationError as error:
            raise UsageError(f"{source}: {_first_problem(error)}") from None

    def to_hf(self) -> dict[str, Any]:
        """The Hugging Face `config.json` content for this model, float32."""
        fields = self.model_dump(
            exclude={"yarn"} | ({"vocab_sections"} if self.vocab_sections == 1 else set())
        )
        yarn = None if self.yarn is None else {"type": "yarn", **_without_none(self.yarn.model_dump())}
        return {
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "deepseek_v3",
            **fields,
            "num_key_value_heads": self.num_attention_heads,
            "num_nextn_predict_layers": 0,
            "rope_scaling": yarn,
            "hidden_act": "silu",
            "scoring_func": "sigmoid",
            "topk_method": "noaux_tc",
            "attention_bias": False,
            "torch_dtype": "float32",
        }


def _refuse_unsupported(raw: dict[str, Any], source: str) -> None:
    if raw.get("model_type") not in _MODEL_TYPES:
        raise UsageError(
            f"{source}: model_type {raw.get('model_type')!r} is not supported; use 'deepseek_v3'"
        )
    for key, supported in _ONLY_SUPPORTED.items():
        if raw.get(key, supported) != supported:
            raise UsageError(f"{source}: {key}={raw[key]!r} is not supported; only {supported!r} is")
    heads = raw.get("num_attention_heads")
    if raw.get("num_key_value_heads") not in (None, heads):
        raise UsageError(
            f"{source}: num_key_value_heads={raw['num_key_value_heads']} "
            f"must equal num_attention_heads={heads}"
        )


def _rope_settings(raw: dict[str, Any], source: str) -> dict[str, Any]:
    """Both `rope_parameters` (transformers 5) and `rope_scaling` beside `rope_theta`."""
    rope = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    kind = rope.setdefault("rope_type", rope.get("type", "default"))
    if kind not in ("default", "yarn"):
        raise UsageError(f"{source}: rope_type {kind!r} is not supported; use 'default' or 'yarn'")
    if kind == "yarn":
        original = rope.get("original_max_position_embeddings")
        if rope.get("factor") is None and original:
            rope["factor"] = raw.get("max_position_embeddings", 0) / original
        for key in ("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor"):
            if isinstance(rope.get(key), int) and not isinstance(rope.get(key), bool):
                rope[key] = float(rope[key])
    return rope


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    given = "" if problem["type"] == "missing" or not where else f" (given {problem['input']!r})"
    return f"{where}: {message}{given}" if where else message


_MINI = ModelConfig(
    vocab_size=512,
    hidden_size=128,
    intermediate_size=256,
    moe_intermediate_size=32,
    num_hidden_layers=8,
    first_k_dense_replace=3,
    num_attention_heads=4,
    q_lora_rank=64,
    kv_lora_rank=32,
    qk_nope_head_dim=16,
    qk_rope_head_dim=16,
    v_head_dim=16,
    n_routed_experts=256,
    n_shared_experts=1,
    num_experts_per_tok=8,
    n_group=8,
    topk_group=4,
    routed_scaling_factor=2.5,
    max_position_embeddings=16384,
    yarn=YarnConfig(factor=4.0, original_max_position_embeddings=4096, mscale=1.0, mscale_all_dim=1.0),
)

PRESETS: dict[str, ModelConfig] = {
    # The routing shape of DeepSeek-R1: 8 of 256 experts from 4 of 8 groups, 1 shared; hidden size 128.
    "mini": _MINI,
    # For fast tests: 16 experts, 2 of them from 2 of 4 groups.
    "tiny": _MINI.model_copy(
        update={
            "vocab_size": 64,
            "hidden_size": 32,
            "intermediate_size": 64,
            "moe_intermediate_size": 16,
            "num_hidden_layers": 3,
            "first_k_dense_replace": 1,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 8,
            "v_head_dim": 8,
            "n_routed_experts": 16,
            "num_experts_per_tok": 2,
            "n_group": 4,
            "topk_group": 2,
        }
    ),
}


def preset_config(name: str) -> ModelConfig:
    """The configuration of a preset.

    Raises:
        UsageError: no preset of that name.
    """
    if name not in PRESETS:
        raise UsageError(f"unknown model preset {name!r}; choose from {', '.join(sorted(PRESETS))}")
    return PRESETS[name]
