"""Routing equals a slow, obvious version; ties go to the lower index; loads of the mini preset are spread."""

import numpy as np
import pytest
import torch

from serving.model import Model, PagedKV
from serving.model.reference import forward
from serving.model.routing import choose_experts


def obvious(row: np.ndarray, num_groups: int, topk_group: int, top_k: int) -> list[int]:
    size = len(row) // num_groups
    groups = [sorted(row[g * size : (g + 1) * size])[-2:] for g in range(num_groups)]
    by_score = sorted(range(num_groups), key=lambda g: (-(groups[g][1] + groups[g][0]), g))
    opened = set(by_score[:topk_group])
    experts = [e for e in range(len(row)) if e // size in opened]
    return sorted(sorted(experts, key=lambda e: (-row[e], e))[:top_k])


@pytest.mark.parametrize("shape", [(256, 8, 4, 8), (16, 4, 2, 2), (8, 1, 1, 3), (8, 4, 4, 8), (12, 3, 1, 4)])
@pytest.mark.parametrize("levels", [None, 4, 1])
def test_against_the_obvious(shape: tuple[int, int, int, int], levels: int | None) -> None:
    """`levels` distinct scores only: with few, almost every row has ties."""
    experts, *rest = shape
    rng = np.random.default_rng(experts)
    choice = rng.standard_normal((60, experts)).astype(np.float32)
    if levels:
        choice = rng.integers(0, levels, choice.shape).astype(np.float32)
    got = choose_experts(choice, *rest)
    assert got.dtype == torch.int64
    assert got.tolist() == [obvious(row, *rest) for row in choice]


def test_mini_routes_evenly(mini: Model) -> None:
    """No expert is starved and none is flooded, so every rank has work."""
    tokens = torch.randint(0, 512, (1024,), generator=torch.Generator().manual_seed(0))
    kv = PagedKV(mini.config, 1024 // 64, 64)
    x = forward(mini, tokens, mini.plan([kv.append(0, 1024)], kv))
    for layer in mini.layers[3:]:
        idx, weights = layer.route(layer.norm(x))
        load = torch.bincount(idx.flatten(), minlength=256)
        print(layer.index, int(load.min()), int(load.max()))
        assert load.max() < 8 * load.float().mean()
        assert int((load == 0).sum()) < 16
        assert torch.allclose(weights.sum(-1), torch.tensor(2.5))
