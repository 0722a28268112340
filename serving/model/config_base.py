"""What every model has, whatever its architecture, read from a Hugging Face `config.json` and checked.

An architecture is a subclass with the `model_type` of its configurations (`config_deepseek`, `config_qwen`).
Only what it needs is kept; what we do not implement (attention biases, another router) is refused by name,
never ignored.
"""

import json
from abc import abstractmethod
from collections.abc import Set
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from emulator.errors import UsageError
from serving.model.fp8 import block_of

__all__ = ["ModelConfig", "YarnConfig", "without_none"]


_ALIASES = {"kimi_k2": "deepseek_v3"}
"""Types of published models that have another's architecture (Kimi-K2 names DeepseekV3ForCausalLM)."""


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
    """What serving needs of a model; names as in the Hugging Face configuration of DeepSeek-V3, sizes in
    elements. A model without groups has one; one without shared experts has 0 of them."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    model_type: ClassVar[str] = ""
    only_supported: ClassVar[dict[str, Any]] = {}
    """Keys whose only supported value is given here; an absent key means that value."""
    router_score: ClassVar[Literal["sigmoid", "softmax"]] = "sigmoid"
    router_has_bias: ClassVar[bool] = True
    """Whether a correction bias steers the choice of experts."""

    vocab_size: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    moe_intermediate_size: int = Field(gt=0)
    num_hidden_layers: int = Field(gt=0)
    first_k_dense_replace: int = Field(default=0, ge=0)
    num_attention_heads: int = Field(gt=0)
    n_routed_experts: int = Field(gt=0)
    n_shared_experts: int = Field(default=0, ge=0)
    num_experts_per_tok: int = Field(gt=0)
    n_group: int = Field(default=1, gt=0)
    topk_group: int = Field(default=1, gt=0)
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.0
    max_position_embeddings: int = Field(gt=0)
    rms_norm_eps: float = Field(default=1e-6, gt=0)
    rope_theta: float = Field(default=10000.0, gt=0)
    rope_interleave: bool = True
    yarn: YarnConfig | None = None
    tie_word_embeddings: bool = False
    eos_token_id: int | None = None
    quantization: Literal["int8"] | None = Field(default=None, exclude=True)
    """How this process computes it; no property of the checkpoint."""
    mtp_layers: int = Field(default=0, ge=0, exclude=True)
    """Draft layers this process computes (`mtp.py`), of the checkpoint's `num_nextn_predict_layers`."""
    weight_block: tuple[int, int] | None = Field(default=None, exclude=True)
    """Of the scales, where weights are stored in 8-bit floats (`fp8.py`)."""
    num_nextn_predict_layers: int = Field(default=0, ge=0)
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
    def kv_layers(self) -> int:
        """Layers that keep a cache: the main ones and the draft layers that are computed."""
        return self.num_hidden_layers + self.mtp_layers

    @property
    @abstractmethod
    def rotary_dim(self) -> int:
        """Values of a head that are rotated."""

    @property
    @abstractmethod
    def query_dim(self) -> int:
        """Values of a query and a key of one head; what scores are scaled by."""

    @property
    @abstractmethod
    def kv_width(self) -> int:
        """float32 values a token leaves in the cache of one layer."""

    @abstractmethod
    def to_hf(self) -> dict[str, Any]:
        """The Hugging Face `config.json` content for this model, float32."""

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
        family = _family(raw, source)
        for key, supported in family.only_supported.items():
            if raw.get(key, supported) != supported:
                raise UsageError(f"{source}: {key}={raw[key]!r} is not supported; only {supported!r} is")
        stored = raw.get("quantization_config")
        if stored is not None and block_of(stored) is None:
            raise UsageError(f"{source}: {_stored_as(stored)}")
        fields = {**raw, **family.translated(raw, source), "weight_block": block_of(stored)}
        rope = _rope_settings(raw, source)
        fields["rope_theta"] = float(rope.get("rope_theta", raw.get("rope_theta", 10000.0)))
        fields["yarn"] = rope if rope.get("rope_type") == "yarn" else None
        if isinstance(fields.get("eos_token_id"), list):
            fields["eos_token_id"] = fields["eos_token_id"][0]
        try:
            if fields["yarn"] is not None:
                fields["yarn"] = YarnConfig.model_validate(without_none(fields["yarn"]))
            return family.model_validate(fields)
        except ValidationError as error:
            raise UsageError(f"{source}: {_first_problem(error)}") from None

    @classmethod
    def translated(cls, raw: dict[str, Any], source: str) -> dict[str, Any]:
        """Fields that this architecture's configuration spells otherwise, under our names.

        Raises:
            UsageError: a feature we do not implement.
        """
        return {}

    def hf_fields(self, exclude: Set[str] = frozenset()) -> dict[str, Any]:
        """The fields that `config.json` spells as we do, but these."""
        made = {"vocab_sections"} if self.vocab_sections == 1 else set()
        return self.model_dump(exclude={"yarn", *made, *exclude})

    def hf_rope(self) -> dict[str, Any] | None:
        """The `rope_scaling` of `config.json`."""
        return None if self.yarn is None else {"type": "yarn", **without_none(self.yarn.model_dump())}


def _stored_as(quantization: Any) -> str:
    """Why weights of this `quantization_config` are not read."""
    settings = quantization if isinstance(quantization, dict) else {}
    method, block = settings.get("quant_method"), settings.get("weight_block_size")
    kind = settings.get("fmt")
    more = "".join((f" ({kind})" if kind else "", f" with scales of {block} blocks" if block else ""))
    return (
        f"quantization_config: weights quantised as {method!r}{more} are not read; only 'fp8' (e4m3) with a "
        "weight_block_size of two numbers is: convert them to that, bfloat16 or float32"
    )


def _family(raw: dict[str, Any], source: str) -> type[ModelConfig]:
    families = {family.model_type: family for family in ModelConfig.__subclasses__()}
    kind = str(raw.get("model_type"))
    found = families.get(_ALIASES.get(kind, kind))
    if found is None:
        known = " or ".join(repr(name) for name in sorted(families))
        raise UsageError(f"{source}: model_type {raw.get('model_type')!r} is not supported; use {known}")
    return found


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


def without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    given = "" if problem["type"] == "missing" or not where else f" (given {problem['input']!r})"
    return f"{where}: {message}{given}" if where else message
