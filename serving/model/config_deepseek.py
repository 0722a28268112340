"""DeepSeek-V3: latent attention, sigmoid router with a correction bias and groups, shared experts.

Source of the fields: the published DeepSeek-V3 configuration.
"""

from typing import Any, ClassVar

from pydantic import Field

from emulator.errors import UsageError
from serving.model.config_base import ModelConfig
from serving.model.latent_rows import latent_width

__all__ = ["DeepseekV3Config"]

_ABSENT = {"q_lora_rank": 1536, "routed_scaling_factor": 2.5}
"""What a configuration without these keys means: the defaults of `transformers`' DeepseekV3Config."""


class DeepseekV3Config(ModelConfig):
    """A DeepSeek-V3 architecture."""

    model_type: ClassVar[str] = "deepseek_v3"
    only_supported: ClassVar[dict[str, Any]] = {
        "attention_bias": False,
        "hidden_act": "silu",
        "moe_layer_freq": 1,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
    }

    first_k_dense_replace: int = Field(ge=0)
    n_shared_experts: int = Field(gt=0)
    n_group: int = Field(gt=0)
    topk_group: int = Field(gt=0)
    q_lora_rank: int | None = Field(default=None, gt=0)
    kv_lora_rank: int = Field(gt=0)
    qk_nope_head_dim: int = Field(gt=0)
    qk_rope_head_dim: int = Field(gt=0, multiple_of=2)
    v_head_dim: int = Field(gt=0)

    @property
    def rotary_dim(self) -> int:
        """Values of a head that are rotated."""
        return self.qk_rope_head_dim

    @property
    def query_dim(self) -> int:
        """Values of a query and a key of one head."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def kv_width(self) -> int:
        """The compressed latent and the rotated key, shared by all heads."""
        if self.quantization == "int8":
            return latent_width(self.qk_rope_head_dim, self.kv_lora_rank)
        return self.kv_lora_rank + self.qk_rope_head_dim

    @classmethod
    def translated(cls, raw: dict[str, Any], source: str) -> dict[str, Any]:
        """Nothing is spelt otherwise; a number of KV heads of its own is refused. Absent
        keys have the published model's values."""
        heads = raw.get("num_attention_heads")
        if raw.get("num_key_value_heads") not in (None, heads):
            raise UsageError(
                f"{source}: num_key_value_heads={raw['num_key_value_heads']} "
                f"must equal num_attention_heads={heads}"
            )
        given = raw.keys()
        return {key: value for key, value in _ABSENT.items() if key not in given}

    def to_hf(self) -> dict[str, Any]:
        """The Hugging Face `config.json` content for this model, float32."""
        return {
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": self.model_type,
            **self.hf_fields(),
            "num_key_value_heads": self.num_attention_heads,
            "rope_scaling": self.hf_rope(),
            "hidden_act": "silu",
            "scoring_func": "sigmoid",
            "topk_method": "noaux_tc",
            "attention_bias": False,
            "torch_dtype": "float32",
        }
