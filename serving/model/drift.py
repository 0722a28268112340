"""A router whose hot experts move over time: each section of the vocabulary has hot experts of its own.

Text that walks through the sections (`serving.workload` does, request by request) moves the hottest experts
with it. Nothing but weights is needed: a token's embedding carries a direction of its section, each layer's
gate reads that direction, and the head prefers tokens of the section it finds, so that answers stay in it.
The gates are fitted on seeded prompts, layer by layer, all sections at once.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch

from emulator.errors import UsageError
from serving.model.balance import LENGTH, check_bias, walk
from serving.model.checkpoint import make_checkpoint
from serving.model.config import ModelConfig, preset_config
from serving.model.layers import Layer
from serving.model.model import load_model
from serving.model.routing import choose_experts
from serving.model.skew import skewed_loads
from serving.model.weights import CheckpointFiles

__all__ = ["make_drifting_checkpoint", "section_tokens"]

_SEQUENCES, _ROUNDS, _STEP, _DECAY = 2560, 90, 0.35, 0.95
_EMBEDDED, _PREFERRED = 16.0, 3.0
"""Length of a section's direction in an embedding (the rest has about the square root of the hidden size),
and in a row of the head."""
_HIGHEST = 1.0
"""What the gate adds at most to a hot expert's logit, in the mean: above, its scores would all be about 1."""
_GRID = 1.0 / (1 << 14)


def make_drifting_checkpoint(
    directory: str | Path,
    preset: str | ModelConfig = "mini",
    seed: int = 0,
    *,
    skew: float,
    sections: int,
    overwrite: bool = False,
) -> ModelConfig:
    """Write a checkpoint of which every section of the vocabulary has a hottest expert of `skew` mean loads.

    Which experts are hot differs from section to section and from layer to layer.

    Raises:
        UsageError: as `make_skewed_checkpoint`; fewer than two sections, or more than fit.
    """
    config = preset_config(preset) if isinstance(preset, str) else preset
    check_bias(config)
    most = min(config.vocab_size // 8, config.hidden_size // 4)
    if not 2 <= sections <= most:
        raise UsageError(f"--drift {sections}: 2 to {most} sections of a vocabulary of {config.vocab_size}")
    config = config.model_copy(update={"vocab_sections": sections})
    loads, rng = skewed_loads(skew, config), np.random.default_rng((seed, 0xD21F7))
    directions = _directions(config.hidden_size, sections, rng)
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        make_checkpoint(first, config, seed)
        replaced = _marked(CheckpointFiles(Path(first)), config, directions)
        make_checkpoint(second, config, seed, replaced=replaced)
        model = load_model(second)
        tokens = section_tokens(
            rng.integers(0, config.vocab_size, _SEQUENCES * LENGTH), _owners(sections), config
        )
        owner = np.repeat(_owners(sections), LENGTH)
        for layer, h in walk(model, config, tokens, _SEQUENCES, LENGTH):
            wanted = np.stack([rng.permutation(loads) for _ in range(sections)], axis=1)
            gate = _fitted_gate(layer, h, owner, wanted, directions, config)
            replaced[f"model.layers.{layer.index}.mlp.gate.weight"] = gate
            layer.set_router_weight(gate)
        return make_checkpoint(directory, config, seed, overwrite=overwrite, replaced=replaced)


def section_tokens(tokens: np.ndarray, owners: np.ndarray, config: ModelConfig) -> np.ndarray:
    """Tokens int64 [sequences * length], moved into their sequence's section, owners int64 [sequences]."""
    size = config.vocab_size // config.vocab_sections
    moved: np.ndarray = tokens % size + np.repeat(owners, len(tokens) // len(owners)) * size
    return moved


def _owners(sections: int) -> np.ndarray:
    return np.arange(_SEQUENCES) % sections


def _directions(hidden: int, sections: int, rng: np.random.Generator) -> torch.Tensor:
    """Orthonormal, float32 [sections, hidden]."""
    q, _ = np.linalg.qr(rng.normal(size=(hidden, sections)))
    return torch.from_numpy((np.round(q.T / _GRID) * _GRID).astype(np.float32))


def _marked(files: CheckpointFiles, config: ModelConfig, directions: torch.Tensor) -> dict[str, torch.Tensor]:
    """Embedding and head with every token's section in them."""
    shape = config.vocab_size, config.hidden_size
    size = config.vocab_size // config.vocab_sections
    section = torch.arange(config.vocab_size).div(size, rounding_mode="floor").clamp(max=len(directions) - 1)
    embed = files.tensor("model.embed_tokens.weight", *shape)
    embed = embed - embed @ directions.t() @ directions + _EMBEDDED * directions[section]
    marked = {"model.embed_tokens.weight": embed}
    if not config.tie_word_embeddings:
        marked["lm_head.weight"] = files.tensor("lm_head.weight", *shape) + _PREFERRED * directions[section]
    return marked


def _fitted_gate(
    layer: Layer,
    h: torch.Tensor,
    owner: np.ndarray,
    wanted: np.ndarray,
    directions: torch.Tensor,
    config: ModelConfig,
) -> torch.Tensor:
    """The gate float32 [experts, hidden] under which rows `h` of section s have loads about `wanted[:, s]`.

    Args:
        owner: int64 [n], the section of each row.
        wanted: float64 [experts, sections], loads relative to their mean.
    """
    base = torch.mm(h, layer.router_weight.t()).numpy()
    seen = torch.mm(h, directions.t()).numpy()
    read = np.zeros(wanted.shape, np.float32)
    step, bias = _STEP, layer.router_bias.numpy()
    rows = [np.flatnonzero(owner == s) for s in range(wanted.shape[1])]
    strength = np.array([seen[r, s].mean() for s, r in enumerate(rows)])
    for _ in range(_ROUNDS):
        scores = 1 / (1 + np.exp(-(base + seen @ read.T))) + bias
        chosen = choose_experts(scores, config.n_group, config.topk_group, config.num_experts_per_tok).numpy()
        for s, r in enumerate(rows):
            got = np.bincount(chosen[r].ravel(), minlength=len(wanted)) * len(wanted) / chosen[r].size
            change = np.clip(np.log((wanted[:, s] + 0.05) / (got + 0.05)), -1, 1)
            read[:, s] += (step / strength[s] * change).astype(np.float32)
            read[:, s] -= max(0.0, read[:, s].max() - _HIGHEST / strength[s])
        step *= _DECAY
    return layer.router_weight + torch.from_numpy(np.round(read / _GRID) * _GRID).float() @ directions
