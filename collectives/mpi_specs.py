"""Buffers of MPI's collectives as rows of bytes: whole ones, a block for each rank, or blocks of any sizes.

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

Int64 = npt.NDArray[np.int64]


class InPlace:
    """The type of IN_PLACE."""

    def __repr__(self) -> str:
        return "<IN_PLACE>"


IN_PLACE = InPlace()


def is_in_place(spec: BufSpec) -> bool:
    """Whether a buffer is IN_PLACE."""
    return spec is IN_PLACE


def bytes_of(buffer: Buffer) -> Bytes:
    """The bytes that travel: a view where they lie in a row, else a copy."""
    return buffer.pack()


def store(buffer: Buffer, raw: Bytes, wanted: bool = True) -> Callable[[], None] | None:
    """What is left to do when `raw` (of `bytes_of`) has been written to: nothing where it is a view."""
    return None if buffer.datatype.is_contiguous or not wanted else lambda: buffer.unpack(raw)


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


def vector_of(spec: BufSpec, blocks: int, writable: bool) -> tuple[Bytes, Int64, Int64]:
    """(bytes of all the memory, bytes of each block, byte at which each begins).

    Raises:
        ValueError: without counts, the elements are not so many equal blocks.
        Exception: ERR_COUNT, counts or displacements that are not one for each rank or beyond the memory;
        ERR_TYPE, a datatype with gaps. And as `parse`.
    """
    memory, counts, displs, kind = _items(spec)
    whole = parse(memory if kind is None else [memory, kind], writable)
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
    return whole.memory, sizes, starts


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
