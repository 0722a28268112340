"""Qwen3-MoE: grouped-query attention with normed queries and keys, softmax router, no shared expert.

Source of the fields: the published Qwen3-30B-A3B configuration.
"""

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from emulator.errors import UsageError
from serving.model.config_base import ModelConfig

__all__ = ["Qwen3MoeConfig"]


class Qwen3MoeConfig(ModelConfig):
    """A Qwen3-MoE architecture. Its `num_experts` is our `n_routed_experts`."""

    model_type: ClassVar[str] = "qwen3_moe"
    only_supported: ClassVar[dict[str, Any]] = {
        "attention_bias": False,
        "hidden_act": "silu",
        "decoder_sparse_step": 1,
        "use_sliding_window": False,
    }
    router_score: ClassVar[Literal["sigmoid", "softmax"]] = "softmax"
    router_has_bias: ClassVar[bool] = False

    norm_topk_prob: bool = False
    rope_interleave: bool = False
    num_key_value_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0, multiple_of=2)

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads={self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads={self.num_key_value_heads}"
            )
        return self

    @property
    def rotary_dim(self) -> int:
        """The whole head is rotated."""
        return self.head_dim

    @property
    def query_dim(self) -> int:
        """Values of a query and a key of one head."""
        return self.head_dim

    @property
    def kv_width(self) -> int:
        """A key and a value for each KV head."""
        return 2 * self.num_key_value_heads * self.head_dim

    @classmethod
    def translated(cls, raw: dict[str, Any], source: str) -> dict[str, Any]:
        """Our names for the experts; dense layers must be the first ones."""
        dense = raw.get("mlp_only_layers") or []
        if sorted(dense) != list(range(len(dense))):
            raise UsageError(
                f"{source}: mlp_only_layers={dense!r} is not supported; only the first layers may be dense"
            )
        fields = {"first_k_dense_replace": len(dense), "n_shared_experts": 0, "n_group": 1, "topk_group": 1}
        experts = raw.get("num_experts", raw.get("num_local_experts"))
        if experts is not None:
            fields["n_routed_experts"] = experts
        heads = raw.get("num_attention_heads")
        if raw.get("head_dim") is None and heads:
            fields["head_dim"] = raw.get("hidden_size", 0) // heads
        return {**fields, "rope_interleave": False, "routed_scaling_factor": 1.0}

    def to_hf(self) -> dict[str, Any]:
        """The Hugging Face `config.json` content for this model, float32."""
        ours = {"first_k_dense_replace", "n_routed_experts", "n_shared_experts", "n_group"}
        ours |= {"num_nextn_predict_layers", "topk_group", "routed_scaling_factor", "rope_interleave"}
        return {
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": self.model_type,
            **self.hf_fields(ours),
            "num_experts": self.n_routed_experts,
            "mlp_only_layers": list(range(self.first_k_dense_replace)),
            "decoder_sparse_step": 1,
            "rope_scaling": self.hf_rope(),
            "hidden_act": "silu",
            "attention_bias": False,
            "use_sliding_window": False,
            "torch_dtype": "float32",
        }
