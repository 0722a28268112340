"""Collectives of all ranks at once, slow and obvious, to compare with: lists by rank in, lists by rank out.

reduce   ((x0 op x1) op x2) op …      each step in the element's type; bfloat16 rounded to nearest even
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def bfloat16_value(bits: int) -> float:
    """The number 16 bits stand for."""
    return float(struct.unpack("<f", struct.pack("<I", bits << 16))[0])


def bfloat16_bits(value: float) -> int:
    """The nearest bfloat16 of a float32 value, ties to even; not-a-number is one."""
    word = int(struct.unpack("<I", struct.pack("<f", value))[0])
    if math.isnan(value):
        return word >> 16 | 0x40
    low, bits = word & 0xFFFF, word >> 16
    return bits + (low > 0x8000 or (low == 0x8000 and bits & 1 == 1))


def _step(op: str, a: Any, b: Any) -> Any:
    if op in ("sum", "avg"):
        return a + b
    if op == "prod":
        return a * b
    if op in ("min", "max"):
        return np.minimum(a, b) if op == "min" else np.maximum(a, b)
    return a & b if op == "band" else a | b if op == "bor" else a ^ b


def reduced(vectors: Sequence[Array], op: str, dtype: str) -> Array:
    """All vectors reduced in their order, element by element."""
    out = np.empty_like(vectors[0])
    for place in range(out.size):
        values = [vector.reshape(-1)[place] for vector in vectors]
        out.reshape(-1)[place] = _bfloat16(values, op) if dtype == "bfloat16" else _plain(values, op)
    return out


def _plain(values: list[Any], op: str) -> Any:
    total = values[0]
    with np.errstate(all="ignore"):
        for value in values[1:]:
            total = values[0].dtype.type(_step(op, total, value))
        if op == "avg":
            kind, size = values[0].dtype, len(values)
            total = kind.type(int(total) // size if kind.kind in "iu" else total / kind.type(size))
    return total


def _bfloat16(values: list[Any], op: str) -> int:
    total = bfloat16_value(int(values[0]) & 0xFFFF)
    for value in values[1:]:
        step = np.float32(_step(op, np.float32(total), np.float32(bfloat16_value(int(value) & 0xFFFF))))
        total = bfloat16_value(bfloat16_bits(float(step)))
    if op == "avg":
        total = float(np.float32(total) / np.float32(len(values)))
    return bfloat16_bits(total)


def all_to_all(sends: Sequence[Array]) -> list[Array]:
    """Block j of rank i's result is block i of rank j's vector."""
    n = len(sends)
    return [np.concatenate([np.split(sends[j], n)[i] for j in range(n)]) for i in range(n)]


def all_gather(sends: Sequence[Array]) -> list[Array]:
    """Everybody gets all vectors, one after the other."""
    return [np.concatenate(list(sends)) for _ in sends]


def reduce_scatter(sends: Sequence[Array], counts: Sequence[int], op: str, dtype: str) -> list[Array]:
    """Rank i gets counts[i] elements of the reduced vector."""
    total, ends = reduced(sends, op, dtype), np.cumsum(counts)
    return [total[end - count : end] for end, count in zip(ends, counts, strict=True)]
