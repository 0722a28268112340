"""Sums of published vectors, chunk by chunk, each added up once by whoever needs it first.

An asynchronous all-reduce may not need a rank between its start and its end: that rank may be busy elsewhere.
So a block is not its owner's to add up. All vectors are published when a rank comes here, the order of
additions is fixed, so two ranks that add up the same blocks at once write the same bytes. A chunk is the
blocks that lie side by side in memory: reading it from one end to the other is several times as fast as
reading one block of each rank. It is small, for who finds one begun and not done does it again: the host lets
another rank run in the middle of it ten times or so in an all-reduce of hundreds.

A rank that waits for the end of a call, and for nothing else, pledges that it will come: then the compiled
code leaves it the chunk that begins with its block and sleeps until all are done. So every rank maps the
pages of one chunk only, and none is added up twice. Who pledged and does not come (it died, it was frozen) is
waited for a tenth of a second of host time without a chunk done; then its chunks are added up by the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from collectives.buffers import Array, fill_short
from collectives.pieces import Bytes
from emulator import Device

if TYPE_CHECKING:
    from collectives.store import SharedStore

Fold = Callable[[Bytes], npt.NDArray[Any]]
"""uint8 [g, n] -> their sum, of n bytes."""
_DONE, _BEGUN, _MARKS = 0, 1, 4
_CHUNK = 1 << 14
_COMPILED = [("sum", "float32"), ("sum", "bfloat16")]
_PUBLISH, _ADD_MINE, _ADD_ALL, _TAKE, _PLEDGE = range(5)


class Sums:
    """Vectors of all ranks of a group in `size` blocks of `unit` bytes, and their sums.

    Under `shared` two marks for each chunk, the number of the call in either, say that somebody adds it up,
    and that its sums are there (stores are seen in order on x86). Under `rma` ranks cannot write for others,
    and each adds up all for itself.
    """

    def __init__(self, store: SharedStore, unit: int) -> None:
        self._store, self._unit, self._shared = store, unit, store.common
        self._parts = store.units(unit, store.size, chunk=_CHUNK)
        self._sums = store.units(unit, 1, after=self._parts)
        if self._shared:
            self._marks = store.units(8 * _MARKS, 1, after=self._sums)
        self._folded: Bytes | None = None
        self._call: Callable[[int, int, Bytes | None], object] = lambda what, call, raw: None

    def compile(self, device: Device, op: str, dtype: str) -> None:
        """Have all of this done by one compiled call each (`engine/sums.c`), if there is one for it."""
        store, parts = self._store, self._parts
        if device.compiled is None or not self._shared or not self._unit or (op, dtype) not in _COMPILED:
            return
        chunks = [parts.per_chunk, parts.chunks, store.size * parts.per_chunk * self._unit]
        shape = [store.size, store.rank, self._unit, *chunks, _COMPILED.index((op, dtype))]
        bases = [parts.base, self._sums.base, self._marks.base]
        self._call = device.compiled.sums(
            shape, [a.ctypes.data + base for base in bases for a in store.areas]
        )

    def publish(self, call: int, raw: Bytes) -> None:
        """Publish my vector, and that the sums of the chunk of my number are not there; before I enter."""
        if self._call(_PUBLISH, call, raw):
            return
        if self._shared:
            self._marks.publish(call, np.zeros(8 * _MARKS, np.uint8))
        self._parts.publish(call, raw)

    def pledge(self, call: int) -> None:
        """Say that I wait for the end of this call and then `add_all`; after `publish`, before I sleep."""
        self._call(_PLEDGE, call, None)

    def add_mine(self, call: int, fold: Fold) -> None:
        """See that the sum of my block is published when all have done so, after all have entered: by me, or
        by who has begun with its chunk."""
        if not self._unit or self._call(_ADD_MINE, call, None):
            return
        if self._shared:
            mine = self._store.rank // self._parts.per_chunk
            if self._marks_of(call)[mine, _BEGUN] != call:  # by now
                self._add_up(call, fold, mine)
        else:
            self._sums.publish(call, fold(self._parts.column(call, self._store.rank)).view(np.uint8))

    def add_all(self, call: int, fold: Fold) -> None:
        """See that all sums are there, after all have entered."""
        if not self._unit or self._call(_ADD_ALL, call, None):
            return
        if self._shared:
            marks, mine = self._marks_of(call), self._store.rank // self._parts.per_chunk
            for unless in (_BEGUN, _DONE):  # then what others have begun and I cannot wait for
                while (left := np.flatnonzero(marks[:, unless] != call)).size:
                    self._add_up(call, fold, int(left[np.searchsorted(left, mine) % left.size]))
        else:
            blocks = [fold(self._parts.column(call, block)) for block in range(self._store.size)]
            self._folded = np.stack(blocks).view(np.uint8)

    def take(self, call: int, array: Array) -> None:
        """Put the sums of all blocks into an array in C order; the last may be short."""
        if array.flags.c_contiguous and self._call(_TAKE, call, array.reshape(-1).view(np.uint8)):
            return
        if self._folded is not None:
            fill_short(array, self._folded)
            self._folded = None
        elif self._unit:
            self._sums.take(call, 0, array)

    def _marks_of(self, call: int) -> npt.NDArray[np.int64]:
        """The marks of all chunks, int64 [c, 4]; others change them."""
        return self._marks.column(call, 0).view(np.int64)[: self._parts.chunks]

    def _add_up(self, call: int, fold: Fold, chunk: int) -> None:
        """Add up a chunk."""
        mine = self._marks.of_rank(call, chunk, 0).view(np.int64)
        mine[_BEGUN] = call
        with np.errstate(all="ignore"):  # of what lies behind the last unit
            total = fold(self._parts.chunk(call, chunk)).view(np.uint8)
        self._sums.write(call, chunk * self._parts.per_chunk, total)
        mine[_DONE] = call
