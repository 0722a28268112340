"""Schedules: what one rank sends and waits for, step by step, as tables.

    for each step: compute_ps pass; its sends leave; wait until `word` holds `value`

Words and peers are numbers of a group here; `collectives.movement` binds them to the machine. Words count
signals and are never reset: a step waits for what has come in this call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from emulator.engine.api import ADD, GE

STEP_DTYPE = np.dtype(
    [("compute_ps", "i8"), ("value", "i8"), ("first", "i4"), ("count", "i4"), ("word", "i4"), ("cmp", "i4")]
)
"""compute_ps: passes first. value, word, cmp: what to wait for; word -1 for nothing. first, count: sends."""
SEND_DTYPE = np.dtype(
    [
        ("nbytes", "i8"), ("value", "i8"), ("start_ps", "i8"),
        ("peer", "i4"), ("word", "i4"), ("op", "i4"), ("plane", "i4"),
    ]
)  # fmt: skip
"""nbytes: charged. value, op: what happens to `word` of the peer at delivery."""
Table = np.ndarray[Any, np.dtype[Any]]
SIGNAL_BYTES = 8
"""Charged for a signal without data."""


class Schedule(NamedTuple):
    """Tables of STEP_DTYPE and SEND_DTYPE, and how many signals each word has had at the end."""

    steps: Table
    sends: Table
    signals: dict[int, int]


class Exchange(NamedTuple):
    """One n-to-n exchange of records: bytes for each rank of the group, alike or int64 [g]."""

    record_bytes: int | npt.NDArray[np.int64]


class Builder:
    """Puts a schedule together."""

    def __init__(self) -> None:
        self._steps: list[tuple[int, int, int, int, int, int]] = []
        self._sends: list[tuple[int, int, int, int, int, int, int]] = []
        self._came: dict[int, int] = {}

    def step(
        self,
        sends: Sequence[tuple[int, int, int]] = (),
        word: int = -1,
        signals: int = 1,
        compute_ps: int = 0,
    ) -> Builder:
        """Add a step.

        Args:
            sends: (peer, bytes, word of the peer that counts one more) each.
            word: mine to wait for, -1 for none. signals: how many more than before it must have had.
        """
        first = len(self._sends)
        self._sends += [(nbytes, 1, 0, peer, at, ADD, 0) for peer, nbytes, at in sends]
        value = 0
        if word >= 0:
            value = self._came[word] = self._came.get(word, 0) + signals
        self._steps.append((compute_ps, value, first, len(sends), word, GE))
        return self

    def done(self) -> Schedule:
        """The schedule."""
        return Schedule(
            np.array(self._steps, STEP_DTYPE), np.array(self._sends, SEND_DTYPE), dict(self._came)
        )


def fan_out(peers: npt.NDArray[np.int32], nbytes: npt.ArrayLike, word: int, signals: int) -> Schedule:
    """One step: a put to each of `peers`, in order, then wait for `signals` of `word`."""
    sends = np.zeros(len(peers), SEND_DTYPE)
    sends["peer"], sends["nbytes"], sends["word"], sends["value"], sends["op"] = peers, nbytes, word, 1, ADD
    steps = np.array([(0, signals, 0, len(peers), word if signals else -1, GE)], STEP_DTYPE)
    return Schedule(steps, sends, {word: signals})
