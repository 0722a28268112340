"""Contents of benchmark buffers and what a collective must make of them, exact in every element type. Pure.

Element i of rank r is 1 to 7 on eight neighbouring ranks and 0 elsewhere (for prod: 2 on one rank, else 1),
so every sum fits in int8 and is exact in bfloat16.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_SHARE = 8
_NUMPY = {"half": "float16", "float": "float32", "double": "float64", "bfloat16": "uint16"}


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """Type of an array that holds elements of an nccl-tests type."""
    return np.dtype(_NUMPY.get(dtype, dtype))


def encode(values: Array, dtype: str) -> Array:
    """Small integers as elements of a type."""
    if dtype == "bfloat16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(numpy_dtype(dtype))


def values(rank: int, start: int, count: int, ranks: int, redop: str) -> Array:
    """int64 [count]: elements start, start + 1, ... of a rank."""
    i = np.arange(start, start + count)
    mine = (rank + i) % ranks
    return np.where(mine == 0, 2, 1) if redop == "prod" else (mine < _SHARE) * (1 + i % 7)


def reduced(start: int, count: int, ranks: int, redop: str) -> Array:
    """int64 [count]: what a reduction over all ranks makes of these elements."""
    if redop == "prod":
        return np.full(count, 2)
    one = 1 + np.arange(start, start + count) % 7
    if redop == "sum":
        return one * min(_SHARE, ranks)
    return one if redop == "max" or ranks <= _SHARE else np.zeros(count, np.int64)


def sent(coll: str, rank: int, count: int, ranks: int, redop: str) -> Array:
    """int64: the send buffer of a rank. count: elements of a block, or of the buffer."""
    blocks = ranks if coll in ("reduce_scatter", "all_to_all", "scatter") else 1
    return values(rank, 0, count * blocks, ranks, redop)


def wanted(coll: str, rank: int, count: int, ranks: int, redop: str, root: int) -> Array:
    """int64: what the receive buffer of a rank must hold; empty where nothing is received."""
    if coll == "all_reduce" or (coll == "reduce" and rank == root):
        return reduced(0, count, ranks, redop)
    if coll == "reduce_scatter":
        return reduced(rank * count, count, ranks, redop)
    if coll == "all_gather" or (coll == "gather" and rank == root):
        return np.concatenate([values(r, 0, count, ranks, redop) for r in range(ranks)])
    if coll == "all_to_all":
        return np.concatenate([values(r, rank * count, count, ranks, redop) for r in range(ranks)])
    if coll == "scatter":
        return values(root, rank * count, count, ranks, redop)
    return values(root, 0, count, ranks, redop) if coll == "broadcast" else np.empty(0, np.int64)
