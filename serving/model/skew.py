"""A router as uneven as asked: the correction bias is moved until one expert has so many times the mean load.

xDeepServe reports experts of up to 30 times the mean, and a fifth of them above it. The loads asked for have
that shape; the bias that gives them is found on a seeded batch, layer by layer, and holds on rows it has not
seen.

Source: xDeepServe (arXiv 2508.02520) section 4.5.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch

from emulator.errors import UsageError
from serving.model.balance import GRID, check_bias, expert_loads, fit_biases
from serving.model.checkpoint import make_checkpoint
from serving.model.config import ModelConfig, preset_config
from serving.model.model import load_model

__all__ = ["make_skewed_checkpoint", "skewed_bias", "skewed_loads"]

_SEQUENCES, _LENGTH = 1024, 24
"""A prompt's length: what attention adds to a row differs with it, least from those of 16 to 32 tokens."""
_ROUNDS, _STEP, _DECAY = 110, 0.06, 0.95
_LAST_ROUNDS, _LAST_STEP = 12, 0.1
_HOT_SHARE, _COLD_LOAD = 0.2, 0.85


def make_skewed_checkpoint(
    directory: str | Path,
    preset: str | ModelConfig = "mini",
    seed: int = 0,
    *,
    skew: float,
    overwrite: bool = False,
) -> ModelConfig:
    """Write the checkpoint of `make_checkpoint` with biases that make one expert of each MoE layer hot.

    It gets `skew` times the mean load, and about a fifth of the experts more than the mean (`skewed_loads`).
    Which experts are hot differs from layer to layer.

    Raises:
        UsageError: as `make_checkpoint`; a skew that no routing of this shape can have.
    """
    config = preset_config(preset) if isinstance(preset, str) else preset
    check_bias(config)
    loads = skewed_loads(skew, config)
    rng = np.random.default_rng(seed)

    def bias(scores: np.ndarray) -> torch.Tensor:
        return skewed_bias(scores, rng.permutation(loads), config)

    with tempfile.TemporaryDirectory() as scratch:
        make_checkpoint(scratch, config, seed)
        tokens = even_tokens(seed, config.vocab_size, _SEQUENCES * _LENGTH)
        replaced = fit_biases(load_model(scratch), config, seed, bias, _SEQUENCES, _LENGTH, tokens)
        return make_checkpoint(directory, config, seed, overwrite=overwrite, replaced=replaced)


def even_tokens(seed: int, vocab_size: int, count: int) -> np.ndarray:
    """Seeded tokens, int64 [count], each of the vocabulary as often as every other (once more at most): how
    often chance draws a token is no property of the router."""
    return np.random.default_rng(seed).permutation(np.arange(count, dtype=np.int64) % vocab_size)


def skewed_loads(skew: float, config: ModelConfig) -> np.ndarray:
    """Loads relative to their mean, float64 [experts], descending.

    A fifth of the experts falls as a power of its place from `skew`; the others share what is left evenly, at
    most 0.85 of the mean each.

    Raises:
        UsageError: a skew below 1.9, or one for which nearly every token would choose the hottest expert.
    """
    experts, top_k = config.n_routed_experts, config.num_experts_per_tok
    most = 0.95 * experts / top_k
    if not 1.9 <= skew <= most:
        raise UsageError(f"--expert-skew {skew:g}: 1.9 to {most:g} for {top_k} of {experts} experts")
    hot = max(1, round(_HOT_SHARE * experts))
    places = np.arange(1.0, hot + 1)
    steepest = np.log(skew) / np.log(hot) if hot > 1 else 0.0
    low, high = 0.0, float(steepest)
    least = experts - (experts - hot) * _COLD_LOAD
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if (skew * places**-middle).sum() > least else (low, middle)
    falling = skew * places ** -(high if (skew * places**-steepest).sum() < least else steepest)
    return np.concatenate([falling, np.full(experts - hot, (experts - falling.sum()) / (experts - hot))])


def skewed_bias(scores: np.ndarray, loads: np.ndarray, config: ModelConfig) -> torch.Tensor:
    """The bias float32 [experts] under which `scores`, float32 [n, experts], give about `loads`, float64
    [experts] relative to their mean."""
    bias, step = np.zeros(len(loads)), _STEP
    mean = len(scores) * config.num_experts_per_tok / len(loads)
    for _ in range(_ROUNDS):
        got = expert_loads(scores, bias.astype(np.float32), config) / mean
        bias += step * np.clip(np.log((loads + 0.05) / (got + 0.05)), -1, 1)
        step *= _DECAY
    hottest, most = int(loads.argmax()), len(loads) / config.num_experts_per_tok
    for _ in range(_LAST_ROUNDS):  # it is nearly every token's choice: its room to `most` says how far it is
        got = expert_loads(scores, bias.astype(np.float32), config) / mean
        bias[hottest] += _LAST_STEP * np.log((most + 1 - got[hottest]) / (most + 1 - loads[hottest]))
    return torch.from_numpy((np.round(bias / GRID) * GRID).astype(np.float32))
