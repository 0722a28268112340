"""Elementwise functions give a value the same bits wherever in a tensor it lies, at any length and offset."""

from collections.abc import Callable

import pytest
import torch

from serving.model.elementwise import sigmoid_, silu_
from serving.model.norm import RMSNorm
from serving.model.rows import bits_equal

FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu_": lambda x: silu_(x.clone()),
    "sigmoid_": lambda x: sigmoid_(x.clone()),
    "exp": torch.exp,
    "rsqrt": lambda x: torch.rsqrt(x.abs()),
    "quotient": lambda x: x / (x + 3.0),
    "multiply and add": lambda x: x * x + x,
}
VALUES = torch.randn(64 * 200, generator=torch.Generator().manual_seed(0)) * 3


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("length", [1, 7, 8, 15, 16, 17, 31, 33, 48, 63, 65, 100])
def test_place_does_not_matter(name: str, length: int) -> None:
    function = FUNCTIONS[name]
    want = function(VALUES)
    assert bits_equal(torch.cat([function(part) for part in torch.split(VALUES, length)]), want)


def test_functions_are_what_they_say() -> None:
    x = VALUES.double()
    assert torch.allclose(silu_(VALUES[:1001].clone()).double(), (x / (1 + torch.exp(-x)))[:1001], atol=1e-6)
    assert torch.allclose(
        sigmoid_(VALUES[:1001].clone()).double(), (1 / (1 + torch.exp(-x)))[:1001], atol=1e-6
    )
    assert float(torch.exp(torch.tensor([-torch.inf]))) == 0.0


def test_norm() -> None:
    generator = torch.Generator().manual_seed(1)
    x, weight = torch.randn((5, 48), generator=generator), torch.randn(32, generator=generator)
    got = RMSNorm(weight, 1e-3)(x[:, :32])
    want = x[:, :32].double() / (x[:, :32].double().square().mean(-1, keepdim=True) + 1e-3).sqrt() * weight
    assert torch.allclose(got.double(), want, atol=1e-6)
    assert got.is_contiguous()
