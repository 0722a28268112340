"""Contents of benchmark buffers and what a collective must make of them, exact in every element type. Pure.

Element i of rank r is 1 to 7 on eight neighbouring ranks and 0 elsewhere (for prod: 2 on one rank, else 1),
so every sum fits in int8 and is exact in bfloat16. Contents repeat after a few elements, so large buffers
are made of one period in their own type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from collectives.bench.shapes import unequal

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


def _repeated(start: int, count: int, period: int, dtype: str, of: Callable[[Array], Array]) -> Array:
    """Elements start, start + 1, ... of a function of the element's index with a period."""
    short = encode(of(np.arange(start, start + min(count, period))), dtype)
    return np.tile(short, -(-count // max(1, short.size)))[:count]


def values(rank: int, start: int, count: int, ranks: int, redop: str, dtype: str = "int64") -> Array:
    """[count] of a type: elements start, start + 1, ... of a rank."""

    def of(i: Array) -> Array:
        mine = (rank + i) % ranks
        return np.where(mine == 0, 2, 1) if redop == "prod" else (mine < _SHARE) * (1 + i % 7)

    return _repeated(start, count, 7 * ranks, dtype, of)


def reduced(start: int, count: int, ranks: int, redop: str, dtype: str = "int64") -> Array:
    """[count] of a type: what a reduction over all ranks makes of these elements."""

    def of(i: Array) -> Array:
        if redop == "prod":
            return np.full(i.size, 2)
        one = 1 + i % 7
        if redop == "sum":
            return one * min(_SHARE, ranks)
        return one if redop == "max" or ranks <= _SHARE else 0 * one

    return _repeated(start, count, 7, dtype, of)


def sent(coll: str, rank: int, count: int, ranks: int, redop: str, dtype: str = "int64") -> Array:
    """Send buffer of a rank. count: elements of a block, or of the buffer."""
    if coll == "all_gather_v":
        return values(rank, 0, unequal(count, ranks)[rank], ranks, redop, dtype)
    blocks = ranks if coll in ("reduce_scatter", "all_to_all", "all_to_all_v", "scatter") else 1
    return values(rank, 0, count * blocks, ranks, redop, dtype)


def wanted(
    coll: str, rank: int, count: int, ranks: int, redop: str, root: int, dtype: str = "int64"
) -> Array:
    """What the receive buffer of a rank must hold; empty where nothing is received."""
    if coll == "all_reduce" or (coll == "reduce" and rank == root):
        return reduced(0, count, ranks, redop, dtype)
    if coll == "reduce_scatter":
        return reduced(rank * count, count, ranks, redop, dtype)
    if coll == "all_gather" or (coll == "gather" and rank == root):
        return np.concatenate([values(r, 0, count, ranks, redop, dtype) for r in range(ranks)])
    if coll == "all_gather_v":
        sizes = unequal(count, ranks)
        return np.concatenate([values(r, 0, sizes[r], ranks, redop, dtype) for r in range(ranks)])
    if coll == "all_to_all_v":
        tables = [around(count, r, ranks) for r in range(ranks)]
        return np.concatenate([
            values(r, sum(tables[r][:rank]), tables[r][rank], ranks, redop, dtype) for r in range(ranks)
        ])  # fmt: skip
    if coll == "all_to_all":
        return np.concatenate([values(r, rank * count, count, ranks, redop, dtype) for r in range(ranks)])
    if coll == "scatter":
        return values(root, rank * count, count, ranks, redop, dtype)
    full = count if coll == "broadcast" else 0
    return values(root, 0, full, ranks, redop, dtype)


def buffers(coll: str, rank: int, given: Array, received: int, ranks: int) -> tuple[Array, Array]:
    """Send and receive buffer of an operation in place, as nccl-tests lays them out: where one is made of a
    block for each rank, the other is the rank's block in it; else they are the same.

    Args:
        given: what is sent. received: elements of the receive buffer (of a root, where there is one).
    """
    if coll == "all_gather_v":
        sizes = unequal(received, ranks)
        whole = np.empty(sum(sizes), given.dtype)
        return whole[sum(sizes[:rank]) :][: sizes[rank]], whole
    if coll in ("all_gather", "gather"):
        whole = np.empty(given.size * ranks, given.dtype)
        return whole[rank * given.size :][: given.size], whole
    whole = np.empty(given.size, given.dtype)
    block = whole[rank * received :][:received] if coll in ("reduce_scatter", "scatter") else whole
    return whole, block


def around(count: int, rank: int, ranks: int) -> list[int]:
    """Elements rank `rank` sends each rank in an all_to_all_v, by target."""
    sizes = unequal(count, ranks)
    return [sizes[(target - rank) % ranks] for target in range(ranks)]
