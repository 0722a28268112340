"""The model configurations we know, and presets of them."""

from emulator.errors import UsageError
from serving.model.config_base import ModelConfig, YarnConfig
from serving.model.config_deepseek import DeepseekV3Config
from serving.model.config_qwen import Qwen3MoeConfig

__all__ = [
    "PRESETS",
    "DeepseekV3Config",
    "ModelConfig",
    "Qwen3MoeConfig",
    "YarnConfig",
    "preset_config",
    "with_mtp",
]

_MINI = DeepseekV3Config(
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

_QWEN_MINI = Qwen3MoeConfig(
    vocab_size=512,
    hidden_size=128,
    intermediate_size=256,
    moe_intermediate_size=32,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=16,
    n_routed_experts=128,
    num_experts_per_tok=8,
    norm_topk_prob=True,
    max_position_embeddings=16384,
    rope_theta=1000000.0,
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
    # The routing shape of Qwen3-30B-A3B: 8 of 128 experts, no shared one; hidden size 128.
    "qwen3-moe-mini": _QWEN_MINI,
    # Qwen3-MoE for fast tests: 4 heads share 2 KV heads, 2 of 16 experts.
    "qwen3-moe-tiny": _QWEN_MINI.model_copy(
        update={
            "vocab_size": 64,
            "hidden_size": 32,
            "intermediate_size": 64,
            "moe_intermediate_size": 16,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "n_routed_experts": 16,
            "num_experts_per_tok": 2,
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


def with_mtp(config: ModelConfig, layers: int, source: str) -> ModelConfig:
    """The configuration with so many draft layers computed.

    Raises:
        UsageError: the checkpoint has fewer.
    """
    if layers > config.num_nextn_predict_layers:
        raise UsageError(
            f"--mtp {layers}: {source} has num_nextn_predict_layers={config.num_nextn_predict_layers}; "
            "superpod make-checkpoint --mtp-layers makes some"
        )
    return config.model_copy(update={"mtp_layers": layers})
