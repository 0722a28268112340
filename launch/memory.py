"""Sample what a run holds: proportional set size (PSS), summed over every process of the run.

Reading one rank's smaps_rollup costs the kernel a walk over all its mappings (1 to 5 ms), so a sample is
taken in slices and the pause between samples grows with what a sample has cost.
"""

import time
from pathlib import Path

from launch.osproc import descendants

_SLICE = 32
_LEAST_PAUSE_S = 3.0
_PAUSE_PER_COST = 8.0


def pss_bytes(pid: int) -> int:
    """Return a process's PSS, 0 when it is gone."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    return 0


def _has_ended(pid: int) -> bool:
    """Whether a process is gone, or dead and not yet waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")
    except OSError:
        return True


class PssSampler:
    """Peak PSS of the processes `roots` and all their descendants.

    Call `step()` often; it does at most one slice of work. A sample during which a process went is dropped:
    what processes share moves to those that stay, and would be counted in more than one of them.
    """

    def __init__(self, roots: list[int]) -> None:
        self.roots = roots
        self.peak_bytes = 0
        self._left: list[int] = []
        self._sum = 0
        self._torn = False
        self._cost_s = 0.0
        self._next_s = 0.0

    def step(self) -> None:
        now = time.monotonic()
        if not self._left:
            if now < self._next_s:
                return
            found = {*self.roots, *(d for r in self.roots for d in descendants(r))}
            self._left = sorted(pid for pid in found if not _has_ended(pid))
            self._sum, self._torn, self._cost_s = 0, False, 0.0
        for pid in self._left[:_SLICE]:
            held = pss_bytes(pid)
            self._sum += held
            self._torn |= not held
        self._left = self._left[_SLICE:]
        done = time.monotonic()
        self._cost_s += done - now
        if not self._left:
            if not self._torn:
                self.peak_bytes = max(self.peak_bytes, self._sum)
            self._next_s = done + max(_LEAST_PAUSE_S, _PAUSE_PER_COST * self._cost_s)
