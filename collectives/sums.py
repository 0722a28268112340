"""Sums of published vectors, block by block, each added up once by whoever needs it first.

An asynchronous all-reduce may not need a rank between its start and its end: that rank may be busy elsewhere.
So a block is not its owner's to add up. All vectors are published when a rank comes here, the order of
additions is fixed, so two ranks that add up the same block at once write the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from collectives.pieces import Bytes

if TYPE_CHECKING:
    from collectives.store import SharedStore

Fold = Callable[[Bytes], npt.NDArray[Any]]
"""uint8 [g, unit] -> their sum."""


class Sums:
    """Vectors of all ranks of a group in `size` blocks of `unit` bytes, and their sums.

    Under `shared` a mark beside each sum says that it is there (the number of the call, after the sum: stores
    are seen in order on x86). Under `rma` ranks cannot write for others, and each adds up all for itself.
    """

    def __init__(self, store: SharedStore, unit: int) -> None:
        self._store, self._unit, self._shared = store, unit, store.common
        self._parts = store.units(unit, store.size)
        if self._shared:
            self._sums = store.units(unit, 1, after=self._parts)
            self._marks = store.units(8, 1, after=self._sums)

    def publish(self, call: int, raw: Bytes) -> None:
        """Publish my vector, and that the sum of my block is not there yet; before I enter."""
        if self._shared:
            self._marks.publish(call, np.zeros(8, np.uint8))
        self._parts.publish(call, raw)

    def all(self, call: int, fold: Fold) -> Bytes:
        """The sums of all blocks, uint8 [g, unit], after all have entered; valid until my next call."""
        size, rank = self._store.size, self._store.rank
        if not self._shared:
            blocks = [fold(self._parts.column(call, block)) for block in range(size)]
            return np.stack(blocks).view(np.uint8)
        marks = self._marks.column(call, 0).view(np.int64)[:, 0]
        for block in ((rank + np.flatnonzero(np.roll(marks, -rank) != call)) % size).tolist():
            if marks[block] != call:  # by now
                self._sums.of_rank(call, block, 0)[:] = fold(self._parts.column(call, block)).view(np.uint8)
                self._marks.of_rank(call, block, 0)[:] = np.array([call]).view(np.uint8)
        return self._sums.column(call, 0)
