"""Schedules: what one rank sends and waits for, step by step, as tables; and the shape of a collective.

    for each step: compute_ps pass; its sends leave; wait until `word` holds `value`

Words and peers are numbers of a group here; `collectives.movement` binds them to the machine. Words count
signals and are never reset: a step waits for what has come in this call. A word is either waited for one
peer's signals alone, or for the last of its signals in the step, so that an early signal of another is never
taken for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from emulator.engine.api import ADD, GE
from emulator.engine.schedules import SEND_DTYPE, STEP_DTYPE

Table = np.ndarray[Any, np.dtype[Any]]
Int64 = npt.NDArray[np.int64]
SIGNAL_BYTES = 8
"""Charged for a signal without data: a ready flag, a release, a step of a barrier."""
RECORD_BYTES = 32
"""Charged for a record of a full-mesh barrier."""


class Schedule(NamedTuple):
    """Tables of STEP_DTYPE and SEND_DTYPE, and how many signals each word has had at the end."""

    steps: Table
    sends: Table
    signals: dict[int, int]


_MOST_PLAIN = 1 << 31


class Exchange(NamedTuple):
    """One n-to-n exchange of records: bytes for each rank of the group, alike or int64 [g].

    tail_ps: computed by each rank after its last record is there (which has the price of a call, too).
    """

    record_bytes: int | Int64
    tail_ps: int = 0

    @property
    def plain_bytes(self) -> int:
        """Bytes of each record; -1 unless all are alike and not too long."""
        size = self.record_bytes
        return size if isinstance(size, int) and size <= _MOST_PLAIN else -1


Flow = Exchange | Schedule


class Shape(NamedTuple):
    """What an algorithm is asked for.

    size, rank: of the group. sizes: priced bytes, of every block alike or int64 [g]; which block that is says
    the operation (see `collectives.algorithms`). root: of rooted operations. nodes: node of each rank.
    hop_ps: latency to the farthest.
    """

    size: int
    rank: int
    sizes: int | Int64 = 0
    root: int = 0
    nodes: tuple[int, ...] = ()
    hop_ps: int = 0

    @property
    def half(self) -> int:
        """Words of one phase; the second phase's begin here."""
        return (self.size - 1).bit_length() + 2

    def all_sizes(self) -> Int64:
        """Bytes of each rank's block, int64 [g]."""
        return np.broadcast_to(np.asarray(self.sizes, np.int64), self.size)

    def one_size(self) -> int:
        """Bytes of a block, all alike."""
        assert isinstance(self.sizes, int)
        return self.sizes


class Builder:
    """Puts a schedule together, step by step; `base` is added to every word."""

    def __init__(self, base: int = 0) -> None:
        self._base = base
        self._steps: list[tuple[int, int, int, int, int, int]] = []
        self._sends: list[tuple[int, int, int, int, int, int, int]] = []
        self._came: dict[int, int] = {}

    def step(self, sends: Sequence[tuple[int, int, int]] = (), word: int = -1, signals: int = 1) -> Builder:
        """Add a step.

        Args:
            sends: (peer, bytes, word of the peer that counts one more) each.
            word: mine to wait for, -1 for none. signals: how many more than before it must have had.
        """
        first = len(self._sends)
        self._sends += [(int(nbytes), 1, 0, peer, at + self._base, ADD, 0) for peer, nbytes, at in sends]
        value, at = 0, -1
        if word >= 0 and signals:
            at = word + self._base
            value = self._came[at] = self._came.get(at, 0) + signals
        self._steps.append((0, value, first, len(sends), at, GE))
        return self

    def done(self) -> Schedule:
        """The schedule."""
        return Schedule(
            np.array(self._steps, STEP_DTYPE), np.array(self._sends, SEND_DTYPE), dict(self._came)
        )


def chain(peer: int, nbytes: npt.ArrayLike, word: int) -> Schedule:
    """As many steps as there are sizes: send one to `peer`, wait for one more signal of `word`."""
    sizes = np.asarray(nbytes, np.int64)
    count = len(sizes)
    sends, steps = np.zeros(count, SEND_DTYPE), np.zeros(count, STEP_DTYPE)
    sends["peer"], sends["nbytes"], sends["word"], sends["value"], sends["op"] = peer, sizes, word, 1, ADD
    steps["first"], steps["count"], steps["word"], steps["cmp"] = np.arange(count), 1, word, GE
    steps["value"] = np.arange(1, count + 1)
    return Schedule(steps, sends, {word: count} if count else {})


def fan_out(peers: npt.NDArray[Any], nbytes: npt.ArrayLike, word: int, signals: int) -> Schedule:
    """One step: a put to each of `peers`, in order, then wait for `signals` of `word`."""
    sends = np.zeros(len(peers), SEND_DTYPE)
    sends["peer"], sends["nbytes"], sends["word"], sends["value"], sends["op"] = peers, nbytes, word, 1, ADD
    steps = np.array([(0, signals, 0, len(peers), word if signals else -1, GE)], STEP_DTYPE)
    return Schedule(steps, sends, {word: signals} if signals else {})


def joined(*parts: Schedule) -> Schedule:
    """Schedules one after the other; no two may wait for the same word."""
    steps, at = [], 0
    signals: dict[int, int] = {}
    for part in parts:
        moved = part.steps.copy()
        moved["first"] += at
        at += len(part.sends)
        steps.append(moved)
        assert not signals.keys() & part.signals.keys()
        signals |= part.signals
    return Schedule(np.concatenate(steps), np.concatenate([part.sends for part in parts]), signals)
