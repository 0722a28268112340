"""A router whose experts are used evenly: the correction bias is moved until their loads agree.

A random router's busiest expert has three to four times the mean load. A trained DeepSeek-V3 is balanced by
this very bias: after each batch it goes down for overloaded experts and up for the others. The same is done
here on a seeded batch, layer by layer. Left out: anything but the bias.

Source: DeepSeek-V3 (arXiv 2412.19437) section 2.1.2, auxiliary-loss-free load balancing.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from emulator.errors import UsageError
from serving.model.checkpoint import make_checkpoint
from serving.model.config import ModelConfig, preset_config
from serving.model.kv_cache import PagedKV
from serving.model.layers import Layer
from serving.model.model import Model, load_model
from serving.model.reference import routed_experts
from serving.model.routing import choose_experts

__all__ = ["balanced_bias", "expert_loads", "fit_biases", "make_balanced_checkpoint", "router_walk", "walk"]

_SEQUENCES, LENGTH = 512, 8
_ROUNDS, _FIRST_STEP, _LAST_STEP = 120, 0.01, 0.0002
GRID = 1.0 / (1 << 14)
"""Biases are rounded to this, so that float rounding of the sample does not show in them."""


def make_balanced_checkpoint(
    directory: str | Path, preset: str | ModelConfig = "mini", seed: int = 0, *, overwrite: bool = False
) -> ModelConfig:
    """Write the checkpoint of `make_checkpoint`, its correction biases replaced by balanced ones.

    Raises:
        UsageError: as `make_checkpoint`.
    """
    config = preset_config(preset) if isinstance(preset, str) else preset
    check_bias(config)
    with tempfile.TemporaryDirectory() as scratch:
        make_checkpoint(scratch, config, seed)
        replaced = fit_biases(
            load_model(scratch), config, seed, lambda scores: balanced_bias(scores, config), _SEQUENCES
        )
        return make_checkpoint(directory, config, seed, overwrite=overwrite, replaced=replaced)


def check_bias(config: ModelConfig) -> None:
    """Raise UsageError for a router without a correction bias."""
    if not config.router_has_bias:
        raise UsageError(
            f"--balance-router and --expert-skew set the correction bias, which {config.model_type} lacks"
        )


def fit_biases(
    model: Model,
    config: ModelConfig,
    seed: int,
    bias_for: Callable[[np.ndarray], torch.Tensor],
    sequences: int,
    length: int = LENGTH,
    tokens: np.ndarray | None = None,
) -> dict[str, torch.Tensor]:
    """Walk a batch, seeded or `tokens` int64 [sequences * length], through the layers, giving each its bias
    before it is passed."""
    biases: dict[str, torch.Tensor] = {}
    for layer, scores in router_walk(model, config, seed, sequences, length, tokens):
        bias = bias_for(scores)
        biases[f"model.layers.{layer.index}.mlp.gate.e_score_correction_bias"] = bias
        layer.set_router_bias(bias)
    return biases


def router_walk(
    model: Model,
    config: ModelConfig,
    seed: int,
    sequences: int,
    length: int,
    tokens: np.ndarray | None = None,
) -> Iterator[tuple[Layer, np.ndarray]]:
    """Walk a batch of seeded random tokens, or of `tokens`, through the layers.

    Gives each MoE layer, before its experts are computed, and its router's scores, float32 [sequences *
    length, experts], the tokens of a sequence together.
    """
    if tokens is None:
        tokens = np.random.default_rng(seed).integers(0, config.vocab_size, sequences * length)
    for layer, h in walk(model, config, tokens, sequences, length):
        yield layer, layer.router_scores(h).numpy()


def walk(
    model: Model, config: ModelConfig, tokens: np.ndarray, sequences: int, length: int
) -> Iterator[tuple[Layer, torch.Tensor]]:
    """Walk sequences of equal length, tokens int64 [sequences * length], through the layers.

    Gives each MoE layer, before its experts are computed, and the normed rows that its router sees, float32
    [sequences * length, hidden].
    """
    kv = PagedKV(config, sequences * -(-length // LENGTH))
    plan = model.plan([kv.append(i, length) for i in range(sequences)], kv)
    x = model.embed(torch.from_numpy(tokens))
    for layer in model.layers:
        x = layer.attention(x, plan)
        h = layer.norm(x)
        if layer.is_moe:
            yield layer, h
        x = x + _mlp(layer, h)


def _mlp(layer: Layer, h: torch.Tensor) -> torch.Tensor:
    return layer.joined(routed_experts(layer, h), h) if layer.is_moe else layer.dense(h)


def expert_loads(scores: np.ndarray, bias: np.ndarray, config: ModelConfig) -> np.ndarray:
    """Rows each expert gets, int64 [experts], for scores float32 [n, experts]."""
    chosen = choose_experts(scores + bias, config.n_group, config.topk_group, config.num_experts_per_tok)
    return np.bincount(chosen.numpy().ravel(), minlength=scores.shape[1])


def balanced_bias(scores: np.ndarray, config: ModelConfig) -> torch.Tensor:
    """The bias float32 [experts] under which the loads of `scores`, float32 [n, experts], are about even."""
    bias = np.zeros(scores.shape[1], np.float32)
    for step in np.geomspace(_FIRST_STEP, _LAST_STEP, _ROUNDS).astype(np.float32):
        loads = expert_loads(scores, bias, config)
        bias += step * np.sign(loads.mean() - loads).astype(np.float32)
    return torch.from_numpy((np.round(bias / GRID) * GRID).astype(np.float32))
