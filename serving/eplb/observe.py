"""How many rows each expert gets: a model's own router on seeded prompts, slice by slice.

Works in one process, without ranks. A slice is a run of the prompts' tokens, as a collector would count them
between two reports.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from serving.model.balance import router_walk
from serving.model.model import Model
from serving.model.routing import choose_experts

__all__ = ["count_rows"]

_LENGTH = 16


def count_rows(model: Model, tokens: int, slices: int, seed: int) -> dict[int, NDArray[np.int64]]:
    """Return layer number -> int64 [experts, slices] for every MoE layer.

    Args:
        tokens: seeded random tokens, rounded up to whole sequences of 16 and equal slices.
    """
    config = model.config
    sequences = -(-tokens // (_LENGTH * slices)) * slices
    found = {}
    for layer, scores in router_walk(model, config, seed, sequences, _LENGTH):
        chosen = choose_experts(
            scores + layer.router_bias.numpy(), config.n_group, config.topk_group, config.num_experts_per_tok
        )
        parts = chosen.numpy().reshape(slices, -1)
        counts = [np.bincount(part, minlength=config.n_routed_experts) for part in parts]
        found[layer.index] = np.stack(counts, axis=1)
    return found
