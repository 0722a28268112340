"""The balanced checkpoint: only the correction biases differ, and loads are even on rows it has not seen."""

from pathlib import Path

import numpy as np
import pytest
import torch

from serving.model import (
    balanced_bias,
    expert_loads,
    load_model,
    make_balanced_checkpoint,
    make_checkpoint,
    preset_config,
)


def skewed_scores(rows: int, seed: int) -> np.ndarray:
    """Sigmoid scores of a router that likes some experts better: float32 [rows, 256]."""
    like = np.random.default_rng(1).normal(0.0, 0.7, 256)
    values = np.random.default_rng(seed).normal(0.0, 1.0, (rows, 256)) + like
    return (1.0 / (1.0 + np.exp(-values))).astype(np.float32)


def test_loads_even_out_on_rows_not_seen() -> None:
    config = preset_config("mini")
    bias = balanced_bias(skewed_scores(4096, seed=2), config).numpy()
    unseen = skewed_scores(4096, seed=3)
    before = expert_loads(unseen, np.zeros(256, np.float32), config)
    after = expert_loads(unseen, bias, config)
    assert before.sum() == after.sum() == 4096 * 8
    assert before.max() > 2.5 * before.mean(), "the case is not skewed enough to show anything"
    assert after.max() < 1.5 * after.mean()
    assert after.min() > 0.6 * after.mean()


def test_only_the_biases_differ(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "plain", "tiny", seed=4)
    make_balanced_checkpoint(tmp_path / "even", "tiny", seed=4)
    plain, even = (load_model(tmp_path / name) for name in ("plain", "even"))
    h = torch.randn(8, plain.config.hidden_size, generator=torch.Generator().manual_seed(5))
    for a, b in zip(plain.layers, even.layers, strict=True):
        if a.is_moe:
            assert torch.equal(a.router_scores(h), b.router_scores(h))
            assert torch.equal(a.expert(0, h), b.expert(0, h))
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("plain", "even")]
    assert len(files[0]) == len(files[1])
    assert files[0] != files[1]


@pytest.mark.parametrize("seed", [4, 5])
def test_the_same_seed_gives_the_same_bytes(tmp_path: Path, seed: int) -> None:
    for name in ("a", "b"):
        make_balanced_checkpoint(tmp_path / name, "tiny", seed=seed)
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()
