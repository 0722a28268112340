"""Which ranks of a job are up, and since when: a small table shared by fork server, template and ranks.

Each rank writes only its own cells, so no lock is needed. Times are CLOCK_BOOTTIME nanoseconds, comparable
between processes of a host.
"""

import fcntl
import mmap
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from emulator.futex import wait_while, wake_all

_ACCELERATED, _ANSWERS, _REFUTED, _ENDS, _LOST, _HEAD = 0, 1, 2, 3, 4, 5


@dataclass(frozen=True)
class JobStatus:
    """A look at a table. Counts are of local ranks; the `last_*_ns` are 0 while there is none. start_lost:
    the local rank without which the others could not start, + 1, or 0."""

    num_local: int
    entered: int
    ready: int
    last_entered_ns: int
    last_ready_ns: int
    accelerated: bool
    board_answers: int
    refuted: bool
    start_lost: int


class JobTable:
    """Table for `num_local` ranks, whose job has `directory` for its files; make it before the first fork."""

    def __init__(self, num_local: int, directory: Path) -> None:
        self.num_local, self.directory = num_local, directory
        self._said = directory / f"said-{os.getpid()}-{time.monotonic_ns()}"
        self._map = mmap.mmap(-1, 8 * (_HEAD + 6 * num_local))
        words = np.frombuffer(self._map, np.int64)
        self._head = words[:_HEAD]
        self._ends = self._head[_ENDS : _ENDS + 1].view(np.int32)[:1]
        columns = words[_HEAD:].reshape(6, num_local)
        self._entered, self._ready, self._ending, self._finalized, self._ended, self._starting = columns

    def entered(self, local_rank: int) -> None:
        """Note that this rank's program starts now."""
        self._entered[local_rank] = time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def ready(self, local_rank: int) -> None:
        """Note that this rank's MPI is up now."""
        self._ready[local_rank] = time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def starting(self, local_rank: int, by: int) -> None:
        """Note that this rank enters (`by` 1) or leaves (-1) a call in which all ranks meet to start; such
        calls may lie within each other."""
        self._starting[local_rank] += by

    def starting_ranks(self) -> list[int]:
        """Return the living local ranks that are in such a call."""
        return np.flatnonzero((self._starting > 0) & (self._ended == 0)).tolist()

    def set_start_lost(self, local_rank: int) -> None:
        self._head[_LOST] = local_rank + 1

    def ending(self, local_rank: int) -> None:
        """Note that this rank is about to finalise MPI."""
        self._ending[local_rank] = 1

    def finalized(self, local_rank: int) -> None:
        """Note that MPI_Finalize has returned on this rank."""
        self._finalized[local_rank] = 1

    def ended(self, local_rank: int) -> None:
        """Note that this rank's process has ended (the template does)."""
        self._ended[local_rank] = 1
        self._ends += 1
        wake_all(self._ends)

    def ends(self) -> tuple[int, list[int]]:
        """Return a number for `wait_for_end`, and the local ranks that have ended.

        (Of the comparison, which is a copy: NumPy refuses to list what changes while it counts.)
        """
        return int(self._ends[0]), np.flatnonzero(self._ended != 0).tolist()

    def wait_for_end(self, events: int) -> None:
        """Sleep until another rank ends than those `ends()` told with that number."""
        wait_while(self._ends, events)

    def say_once(self, text: str) -> None:
        """Print a line on stderr unless another rank of the job has printed the same one.

        The file is named by the table, not by the parent: a rank that outlives the template gets another.
        Where the directory has gone the job has been ended, and the rank that ended it has spoken.
        """
        try:
            fd = os.open(self._said, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)  # held while printing: whoever is silent may end the job
            if text not in self._said.read_text().splitlines():
                print(text, file=sys.stderr, flush=True)
                os.lseek(fd, 0, os.SEEK_END)
                os.write(fd, f"{text}\n".encode())
        finally:
            os.close(fd)

    def all_ending(self) -> bool:
        """Tell whether no rank here will do anything more that a finalising rank could help with."""
        return bool((self._ending | self._ended).all())

    def any_lost(self) -> bool:
        """Tell whether a rank ended without finalising: MPI_Finalize would wait for it for ever."""
        return bool(((self._ended != 0) & (self._ready != 0) & (self._finalized == 0)).any())

    def set_accelerated(self, on: bool) -> None:
        self._head[_ACCELERATED] = on

    def set_board(self, answers: int, refuted: bool) -> None:
        self._head[_ANSWERS], self._head[_REFUTED] = answers, refuted

    def status(self) -> JobStatus:
        h, e, r = self._head, self._entered, self._ready
        return JobStatus(
            self.num_local,
            int(np.count_nonzero(e)),
            int(np.count_nonzero(r)),
            int(e.max()),
            int(r.max()),
            bool(h[_ACCELERATED]),
            int(h[_ANSWERS]),
            bool(h[_REFUTED]),
            int(h[_LOST]),
        )
