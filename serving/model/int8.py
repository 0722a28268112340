"""INT8 with a scale for each row of activations and each output channel of weights.

    x ≈ codes · scale, scale = max |x| / 127, codes = x / scale rounded half to even      (per row, dynamic)
    x · Wᵀ ≈ (Σ codes_x · codes_w) · scale_x · scale_w                                    (the sum is exact)

The sum of products of codes is an integer. Up to `_EXACT_INPUTS` inputs it is formed in float32, where every
partial sum is below 2²⁴ and hence exact in any order; beyond, in float64. So INT8 products are batch
invariant by arithmetic, not by proof. Quantising what was dequantised gives the same codes and scale (tested
over every scale there can be), so a row that travels as INT8 gives the bits of one that stays.

Rows are quantised as `emulator.rows` quantises them on the way to the experts. Weights are rounded to the
nearest step of their channel's largest; smoothing and calibration are left out.

Source: arXiv 2508.02520 section 4.7: per-token activations, per-channel weights, INT8 for the part of the
KV that is not rotated.
"""

from collections.abc import Callable

import torch

from serving.model.latent_rows import latent_width

__all__ = ["LatentRows", "product_of", "quantised"]

_STEPS = 127.0
_EXACT_INPUTS = (1 << 24) // (127 * 127)
"""1,040 products of two codes stay within float32's 24 bits."""

Product = Callable[[torch.Tensor], torch.Tensor]


def quantised(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes, integers from −127 to 127 as float32 like x, and scales [..., 1] of the rows of x [..., k]."""
    scale = x.abs().amax(-1, keepdim=True).div_(_STEPS)
    codes = x.div(torch.where(scale == 0, 1.0, scale)).round_()
    return codes.add_(0.0), scale  # −0 becomes 0: an INT8 has no sign of zero


def product_of(weight: torch.Tensor, int8: bool) -> Product:
    """x [n, in] → x · weightᵀ [n, out] for a weight float32 [out, in], in float32 or in INT8."""
    if not int8:
        matrix = weight.t()
        return lambda x: torch.mm(x, matrix)
    return Int8Matrix(weight)


class Int8Matrix:
    """A weight [out, in] as INT8 codes and a scale for each output."""

    def __init__(self, weight: torch.Tensor) -> None:
        codes, scale = quantised(weight)
        self._codes = codes.to(torch.int8).t().contiguous()
        self._scale = scale.view(1, -1)
        self._sum = torch.float32 if weight.shape[1] <= _EXACT_INPUTS else torch.float64

    @property
    def num_bytes(self) -> int:
        """Codes and scales."""
        return self._codes.numel() + 4 * self._scale.numel()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x float32 [n, in], quantised row by row, to [n, out]."""
        codes, scale = quantised(x)
        total = torch.mm(codes.to(self._sum), self._codes.to(self._sum)).to(torch.float32)
        return total.add_(0.0).mul_(scale).mul_(self._scale)


class LatentRows:
    """Cache rows of latent attention with the latent in INT8: [rotated key | scale | codes, 4 in a float's
    place], and what the cache adds.

    Args:
        rope: values of the rotated key, float32.
        rank: values of the latent.
    """

    def __init__(self, rope: int, rank: int) -> None:
        self._rope, self._rank = rope, rank
        self._padding = -rank % 4

    @property
    def width(self) -> int:
        """float32 places of a row."""
        return latent_width(self._rope, self._rank)

    def pack(self, rotated: torch.Tensor, latent: torch.Tensor) -> torch.Tensor:
        """Rows [s, width] of rotated keys [s, rope] and latents [s, rank]. Not a number any more: bits."""
        codes, scale = quantised(latent)
        codes = torch.nn.functional.pad(codes, (0, self._padding)).to(torch.int8)
        return torch.cat((rotated, scale, codes.view(torch.float32)), -1)

    def unpack(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows [..., width + 1] of the cache to [..., rope + rank + 1]: rotated key, latent, constant."""
        rope = self._rope
        codes = rows[..., rope + 1 : -1].contiguous().view(torch.int8)[..., : self._rank]
        latent = codes.to(torch.float32).mul_(rows[..., rope : rope + 1])
        return torch.cat((rows[..., :rope], latent, rows[..., -1:]), -1)
