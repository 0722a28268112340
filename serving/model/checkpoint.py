"""Make a random checkpoint from a seed, in the Hugging Face format.

Weights are scaled so that every layer contributes, expert loads are spread, routing gaps are wide against
float32 rounding, and logits have a spread of about a half. Norm weights and the router's correction bias are
random too, so that leaving one out shows.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from emulator.errors import UsageError
from serving.model.config import DeepseekV3Config, ModelConfig, Qwen3MoeConfig, preset_config
from serving.model.weights import INDEX_FILE, SINGLE_FILE, write_safetensors

__all__ = ["expert_shapes", "layer_shapes", "make_checkpoint", "mlp_shapes", "tensor_shapes"]

Shape = tuple[int, ...]


def mlp_shapes(config: ModelConfig, prefix: str, width: int) -> dict[str, Shape]:
    """Names and shapes of one gated MLP of `width` under `prefix`."""
    hidden = config.hidden_size
    return {
        f"{prefix}.gate_proj.weight": (width, hidden),
        f"{prefix}.up_proj.weight": (width, hidden),
        f"{prefix}.down_proj.weight": (hidden, width),
    }


def expert_shapes(config: ModelConfig, layer: int, expert: int) -> dict[str, Shape]:
    """Names and shapes of one routed expert."""
    return mlp_shapes(config, f"model.layers.{layer}.mlp.experts.{expert}", config.moe_intermediate_size)


def _attention_shapes(config: ModelConfig, prefix: str) -> dict[str, Shape]:
    if isinstance(config, Qwen3MoeConfig):
        return _grouped_shapes(config, prefix)
    assert isinstance(config, DeepseekV3Config)
    return _latent_shapes(config, prefix)


def _grouped_shapes(config: Qwen3MoeConfig, prefix: str) -> dict[str, Shape]:
    hidden, dim = config.hidden_size, config.head_dim
    return {
        f"{prefix}.q_proj.weight": (config.num_attention_heads * dim, hidden),
        f"{prefix}.k_proj.weight": (config.num_key_value_heads * dim, hidden),
        f"{prefix}.v_proj.weight": (config.num_key_value_heads * dim, hidden),
        f"{prefix}.q_norm.weight": (dim,),
        f"{prefix}.k_norm.weight": (dim,),
        f"{prefix}.o_proj.weight": (hidden, config.num_attention_heads * dim),
    }


def _latent_shapes(config: DeepseekV3Config, prefix: str) -> dict[str, Shape]:
    heads, hidden = config.num_attention_heads, config.hidden_size
    q_rows = heads * (config.qk_nope_head_dim + config.qk_rope_head_dim)
    shapes: dict[str, Shape] = {}
    if config.q_lora_rank is None:
        shapes[f"{prefix}.q_proj.weight"] = (q_rows, hidden)
    else:
        shapes[f"{prefix}.q_a_proj.weight"] = (config.q_lora_rank, hidden)
        shapes[f"{prefix}.q_a_layernorm.weight"] = (config.q_lora_rank,)
        shapes[f"{prefix}.q_b_proj.weight"] = (q_rows, config.q_lora_rank)
    shapes[f"{prefix}.kv_a_proj_with_mqa.weight"] = (config.kv_lora_rank + config.qk_rope_head_dim, hidden)
    shapes[f"{prefix}.kv_a_layernorm.weight"] = (config.kv_lora_rank,)
    kv_rows = heads * (config.qk_nope_head_dim + config.v_head_dim)
    shapes[f"{prefix}.kv_b_proj.weight"] = (kv_rows, config.kv_lora_rank)
    shapes[f"{prefix}.o_proj.weight"] = (hidden, heads * config.v_head_dim)
    return shapes


def layer_shapes(config: ModelConfig, layer: int) -> dict[str, Shape]:
    """Names and shapes of one layer without its routed experts."""
    prefix, hidden = f"model.layers.{layer}", config.hidden_size
    shapes: dict[str, Shape] = {
        f"{prefix}.input_layernorm.weight": (hidden,),
        f"{prefix}.post_attention_layernorm.weight": (hidden,),
        **_attention_shapes(config, f"{prefix}.self_attn"),
    }
    if not config.is_moe(layer):
        return shapes | mlp_shapes(config, f"{prefix}.mlp", config.intermediate_size)
    shapes[f"{prefix}.mlp.gate.weight"] = (config.n_routed_experts, hidden)
    if config.router_has_bias:
        shapes[f"{prefix}.mlp.gate.e_score_correction_bias"] = (config.n_routed_experts,)
    if not config.n_shared_experts:
        return shapes
    shared_width = config.moe_intermediate_size * config.n_shared_experts
    return shapes | mlp_shapes(config, f"{prefix}.mlp.shared_experts", shared_width)


def mtp_shapes(config: ModelConfig, layer: int) -> dict[str, Shape]:
    """Names and shapes of a whole draft layer: a decoder layer, and what joins and reads it."""
    prefix, hidden, vocab = f"model.layers.{layer}", config.hidden_size, config.vocab_size
    shapes = layer_shapes(config, layer)
    for expert in range(config.n_routed_experts):
        shapes |= expert_shapes(config, layer, expert)
    return shapes | {
        f"{prefix}.embed_tokens.weight": (vocab, hidden),
        f"{prefix}.enorm.weight": (hidden,),
        f"{prefix}.hnorm.weight": (hidden,),
        f"{prefix}.eh_proj.weight": (hidden, 2 * hidden),
        f"{prefix}.shared_head.norm.weight": (hidden,),
        f"{prefix}.shared_head.head.weight": (vocab, hidden),
    }


def _main_name(config: ModelConfig, name: str) -> str:
    """Draft layers share embedding and head with the main model: they get its values."""
    if not name.startswith("model.layers."):
        return name
    if name.endswith(".embed_tokens.weight"):
        return "model.embed_tokens.weight"
    if name.endswith(".shared_head.head.weight"):
        return "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
    return name


def tensor_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Every tensor of a checkpoint, by name, in a fixed order."""
    shapes: dict[str, Shape] = {"model.embed_tokens.weight": (config.vocab_size, config.hidden_size)}
    for layer in range(config.num_hidden_layers):
        shapes |= layer_shapes(config, layer)
        if config.is_moe(layer):
            for expert in range(config.n_routed_experts):
                shapes |= expert_shapes(config, layer, expert)
    for layer in range(config.num_hidden_layers, config.num_hidden_layers + config.num_nextn_predict_layers):
        shapes |= mtp_shapes(config, layer)
    shapes["model.norm.weight"] = (config.hidden_size,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, config.hidden_size)
    return shapes


