"""Races in the use of windows, found after the run: `python -m memsem.checker DIRECTORY`.

Two accesses of one place race when at least one writes and the program does not order them. Order is
computed from what the program *did to order them* (fence, quiet, waits on signals, barriers, atomics,
messages), not from the times it happened to see: a race is reported also in a run in which all went well.

    P0: put d; put_signal f            P1: wait f; load d        reported: f announces its own bytes only
    P0: put d; fence; put_signal f     P1: wait f; load d        ordered

A wait is ordered after the signals it could not have ended without. Four additions to one counter and a
wait for at least one: any of the four may have ended it, so none of their data are known to be there
(NVIDIA/nvshmem #84); waiting for at least four orders all. Where one of several signals must have come, what
*all* of them had behind them is known. The ranks' records are taken in virtual time, which the order above
always agrees with; records that meet at a barrier are taken at once.

Left out: accesses of `window.local` as plain memory (see `checked.py`); atomics against loads (an element is
read whole).
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy.typing as npt

from emulator.engine.api import SET
from memsem.checkfile import CHECK_DTYPE, Kind, read_check_files
from memsem.happens_before import READS, STRONG, TRACKED, Access, Known, Signal, Word, common, taken_by_wait

READ_OVERLAPS_PUT = "read overlaps an un-waited put"
UNORDERED_PUTS = "two unordered puts to one place"
SOURCE_REUSED = "source reused before completion"
_ACCESSES = {Kind.PUT, Kind.GET, Kind.GET_NBI, Kind.ATOMIC, Kind.LOAD, Kind.STORE}


class Race(NamedTuple):
    """A finding: what, whose memory and which bytes of it, and the two accesses as (rank, record, time)."""

    what: str
    home: int
    low: int
    high: int
    first: tuple[int, int, int]
    second: tuple[int, int, int]

    def __str__(self) -> str:
        ends = [f"rank {rank} record {at} at {ps} ps" for rank, at, ps in (self.first, self.second)]
        return f"{self.what}: bytes {self.low} to {self.high} of rank {self.home}: {', '.join(ends)}"


class Analysis:
    """One pass over the records of all ranks; `races` is what it found."""

    def __init__(self, files: Sequence[npt.NDArray[Any]]) -> None:
        self._files = [f.tolist() for f in files]
        self.n = n = len(files)
        self._known = [Known.nothing(n) for _ in range(n)]
        self._fences = [0] * n
        self._live: list[list[Access]] = [[] for _ in range(n)]
        self._words: dict[tuple[int, int], Word] = defaultdict(Word)
        self._wrote: dict[tuple[int, int, int], Known] = {}
        self._sent: dict[tuple[int, int, int], Known] = {}
        self._found: dict[tuple[Any, ...], Race] = {}

    @property
    def races(self) -> list[Race]:
        """In the order of their second access; one for each pair of ranks and place."""
        return sorted(self._found.values(), key=lambda r: (r.second[2], r.second, r.first))

    def run(self) -> list[Race]:
        """Go through all records, those of a rank in its order, ranks by time."""
        heads = [0] * self.n
        while rest := [r for r in range(self.n) if heads[r] < len(self._files[r])]:
            free = [r for r in rest if self._kind(r, heads[r]) != Kind.BARRIER]
            if free:
                rank = min(free, key=lambda r: (self._files[r][heads[r]][0], r))
                self._step(rank, heads[rank], dict(zip(_NAMES, self._files[rank][heads[rank]], strict=True)))
                moved = [rank]
            else:
                self._meet(rest, heads)
                moved = rest
            for rank in moved:
                heads[rank] += 1
                self._known[rank].points[rank] = heads[rank]
        return self.races

    def _kind(self, rank: int, index: int) -> int:
        return int(self._files[rank][index][_KIND])

    def _meet(self, ranks: list[int], heads: list[int]) -> None:
        """All are at a barrier (or have ended)."""
        total = Known.nothing(self.n)
        for rank in ranks:
            self._known[rank].points[rank] = heads[rank] + 1
            total.join(self._known[rank])
        for rank in ranks:
            self._known[rank] = total.copy()
        for home, live in enumerate(self._live):
            nobody = Access(-1, -1, Kind.PUT, 0, 0, 0, 0)
            self._live[home] = [a for a in live if not a.is_before(nobody, home, total)]

    def _step(self, rank: int, index: int, record: dict[str, int]) -> None:
        kind = Kind(record["kind"])
        if kind in _ACCESSES:
            self._access(rank, index, kind, record)
        if kind == Kind.PUT and record["word"] >= 0:
            self._signal(rank, index, record)
        handler = _HANDLERS.get(kind)
        if handler:
            handler(self, rank, index, record)

    def _access(self, rank: int, index: int, kind: Kind, record: dict[str, int]) -> None:
        home = record["home"]
        if kind == Kind.ATOMIC and record["op"]:
            self._atomic_edge(rank, home, record)
        me = Access(rank, index, kind, record["low"], record["high"], record["order"], record["time_ps"])
        if me.low >= me.high:
            return
        for other in self._live[home]:
            if other.conflicts(me) and not other.is_before(me, home, self._known[rank], self._fences[rank]):
                self._report(other, me, home)
        self._live[home].append(me)

    def _report(self, a: Access, b: Access, home: int) -> None:
        reads = a.kind in READS or b.kind in READS
        low, high = max(a.low, b.low), min(a.high, b.high)
        what = READ_OVERLAPS_PUT if reads else UNORDERED_PUTS
        race = Race(what, home, low, high, (a.rank, a.record, a.time_ps), (b.rank, b.record, b.time_ps))
        self._found.setdefault((what, home, low, high, a.rank, b.rank), race)

    def _signal(self, rank: int, index: int, record: dict[str, int]) -> None:
        known, home = self._known[rank].copy(), record["home"]
        known.points[rank] = index + 1
        known.single.add((rank, index))
        known.placed[rank, home] = max(self._fences[rank], known.placed.get((rank, home), 0))
        if record["order"] & STRONG:
            earlier = [a for a in self._live[home] if a.rank == rank and a.order & TRACKED]
            known.single |= {(rank, a.record) for a in earlier}
        self._words[home, record["word"]].sent.append(Signal(record["op"], record["value"], known))

    def _atomic_edge(self, rank: int, home: int, record: dict[str, int]) -> None:
        """An atomic is after the one whose value it found."""
        before = self._wrote.get((home, record["low"], record["value"]))
        if before is not None:
            self._known[rank].join(before)
        if record["seen"] != record["value"]:
            self._wrote[home, record["low"], record["seen"]] = self._known[rank].copy()

    def _wait(self, rank: int, index: int, record: dict[str, int]) -> None:
        word = self._words[rank, record["word"]]
        certain, some = taken_by_wait(word, record["op"], record["value"])
        for signal in certain:
            signal.taken = True
            word.base = signal.value if signal.op == SET else word.base + signal.value
            self._known[rank].join(signal.known)
        if some:
            self._known[rank].join(common([s.known for s in some]))

    def _reset(self, rank: int, index: int, record: dict[str, int]) -> None:
        word = self._words[rank, record["word"]]
        word.base = record["value"]
        word.sent = [s for s in word.sent if not s.taken]

    def _fence(self, rank: int, index: int, record: dict[str, int]) -> None:
        self._fences[rank] = index

    def _quiet(self, rank: int, index: int, record: dict[str, int]) -> None:
        self._known[rank].done[rank] = index

    def _done(self, rank: int, index: int, record: dict[str, int]) -> None:
        self._known[rank].single.add((rank, record["index"]))

    def _send(self, rank: int, index: int, record: dict[str, int]) -> None:
        self._sent[rank, record["home"], record["low"]] = self._known[rank].copy()

    def _receive(self, rank: int, index: int, record: dict[str, int]) -> None:
        sent = self._sent.get((record["home"], rank, record["low"]))
        if sent is not None:
            self._known[rank].join(sent)

    def _source(self, rank: int, index: int, record: dict[str, int]) -> None:
        at = (rank, record["index"], record["time_ps"])
        race = Race(SOURCE_REUSED, record["home"], record["low"], record["high"], at, (rank, index, at[2]))
        self._found[SOURCE_REUSED, rank, record["index"]] = race


_NAMES = CHECK_DTYPE.names or ()
_KIND = _NAMES.index("kind")
_HANDLERS = {
    Kind.WAIT: Analysis._wait,
    Kind.RESET: Analysis._reset,
    Kind.FENCE: Analysis._fence,
    Kind.QUIET: Analysis._quiet,
    Kind.DONE: Analysis._done,
    Kind.SEND: Analysis._send,
    Kind.RECEIVE: Analysis._receive,
    Kind.SOURCE: Analysis._source,
}


def find_races(files: Sequence[npt.NDArray[Any]]) -> list[Race]:
    """Find the races of a run.

    Args:
        files: the records of each rank, `CHECK_DTYPE`, ranks ascending.
    """
    return Analysis(files).run()


def main(words: Iterable[str]) -> int:
    """Print the findings of a run's directory; 1 if there are any, 2 if it holds no records."""
    words = list(words)
    if len(words) != 1:
        print("usage: python -m memsem.checker DIRECTORY", file=sys.stderr)
        return 2
    try:
        races = find_races(read_check_files(words[0]))
    except FileNotFoundError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for race in races:
        print(race)
    print(f"{len(races)} races")
    return 1 if races else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
