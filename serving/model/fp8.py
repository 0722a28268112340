"""Weights stored as 8-bit floats with a scale for each block, as DeepSeek-V3 and Qwen3 publish them.

    weight = e4m3(code) · weight_scale_inv[row // block rows, column // block columns]      in float32

They are widened when they are opened, like 16-bit weights, a copy a process: what is computed is the float32
model of these weights. (Engines on such hardware also round activations to 8 bits; this does not.) Embedding,
head, norms and router are published in 16 or 32 bits.

Source: OCP 8-bit floating point specification 1.0, E4M3 (no infinities, one NaN a sign); DeepSeek-V3
(arXiv 2412.19437) section 3.3 for the blocks; names as in the published checkpoints.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Block", "block_of", "decode_table", "dequantised", "scale_name", "scale_shape"]

Block = tuple[int, int]
"""Rows and columns that share a scale."""

_BIAS = 7


def decode_table() -> NDArray[np.float32]:
    """The value of each code, float32 [256]: sign, 4 bits of exponent, 3 of mantissa."""
    codes = np.arange(256)
    sign = np.where(codes >> 7, -1.0, 1.0)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    normal = np.ldexp(8.0 + mantissa, exponent - _BIAS - 3)
    values = sign * np.where(exponent == 0, np.ldexp(1.0 * mantissa, 1 - _BIAS - 3), normal)
    return np.where(codes & 127 == 127, np.nan, values).astype(np.float32)


_TABLE = decode_table()


def scale_name(name: str) -> str:
    """The tensor that holds the scales of a weight."""
    return f"{name}_scale_inv"


def scale_shape(shape: tuple[int, ...], block: Block) -> tuple[int, ...]:
    """Its shape: a scale for each block, the last ones of which may be cut."""
    return tuple(-(-size // side) for size, side in zip(shape, block, strict=True))


def dequantised(codes: NDArray[np.uint8], scales: NDArray[np.float32], block: Block) -> NDArray[np.float32]:
    """Weights float32 [rows, columns] of codes of that shape and `scale_shape` of them."""
    rows, columns = codes.shape
    weights = _TABLE[codes]
    by_row = np.repeat(scales, block[0], axis=0)[:rows]
    weights *= np.repeat(by_row, block[1], axis=1)[:, :columns]
    return weights


def block_of(quantization: Any) -> Block | None:
    """The block of a `quantization_config` that is read; None for any other."""
    if not isinstance(quantization, dict) or quantization.get("quant_method") != "fp8":
        return None
    if quantization.get("fmt", "e4m3") != "e4m3":
        return None
    block = quantization.get("weight_block_size")
    if not isinstance(block, list | tuple) or len(block) != 2:
        return None
    sides = [side for side in block if isinstance(side, int) and not isinstance(side, bool) and side > 0]
    return (sides[0], sides[1]) if len(sides) == 2 else None