def _scale(config: ModelConfig, name: str, shape: Shape) -> float:
    """Standard deviation of a matrix's entries."""
    fan_in = 1.0 / math.sqrt(shape[-1])
    if name.endswith("embed_tokens.weight"):
        return fan_in * 0.25 if config.tie_word_embeddings else 1.0
    if name.endswith("down_proj.weight"):
        return fan_in * 1.5  # silu(a) · b of unit rows has a spread of about a half
    if name.endswith("lm_head.weight"):
        return fan_in * 0.5  # float32 rounding of all layers stays far below 1e-5 in the logits
    return fan_in


def _random_tensor(config: ModelConfig, name: str, shape: Shape, seed: int) -> torch.Tensor:
    """Each tensor has its own generator: its values depend on the seed, its name and its shape only."""
    name = _main_name(config, name)
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    values = torch.randn(shape, generator=generator, dtype=torch.float32)
    if name.endswith("e_score_correction_bias"):
        return values.mul_(0.02)
    if len(shape) == 1:
        return values.mul_(0.1).add_(1.0)
    return values.mul_(_scale(config, name, shape))


def make_checkpoint(
    directory: str | Path,
    preset: str | ModelConfig = "mini",
    seed: int = 0,
    *,
    max_shard_bytes: int | None = None,
    overwrite: bool = False,
    replaced: Mapping[str, torch.Tensor] | None = None,
) -> ModelConfig:
    """Write `config.json` and float32 safetensors for a random model.

    Args:
        directory: made if it does not exist.
        preset: a name of `PRESETS`, or a configuration.
        seed: the same seed and configuration give the same bytes.
        max_shard_bytes: split into shards of at most this many data bytes (at least one tensor each), with an
            index.
        overwrite: replace a checkpoint that is already there.
        replaced: tensors to write instead of random ones, by name.

    Raises:
        UsageError: unknown preset, or the directory already holds a checkpoint.
    """
    config = preset_config(preset) if isinstance(preset, str) else preset
    path = Path(directory)
    existing = [path / name for name in ("config.json", SINGLE_FILE, INDEX_FILE) if (path / name).exists()]
    if existing and not overwrite:
        raise UsageError(f"{existing[0]}: already exists; choose another directory, or --overwrite")
    try:
        path.mkdir(parents=True, exist_ok=True)
        for old in [*existing, *path.glob("model-*-of-*.safetensors")]:
            old.unlink(missing_ok=True)
        _write_weights(path, config, seed, max_shard_bytes, replaced or {})
        (path / "config.json").write_text(json.dumps(config.to_hf(), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot write checkpoint: {error.strerror}") from None
    return config


def _write_weights(
    path: Path,
    config: ModelConfig,
    seed: int,
    max_shard_bytes: int | None,
    replaced: Mapping[str, torch.Tensor],
) -> None:
    shards = list(_shards(tensor_shapes(config), max_shard_bytes))
    weight_map: dict[str, str] = {}
    total = 0
    for number, shapes in enumerate(shards, start=1):
        name = (
            SINGLE_FILE if max_shard_bytes is None else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        )
        tensors = [
            (key, replaced[key] if key in replaced else _random_tensor(config, key, shape, seed))
            for key, shape in shapes.items()
        ]
        total += write_safetensors(path / name, tensors)
        weight_map |= dict.fromkeys(shapes, name)
    if max_shard_bytes is not None:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (path / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _shards(shapes: dict[str, Shape], max_bytes: int | None) -> Iterator[dict[str, Shape]]:
    if max_bytes is None:
        yield shapes
        return
    shard: dict[str, Shape] = {}
    filled = 0
    for name, shape in shapes.items():
        size = 4 * math.prod(shape)
        if shard and filled + size > max_bytes:
            yield shard
            shard, filled = {}, 0
        shard[name] = shape
        filled += size
    yield shard
