"""INT8: exact sums, the same codes everywhere, bytes by the formula, an error that is bounded."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_batch_invariance import alone, random_schedule

from emulator.rows import _quantised as quantised_on_the_way
from serving.kv.formats import LatentFormat
from serving.model import PRESETS, Model, PagedKV, load_model, make_checkpoint
from serving.model.config import DeepseekV3Config
from serving.model.int8 import _EXACT_INPUTS, Int8Matrix, LatentRows, quantised
from serving.model.int8_error import BOUND, logit_error
from serving.model.rows import bits_equal
from serving.quantization import ERROR_BOUND

Tensor = torch.Tensor


@pytest.fixture(scope="module", params=["tiny", "qwen3-moe-tiny"])
def both(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Model]:
    """A checkpoint in INT8 and in float32."""
    directory = tmp_path_factory.mktemp(request.param)
    make_checkpoint(directory, request.param, seed=6)
    return load_model(directory, quantization="int8"), load_model(directory)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_codes_are_those_of_a_row_on_its_way() -> None:
    rows = randn(200, 48) * torch.logspace(-3, 3, 200)[:, None]
    rows[7] = 0.0
    codes, scale = quantised(rows)
    sent_scale, sent = quantised_on_the_way(rows.numpy())
    assert np.array_equal(scale.view(-1).numpy(), sent_scale)
    assert np.array_equal(codes.numpy().astype(np.int8), sent)


def test_quantising_again_changes_nothing() -> None:
    """Every scale there can be, by its mantissa: a row that was sent gives the bits of one that was not."""
    largest = torch.arange(1 << 23, dtype=torch.int32).add_(127 << 23).view(torch.float32)
    scale = largest / 127.0
    assert bits_equal((scale * 127.0) / 127.0, scale)
    rows = randn(500, 64, seed=1)
    codes, first = quantised(rows)
    again, second = quantised(codes * first)
    assert bits_equal(codes, again) and bits_equal(first, second)


@pytest.mark.parametrize("inputs", [33, _EXACT_INPUTS, _EXACT_INPUTS + 1, 4000])
def test_the_sum_is_exact(inputs: int) -> None:
    """All codes at their largest, which is where float32 would lose a bit. Fails with float32 throughout."""
    x, weight = torch.ones(3, inputs), torch.ones(5, inputs)
    x[1, ::2], weight[2, 0] = 0.5, -1.0
    codes_x, scale_x = quantised(x)
    codes_w, scale_w = quantised(weight)
    total = codes_x.to(torch.int64) @ codes_w.to(torch.int64).t()
    wanted = total.to(torch.float32) * scale_x * scale_w.view(1, -1)
    assert bits_equal(Int8Matrix(weight)(x), wanted)


def test_cache_rows_come_back_and_take_the_formula_s_bytes() -> None:
    """rank · 1 + rope · 4 + a scale of 4 (the rotated key stays float32 here), padded to whole floats."""
    for rank in (16, 30):
        rows = LatentRows(8, rank)
        rotated, latent = randn(11, 8), randn(11, rank, seed=2)
        packed = rows.pack(rotated, latent)
        back = rows.unpack(torch.cat((packed, torch.ones(11, 1)), -1))
        codes, scale = quantised(latent)
        assert bits_equal(back, torch.cat((rotated, codes * scale, torch.ones(11, 1)), -1))
    config = PRESETS["tiny"].model_copy(update={"quantization": "int8"})
    assert isinstance(config, DeepseekV3Config)
    pages = PagedKV(config, 4, 8).pages
    form = LatentFormat(3, config.kv_lora_rank, config.qk_rope_head_dim, 1, 4, scale_bytes=4)
    assert pages.shape[0] * (pages.shape[-1] - 1) * 4 == form.bytes_per_token == 3 * (16 + 32 + 4)


def test_bits_depend_on_no_company(both: tuple[Model, Model]) -> None:
    rng = np.random.default_rng(3)
    model = both[0]
    sequences = [torch.from_numpy(rng.integers(0, 64, n)) for n in (1, 40, 130)]
    for tokens, logits in zip(sequences, random_schedule(model, sequences, 16, 30, rng), strict=True):
        assert bits_equal(logits, alone(model, tokens)), f"{len(tokens)} tokens"


def test_the_error_is_bounded_and_there(both: tuple[Model, Model]) -> None:
    """Fails when a scale is left out (far above the bound) or when nothing is quantised (no error)."""
    error = logit_error(
        *both, torch.randint(0, 64, (200,), generator=torch.Generator().manual_seed(1)).tolist()
    )
    print(error)
    assert 0.001 < error.relative_rms <= BOUND == ERROR_BOUND and error.within
    assert error.relative_max < 1 and error.rows_rerouted < 0.2
    assert error.own_relative_rms >= error.relative_rms


def test_weights_take_a_byte_each_and_a_scale_a_channel(tmp_path: Path) -> None:
    assert Int8Matrix(randn(32, 48)).num_bytes == 32 * 48 + 4 * 32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_checkpoints_in_16_bit_are_read(tmp_path: Path, dtype: torch.dtype) -> None:
    """As the float32 of their values."""
    from safetensors.torch import load_file, save_file

    make_checkpoint(tmp_path, "tiny", seed=2)
    file, tokens = tmp_path / "model.safetensors", torch.arange(40) % 64
    stored = {name: tensor.to(dtype) for name, tensor in load_file(file).items()}
    save_file(stored, file)
    found = alone(load_model(tmp_path), tokens)
    save_file({name: tensor.to(torch.float32) for name, tensor in stored.items()}, file)
    assert bits_equal(found, alone(load_model(tmp_path), tokens))
