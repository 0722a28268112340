"""Rotary position embedding with YaRN, as tables of two factors per rotary dimension.

A pair (a, b) at angle φ becomes (a·cos φ − b·sin φ, b·cos φ + a·sin φ), written as x·C + swap(x)·S with C =
cos and S = −sin on the first, +sin on the second of each pair: products and sums only, which are exact in any
batch. Angles are formed in float32 as position × inverse frequency, like the Hugging Face implementation, so
both round alike.

Source: RoFormer (Su et al. 2021); YaRN (Peng et al. 2023) with DeepSeek's `mscale`.
"""

import math

import torch

from serving.model.config import ModelConfig, YarnConfig

__all__ = ["RotaryTables", "rotate", "softmax_scale"]

_BLOCK = 1024  # positions computed at a time: a fixed shape, so entries never depend on how tables grew


def _mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def softmax_scale(config: ModelConfig) -> float:
    """The factor on query·key: head size to the −1/2, times the square of YaRN's mscale_all_dim."""
    scale = config.query_dim**-0.5
    if config.yarn is not None and config.yarn.mscale_all_dim:
        scale *= _mscale(config.yarn.factor, config.yarn.mscale_all_dim) ** 2
    return float(scale)


def _attention_factor(yarn: YarnConfig) -> float:
    """YaRN's factor on cos and sin."""
    if yarn.attention_factor is not None:
        return yarn.attention_factor
    if yarn.mscale and yarn.mscale_all_dim:
        return _mscale(yarn.factor, yarn.mscale) / _mscale(yarn.factor, yarn.mscale_all_dim)
    return _mscale(yarn.factor, 1.0)


def _yarn_ramp(config: ModelConfig, yarn: YarnConfig) -> torch.Tensor:
    """Per frequency, 0 where it is kept (many rotations in the original context) to 1 where interpolated."""
    dim, base = config.rotary_dim, config.rope_theta

    def dimension_of(rotations: float) -> float:
        wavelength = yarn.original_max_position_embeddings / (rotations * 2 * math.pi)
        return (dim * math.log(wavelength)) / (2 * math.log(base))

    low, high = dimension_of(yarn.beta_fast), dimension_of(yarn.beta_slow)
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    return ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)


def inverse_frequencies(config: ModelConfig) -> tuple[torch.Tensor, float]:
    """Inverse frequencies, float32 [rotary_dim / 2], and the factor on cos and sin."""
    exponents = torch.arange(0, config.rotary_dim, 2, dtype=torch.float32) / config.rotary_dim
    powers = config.rope_theta**exponents
    if config.yarn is None:
        return 1.0 / powers, 1.0
    kept = 1 - _yarn_ramp(config, config.yarn)
    inverse = (1.0 / (config.yarn.factor * powers)) * (1 - kept) + (1.0 / powers) * kept
    return inverse, _attention_factor(config.yarn)


class RotaryTables:
    """C and S for every position, grown block by block as positions are asked for."""

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._inverse, self._factor = inverse_frequencies(config)
        self._cos = torch.empty(0, config.rotary_dim)
        self._sin = torch.empty(0, config.rotary_dim)

    def rows(self, positions: torch.Tensor, max_position: int) -> tuple[torch.Tensor, torch.Tensor]:
        """C and S at `positions` (int64 [n], none above `max_position`), each float32 [n, 1, rope dims]."""
        while self._cos.shape[0] <= max_position:
            self._grow()
        cos = self._cos.index_select(0, positions).unsqueeze(1)
        return cos, self._sin.index_select(0, positions).unsqueeze(1)

    def _grow(self) -> None:
        first = self._cos.shape[0]
        positions = torch.arange(first, first + _BLOCK, dtype=torch.float32)
        angles = positions.unsqueeze(1) * self._inverse
        cos, sin = angles.cos() * self._factor, angles.sin() * self._factor
        if self._config.rope_interleave:
            cos = torch.stack((cos, cos), -1).flatten(1)
            sin = torch.stack((-sin, sin), -1).flatten(1)
        else:
            cos = torch.cat((cos, cos), -1)
            sin = torch.cat((-sin, sin), -1)
        self._cos = torch.cat((self._cos, cos))
        self._sin = torch.cat((self._sin, sin))


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleave: bool) -> torch.Tensor:
    """Rotate x [s, heads, d] by tables [s, 1, d]; pairs are neighbours if `interleave`, else halves.

    Interleaved pairs stay interleaved: query and key are permuted alike, so their product is that of the
    reference.
    """
    half = x.shape[-1] // 2
    pairs = x.view(*x.shape[:-1], half, 2).flip(-1) if interleave else x.view(*x.shape[:-1], 2, half).flip(-2)
    return (x * cos).add_(pairs.flatten(-2).mul_(sin))
