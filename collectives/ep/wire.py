"""How a row of values travels: its bytes as they are, in words of four.

Kinds: "float32", "bfloat16" (rounded to nearest even), "int8" (one scale a row, XCCL and CANN), "fp8" (E4M3
with a scale for each 128 values, DeepEP). What the receiver gets back is the same on every scheme, because
each encodes at the sender and decodes at the receiver with these functions.

Source: int8 as `emulator.rows`; fp8 as DeepEP `per_token_cast_to_fp8` (scale = max |x| / 448, at least 1e-4).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from emulator.errors import UsageError

KINDS = ("float32", "bfloat16", "int8", "fp8")
FORMS = (*KINDS, "fp8 with powers of two as scales")
"""Kinds as the ranks of a call compare them."""
BLOCK = 128
"""Values that share an fp8 scale."""
FP8_MAX = 448.0
Float32 = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


def words(kind: str, hidden: int) -> int:
    """Words of four bytes that a row of `hidden` values takes. Raises: UsageError, no such kind."""
    if kind not in KINDS:
        raise UsageError(f"rows of kind {kind!r}; choose one of {', '.join(KINDS)}")
    values = -(-hidden * {"float32": 4, "bfloat16": 2}.get(kind, 1) // 4)
    return values + {"int8": 1, "fp8": -(-hidden // BLOCK)}.get(kind, 0)


def encode(x: Float32, kind: str) -> Float32:
    """Return the words of rows x float32 [n, hidden], as float32 [n, words] (bits, not values)."""
    n, hidden = x.shape
    width = words(kind, hidden)
    if kind == "float32":
        return np.ascontiguousarray(x)
    out = np.zeros((n, 4 * width), np.uint8)
    if kind == "bfloat16":
        out[:, : 2 * hidden] = to_bfloat16(x).view(np.uint8).reshape(n, 2 * hidden)
    elif kind == "int8":
        scale, steps = quantise_int8(x)
        out[:, :4] = scale[:, None].view(np.uint8)
        out[:, 4 : 4 + hidden] = steps.view(np.uint8)
    else:
        scales, codes = quantise_fp8(x)
        return join_fp8(codes, scales)
    return out.view(np.float32)


def decode(raw: Float32, kind: str, hidden: int) -> Float32:
    """Return float32 [n, hidden] from the words of `encode`, float32 [n, words]."""
    if kind == "float32":
        return raw[:, :hidden]
    data = np.ascontiguousarray(raw).view(np.uint8)
    if kind == "bfloat16":
        return from_bfloat16(np.ascontiguousarray(data[:, : 2 * hidden]).view(np.uint16))
    if kind == "int8":
        scale = np.ascontiguousarray(data[:, :4]).view(np.float32)
        return np.ascontiguousarray(data[:, 4 : 4 + hidden]).view(np.int8).astype(np.float32) * scale
    codes, scales = split_fp8(raw, hidden)
    return dequantise_fp8(codes, scales)


def join_fp8(codes: Bytes, scales: Float32) -> Float32:
    """Words of codes uint8 [n, hidden] and scales float32 [n, blocks], as `encode` makes them."""
    n, hidden = codes.shape
    out = np.zeros((n, 4 * words("fp8", hidden)), np.uint8)
    at = 4 * scales.shape[1]
    out[:, :at] = np.ascontiguousarray(scales).view(np.uint8).reshape(n, at)
    out[:, at : at + hidden] = codes
    return out.view(np.float32)


def split_fp8(raw: Float32, hidden: int) -> tuple[Bytes, Float32]:
    """Codes uint8 [n, hidden] and scales float32 [n, blocks] of rows encoded as "fp8"."""
    blocks = -(-hidden // BLOCK)
    data = np.ascontiguousarray(raw).view(np.uint8)
    return data[:, 4 * blocks : 4 * blocks + hidden].copy(), raw[:, :blocks].copy()


def to_bfloat16(x: Float32) -> npt.NDArray[np.uint16]:
    """Bits of x rounded to bfloat16, to nearest, ties to even; a NaN stays one."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    rounded = ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(
        np.uint16
    )
    return np.where(np.isnan(x), np.uint16(0x7FC0), rounded)


def from_bfloat16(bits: npt.NDArray[np.uint16]) -> Float32:
    """Values of bfloat16 bits."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def quantise_int8(x: Float32) -> tuple[Float32, npt.NDArray[np.int8]]:
    """A scale for each row [n], max |x| / 127, and its values in steps of it, rounded half to even."""
    scale = (np.abs(x).max(axis=1, initial=0.0) / np.float32(127)).astype(np.float32)
    safe = np.where(scale == 0, np.float32(1), scale)
    return scale, np.rint(x / safe[:, None]).astype(np.int8)


def _fp8_values() -> npt.NDArray[np.float64]:
    """The 127 values of E4M3 from 0 up to 448."""
    code = np.arange(127)
    exponent, mantissa = code >> 3, code & 7
    return np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7))


_VALUES = _fp8_values()
_MIDDLE = (_VALUES[1:] + _VALUES[:-1]) / 2


def quantise_fp8(x: Float32, round_scale: bool = False) -> tuple[Float32, Bytes]:
    """Scales float32 [n, blocks of 128] and E4M3 codes uint8 [n, hidden]; ties to even codes.

    `round_scale`: scales are powers of two, not below the exact ones.
    """
    n, hidden = x.shape
    blocks = -(-hidden // BLOCK)
    padded = np.zeros((n, blocks * BLOCK), np.float32)
    padded[:, :hidden] = x
    cut = padded.reshape(n, blocks, BLOCK)
    scales = (np.maximum(np.abs(cut).max(axis=2), np.float32(1e-4)) / np.float32(FP8_MAX)).astype(np.float32)
    if round_scale:
        scales = np.exp2(np.ceil(np.log2(scales.astype(np.float64)))).astype(np.float32)
    steps = np.abs(cut / scales[:, :, None]).reshape(n, blocks * BLOCK)[:, :hidden].astype(np.float64)
    codes = np.searchsorted(_MIDDLE, steps, side="left")
    tie = (codes < _MIDDLE.size) & (_MIDDLE[np.minimum(codes, _MIDDLE.size - 1)] == steps) & (codes % 2 == 1)
    codes = (codes + tie).astype(np.uint8)
    return scales, codes | (np.signbit(x).astype(np.uint8) << np.uint8(7))


def dequantise_fp8(codes: Bytes, scales: Float32) -> Float32:
    """Values of `quantise_fp8`, float32 [n, hidden]."""
    values = _VALUES[np.minimum(codes & 127, 126)].astype(np.float32)
    signed = np.where(codes & 128, -values, values)
    out: Float32 = signed * np.repeat(scales, BLOCK, axis=1)[:, : codes.shape[1]]
    return out
