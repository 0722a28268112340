"""Buffers of MPI's collectives as rows of elements: whole ones, a block for each rank, or of any sizes.

    [array, counts] | [array, counts, type] | [array, (counts, displs), type] | [array, counts, displs, type]

Counts and displacements of the last are in elements, one for each rank; without counts the blocks are equal,
without displacements they are dense. `IN_PLACE` stands for a buffer that is the other one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from memsem.bufspec import Buffer, BufSpec, parse
from memsem.datatypes import Bytes, Datatype
from memsem.mpi_errors import ERR_COUNT, ERR_TYPE, failure

Array = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]
_KINDS = {
    "?": "C_BOOL CXX_BOOL", "i1": "SIGNED_CHAR INT8_T INTEGER1 CHAR", "u1": "UNSIGNED_CHAR UINT8_T BYTE",
    "i2": "SHORT INT16_T INTEGER2", "u2": "UNSIGNED_SHORT UINT16_T BFLOAT16_T", "f2": "FLOAT16_T",
    "i4": "INT INT32_T INTEGER INTEGER4 LOGICAL", "u4": "UNSIGNED UINT32_T", "f4": "FLOAT REAL REAL4",
    "i8": "LONG LONG_LONG INT64_T AINT COUNT OFFSET INTEGER8",
    "u8": "UNSIGNED_LONG UNSIGNED_LONG_LONG UINT64_T",
    "f8": "DOUBLE DOUBLE_PRECISION REAL8", "c8": "C_FLOAT_COMPLEX CXX_FLOAT_COMPLEX COMPLEX COMPLEX8",
    "c16": "C_DOUBLE_COMPLEX CXX_DOUBLE_COMPLEX DOUBLE_COMPLEX COMPLEX16", "g": "LONG_DOUBLE",
}  # fmt: skip
DTYPES = {f"MPI_{name}": np.dtype(code) for code, names in _KINDS.items() for name in names.split()}
"""MPI's basic types as NumPy has them."""


class InPlace:
    """The type of IN_PLACE."""

    def __repr__(self) -> str:
        return "<IN_PLACE>"


IN_PLACE = InPlace()


def is_in_place(spec: BufSpec) -> bool:
    """Whether a buffer is IN_PLACE."""
    return spec is IN_PLACE


def elements_of(buffer: Buffer) -> Array:
    """What travels, as elements of the basic type that its datatype is made of (bytes where of several): so
    ranks that mean different types are found. A view where they lie in a row, else a copy."""
    return _as_elements(buffer.pack(), buffer.datatype)


def _as_elements(raw: Bytes, datatype: Datatype) -> Array:
    kind = DTYPES.get(datatype.base)
    return raw if kind is None else raw[: raw.size // kind.itemsize * kind.itemsize].view(kind)


def store(buffer: Buffer, given: Array, wanted: bool = True) -> Callable[[], None] | None:
    """What is left to do when `given` (of `elements_of`) has been written to: nothing where it is a view."""
    if buffer.datatype.is_contiguous or not wanted:
        return None
    return lambda: buffer.unpack(given.view(np.uint8))


def blocks_of(spec: BufSpec, blocks: int, writable: bool) -> Buffer:
    """A buffer of equal blocks; a count in it is that of one block.

    Raises:
        ValueError: the elements are not so many equal blocks. And as `parse`.
    """
    counted = isinstance(spec, list | tuple) and len(spec) in (2, 3, 4)
    if counted and isinstance(spec[1], int | np.integer):
        spec = [spec[0], int(spec[1]) * blocks, *spec[2:]]
    buffer = parse(spec, writable)
    if buffer.count % blocks:
        raise ValueError(
            f"message: number of datatype items {buffer.count} is not a multiple of the required number of "
            f"blocks {blocks}"
        )
    return buffer


def vector_of(spec: BufSpec, blocks: int, writable: bool) -> tuple[Array, Int64, Int64]:
    """(elements of all the memory, as `elements_of`; how many each block has; at which each begins).

    Raises:
        ValueError: without counts, the elements are not so many equal blocks.
        Exception: ERR_COUNT, counts or displacements that are not one for each rank or beyond the memory;
        ERR_TYPE, a datatype with gaps. And as `parse`.
    """
    given, counts, displs, kind = _items(spec)
    whole = parse(given if kind is None else [given, kind], writable)
    if not whole.datatype.is_contiguous:
        raise failure(ERR_TYPE, f"{whole.datatype!r} has gaps; blocks of it are not carried", value=kind)
    if counts is None:
        counts = [blocks_of(spec, blocks, writable).count // blocks] * blocks
    sizes = _numbers("counts", counts, blocks) * whole.datatype.size
    starts = np.cumsum(sizes) - sizes
    if displs is not None:
        starts = _numbers("displacements", displs, blocks) * whole.datatype.size
    past = np.flatnonzero((starts + sizes > whole.memory.size) & (sizes > 0))
    if past.size:
        first = int(past[0])
        text = f"the block of rank {first} ends at byte {starts[first] + sizes[first]}"
        raise failure(ERR_COUNT, f"{text} of {whole.memory.size}", value=int(sizes[first]))
    memory = _as_elements(whole.memory, whole.datatype)
    return memory, sizes // memory.itemsize, starts // memory.itemsize


def _items(spec: BufSpec) -> tuple[Any, Any, Any, Any]:
    """Memory, counts, displacements and type; None where it says nothing."""
    if not isinstance(spec, list | tuple):
        return spec, None, None, None
    if len(spec) == 4:
        return spec[0], spec[1], spec[2], spec[3]
    if len(spec) not in (2, 3):
        raise ValueError("message: expecting 2 to 4 items")
    counts, kind = spec[1], spec[2] if len(spec) == 3 else None
    if len(spec) == 2 and isinstance(counts, Datatype | str):
        return spec[0], None, None, counts
    if isinstance(counts, list | tuple) and len(counts) == 2 and np.ndim(counts[0]) == 1:
        return spec[0], counts[0], counts[1], kind
    return spec[0], counts, None, kind


def _numbers(name: str, values: Any, blocks: int) -> Int64:
    numbers = np.asarray(values)
    if numbers.shape != (blocks,) or numbers.dtype.kind not in "iu" or (numbers < 0).any():
        text = f"{name} must be {blocks} whole numbers of at least 0, one for each rank"
        raise failure(ERR_COUNT, f"{text}; got {values!r}"[:300], value=None)
    return numbers.astype(np.int64)
