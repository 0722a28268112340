"""Getting to know each other: what real programs do over a socket before they can use a queue pair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from memsem.window import Window

if TYPE_CHECKING:
    from memsem.verbs.context import Context


class Exchange:
    """A place where every rank tells every rank some numbers. Collective: all ranks make one, alike.

    Args:
        context: this rank's NIC. count: most numbers a rank tells each rank at a time.
    """

    def __init__(self, context: Context, count: int = 8) -> None:
        self._device = context.device
        self._window = Window.create((context.num_ranks, count), np.int64, signals=0, device=context.device)
        self._count = count

    def all_to_all(self, mine: Sequence[Sequence[int]]) -> npt.NDArray[np.int64]:
        """Tell rank r the numbers `mine[r]` (collective).

        Returns: int64 [num_ranks, count], row r what rank r told me.

        Raises:
            UsageError: more than `count` numbers for a rank.
        """
        for rank, numbers in enumerate(mine):
            row = np.array(numbers, np.int64)
            self._window.put(rank, row, self._device.rank * self._count)
        self._device.barrier()
        told = self._window.local.copy()
        self._device.barrier()
        return told

    def all_gather(self, *numbers: int) -> npt.NDArray[np.int64]:
        """Tell everybody the same numbers; returns as `all_to_all` (collective)."""
        return self.all_to_all([numbers] * self._device.num_ranks)
