"""An mpirun that does not end though its ranks have.

PRRTE 3 (Open MPI 5.0.11) sometimes releases a job it has freed before, where survivors of a killed rank end
with an error under --continuous: its main thread then sleeps on that job's lock for ever, deaf to SIGTERM.
"""

import time

from launch import osproc

_LOOK_S = 1.0


class Overdue:
    """Whether an mpirun has gone on without a child, after it had some, for longer than it can need.

    Args:
        pid: the mpirun.
        patience_s: how long it may, host time. mpirun needs milliseconds; a loaded host gets a minute.
    """

    def __init__(self, pid: int, patience_s: float = 60.0) -> None:
        self._pid, self._patience_s = pid, patience_s
        self._next_look_s = self._alone_since_s = 0.0
        self._had_children = False

    def __call__(self) -> bool:
        now_s = time.monotonic()
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + _LOOK_S
            self._look(now_s)
        return bool(self._alone_since_s) and now_s - self._alone_since_s >= self._patience_s

    def _look(self, now_s: float) -> None:
        if osproc.children([self._pid]):
            self._had_children, self._alone_since_s = True, 0.0
        elif self._had_children and not self._alone_since_s:
            self._alone_since_s = now_s
