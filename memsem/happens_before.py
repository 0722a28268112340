"""What a point of a program has behind it: the clocks and signal words of the race checker. Pure.

`checker.py` walks through the records of a run and asks here whether one access is over before another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from emulator.engine.api import ADD, EQ, GE, GT, NE, SET
from memsem.checkfile import Kind

READS = frozenset({Kind.GET, Kind.GET_NBI, Kind.LOAD})
_AT_ONCE = frozenset({Kind.GET, Kind.LOAD, Kind.STORE})
STRONG, TRACKED = 2, 1
"""Bits of a put's place order: waits for tracked ones; is waited for."""


@dataclass
class Known:
    """What a point of a program has behind it.

    points: records of each rank that happened before, int64 [n].
    done: records of each rank whose operations are complete, int64 [n].
    placed: (rank, home) → records of the rank whose writes to that home are in its memory.
    single: (rank, record) of operations known complete one by one.
    """

    points: npt.NDArray[np.int64]
    done: npt.NDArray[np.int64]
    placed: dict[tuple[int, int], int] = field(default_factory=dict)
    single: set[tuple[int, int]] = field(default_factory=set)

    @classmethod
    def nothing(cls, n: int) -> Known:
        return cls(np.zeros(n, np.int64), np.zeros(n, np.int64))

    def copy(self) -> Known:
        return Known(self.points.copy(), self.done.copy(), dict(self.placed), set(self.single))

    def join(self, other: Known) -> None:
        """Everything the other has behind it is behind me too."""
        np.maximum(self.points, other.points, out=self.points)
        np.maximum(self.done, other.done, out=self.done)
        for key, value in other.placed.items():
            self.placed[key] = max(value, self.placed.get(key, 0))
        self.single |= other.single


def common(several: Sequence[Known]) -> Known:
    """What is behind each of several points."""
    result = several[0].copy()
    for other in several[1:]:
        np.minimum(result.points, other.points, out=result.points)
        np.minimum(result.done, other.done, out=result.done)
        result.placed = {k: min(v, other.placed[k]) for k, v in result.placed.items() if k in other.placed}
        result.single &= other.single
    return result


class Access(NamedTuple):
    """An access that something later may race with."""

    rank: int
    record: int
    kind: Kind
    low: int
    high: int
    order: int
    time_ps: int

    def is_before(self, later: Access, home: int, known: Known, fence: int = 0) -> bool:
        """Is it over before `later` touches the memory?

        `known` is behind the point of `later`, whose rank has made its last fence at record `fence`."""
        rank, index = self.rank, self.record
        if self.kind in _AT_ONCE:
            return bool(known.points[rank] > index)
        if known.done[rank] > index or (rank, index) in known.single:
            return True
        if self.kind == Kind.GET_NBI:
            return False
        if known.placed.get((rank, home), 0) > index:
            return True
        if rank != later.rank or later.kind not in (Kind.PUT, Kind.ATOMIC):
            return False  # neither a fence nor a strong place orders reads
        return fence > index or bool(later.order & STRONG and self.order & TRACKED)

    def conflicts(self, other: Access) -> bool:
        if self.high <= other.low or other.high <= self.low:
            return False
        kinds = {self.kind, other.kind}
        if kinds <= READS or kinds == {Kind.ATOMIC}:
            return False
        return not (Kind.ATOMIC in kinds and kinds & READS)


@dataclass
class Signal:
    """A signal on its way: what its data had behind them, and whether its receiver has waited for it."""

    op: int
    value: int
    known: Known
    taken: bool = False


@dataclass
class Word:
    """A signal word: its value as far as waits have established it, and the signals sent to it."""

    base: int = 0
    sent: list[Signal] = field(default_factory=list)


def holds(cmp: int, word: int, value: int) -> bool:
    """Does the engine's comparison hold between a word and a value?"""
    return (word == value, word != value, word > value, word >= value, word < value, word <= value)[cmp]


def taken_by_wait(word: Word, cmp: int, value: int) -> tuple[list[Signal], list[Signal]]:
    """Which signals a wait that has ended must have behind it, and among which it has at least one.

    Returns:
        (certain, some): `certain` are signals it could not have ended without; if there are none, one of
        `some` has come (empty: it may have ended without any).
    """
    waiting = [s for s in word.sent if not s.taken]
    if holds(cmp, word.base, value):
        return [], []
    adds = [s for s in waiting if s.op == ADD and s.value > 0]
    sets = [s for s in waiting if s.op == SET and holds(cmp, s.value, value)]
    if sets or not adds:
        return (sets, []) if len(sets) == 1 and not adds else ([], sets + adds)
    if cmp not in (EQ, GE, GT):
        return (adds, []) if len(adds) == 1 and cmp == NE else ([], adds)
    need = value - word.base + (cmp == GT)
    total = sum(s.value for s in adds)
    certain = [s for s in adds if total - s.value < need]
    return certain, [] if certain else adds
