"""A rank that ends before all have started: the others' start never ends, and somebody has to say so.

MPI_Init and `emulator.init` are collective. Where a death does not end the job (`--keep-going`, mpirun
--continuous) Open MPI waits in them for the dead rank for ever. So once nobody has come further for a while,
whoever is inside them is ended. A rank that died right after the last of these meetings holds nobody up: the
others come out one by one, and nothing happens.
"""

import time

from launch.jobtable import JobTable

PATIENCE_S = 5.0
"""Host seconds in which no rank's start has ended or begun."""


class LostStart:
    """What the template knows of it.

    Args:
        table: the job's.
    """

    def __init__(self, table: JobTable) -> None:
        self._table = table
        self._next_s = 0.0
        self._lost = -1
        self._seen: list[int] = []

    def note_end(self, local_rank: int) -> None:
        """A rank of the job has ended."""
        if not self._next_s:
            self._lost, self._seen = local_rank, self._table.starting_ranks()
            self._next_s = time.monotonic() + PATIENCE_S

    @property
    def patience_s(self) -> float:
        """When to look again, seconds from now; negative if there is no need to."""
        return max(0.0, self._next_s - time.monotonic()) if self._next_s else -1.0

    def stuck(self) -> list[int]:
        """Local ranks whose start cannot end any more."""
        if not self._next_s or time.monotonic() < self._next_s:
            return []
        self._next_s = time.monotonic() + PATIENCE_S
        before, self._seen = self._seen, self._table.starting_ranks()
        if not self._seen or self._seen != before:
            return []
        self._table.set_start_lost(self._lost)
        return self._seen
