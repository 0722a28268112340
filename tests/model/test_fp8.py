"""Checkpoints in 8-bit floats with a scale a block: the model torch makes of them, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from emulator.errors import UsageError
from serving.model import ReferenceRequest, generate, load_model, make_checkpoint
from serving.model.fp8 import Block, decode_table, dequantised, scale_shape
from serving.model.rows import bits_equal

REQUEST = ReferenceRequest(prompt=(1, 2, 3, 4, 5), max_tokens=6)
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}


def widened(codes: torch.Tensor, scales: torch.Tensor, block: Block) -> torch.Tensor:
    """What torch makes of them."""
    by_row = scales.repeat_interleave(block[0], 0)[: codes.shape[0]]
    return codes.to(torch.float32) * by_row.repeat_interleave(block[1], 1)[:, : codes.shape[1]]


def quantise(directory: Path, block: Block, shards: bool = False) -> None:
    """Store a made checkpoint's projections and experts in 8 bits, and beside it the model that is left."""
    tensors = load_file(directory / "model.safetensors")
    stored, plain = dict(tensors), dict(tensors)
    for name, weight in tensors.items():
        if weight.ndim != 2 or "proj" not in name:
            continue
        rows, columns = scale_shape(tuple(weight.shape), block)
        padded = torch.nn.functional.pad(
            weight, (0, columns * block[1] - weight.shape[1], 0, rows * block[0] - weight.shape[0])
        )
        largest = padded.view(rows, block[0], columns, block[1]).abs().amax((1, 3))
        scales = largest / 448 * torch.rand(largest.shape, generator=torch.Generator().manual_seed(1)).add(1)
        spread = scales.repeat_interleave(block[0], 0)[: weight.shape[0]]
        codes = weight / spread.repeat_interleave(block[1], 1)[:, : weight.shape[1]]
        stored[name] = codes.to(torch.float8_e4m3fn)
        stored[f"{name}_scale_inv"] = scales
        plain[name] = widened(stored[name], scales, block)
    config = json.loads((directory / "config.json").read_text())
    plainly = directory.parent / "plain"
    plainly.mkdir()
    save_file(plain, plainly / "model.safetensors")
    (plainly / "config.json").write_text(json.dumps(config))
    config["quantization_config"] = {**FP8, "weight_block_size": list(block)}
    (directory / "config.json").write_text(json.dumps(config))
    if not shards:
        save_file(stored, directory / "model.safetensors")
        return
    (directory / "model.safetensors").unlink()
    places = {name: f"model-{1 + ('scale' in name):05d}-of-00002.safetensors" for name in stored}
    for place in set(places.values()):
        save_file({name: stored[name].clone() for name in stored if places[name] == place}, directory / place)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def test_every_code_is_torchs() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    theirs = codes.view(torch.float8_e4m3fn).to(torch.float32)
    ours = torch.from_numpy(decode_table())
    assert torch.equal(theirs.isnan(), ours.isnan()) and int(ours.isnan().sum()) == 2
    assert bits_equal(theirs[~theirs.isnan()], ours[~ours.isnan()])
    assert float(ours[~ours.isnan()].max()) == 448.0


@pytest.mark.parametrize("shape", [(1, 1), (128, 256), (130, 300), (64, 576)])
@pytest.mark.parametrize("block", [(128, 128), (16, 40)])
def test_dequantised_equals_torch(shape: tuple[int, int], block: Block) -> None:
    """Fails with rows and columns of the blocks exchanged, or a cut block read as a whole one."""
    generator = torch.Generator().manual_seed(7)
    codes = torch.randn(shape, generator=generator).mul_(100).to(torch.float8_e4m3fn)
    scales = torch.rand(scale_shape(shape, block), generator=generator)
    ours = dequantised(codes.view(torch.uint8).numpy(), scales.numpy(), block)
    assert bits_equal(torch.from_numpy(ours), widened(codes, scales, block))
    assert ours.dtype == np.float32


@pytest.mark.parametrize(
    ("preset", "block", "shards"),
    [("tiny", (128, 128), False), ("tiny", (16, 8), True), ("qwen3-moe-tiny", (8, 32), False)],
)
def test_the_model_is_that_of_the_widened_weights(
    preset: str, block: Block, shards: bool, tmp_path: Path
) -> None:
    make_checkpoint(tmp_path / "fp8", preset, seed=3)
    unlike = list(generate(tmp_path / "fp8", [REQUEST]))
    quantise(tmp_path / "fp8", block, shards)
    ours = list(generate(tmp_path / "fp8", [REQUEST]))
    assert ours == list(generate(tmp_path / "plain", [REQUEST])) != unlike
    expert = load_model(tmp_path / "fp8").layer(2).expert_bytes(3)
    assert np.array_equal(expert, load_model(tmp_path / "plain").layer(2).expert_bytes(3))


def _edit(directory: Path, what: dict[str, Any] | None, **tensors: Any) -> None:
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = what
    (directory / "config.json").write_text(json.dumps(config))
    stored = load_file(directory / "model.safetensors") | tensors
    save_file({k: v for k, v in stored.items() if v is not None}, directory / "model.safetensors")


EXPERT = "model.layers.2.mlp.experts.3.up_proj.weight"
BLOCKS = {**FP8, "weight_block_size": [16, 8]}


@pytest.mark.parametrize(
    ("what", "tensors", "said"),
    [
        (BLOCKS, {f"{EXPERT}_scale_inv": None}, f"tensor {EXPERT}_scale_inv is missing"),
        (BLOCKS, {f"{EXPERT}_scale_inv": torch.ones(1, 3)}, r"_scale_inv has shape \[1, 3\].*\[1, 4\]"),
        (None, {}, "dtype F8_E4M3, which is read for matrices where config.json"),
        (
            FP8,
            {},
            r"weights quantised as 'fp8' \(e4m3\) are not read; only 'fp8' \(e4m3\) with a weight_block",
        ),
        ({**BLOCKS, "fmt": "e5m2"}, {}, r"'fp8' \(e5m2\) with scales of \[16, 8\] blocks are not read"),
        ({"quant_method": "awq"}, {}, "weights quantised as 'awq' are not read"),
        (
            BLOCKS,
            {"model.norm.weight": torch.ones(32).to(torch.float8_e4m3fn)},
            r"of shape \[32\] has dtype F8",
        ),
    ],
)
def test_what_is_missing_is_named(what: Any, tensors: dict[str, Any], said: str, tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "fp8", "tiny", seed=3)
    quantise(tmp_path / "fp8", (16, 8))
    _edit(tmp_path / "fp8", what, **tensors)
    with pytest.raises(UsageError, match=said) as caught:
        load_model(tmp_path / "fp8")
    assert "\n" not in str(caught.value)
