"""The two ends of one transfer as state machines: what may move now, what to wait for. Pure: no device.

Both ends count slots of the ring for ever (`tail` filled, `head` emptied; modulo 2^32 in a record). The
sender fills as long as the ring has room; the receiver learns from a record how far it is filled, empties it,
and tells the sender.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from collectives.xccl.layout import CORES_SHIFT
from collectives.xccl.numbers import Numbers
from collectives.xccl.waves import TwoStage, Wave, local_ps, store_ps

_WRAP = 1 << 32


class Field(NamedTuple):
    """A metadata record as plain integers; the fields of `layout.FIELD_DTYPE`."""

    event: int
    chunk: int
    tail: int
    charged: int
    real: int

    @property
    def cores(self) -> int:
        """Cores of the transfer."""
        return self.charged >> CORES_SHIFT

    @property
    def nbytes(self) -> int:
        """Charged bytes of the transfer."""
        return self.charged & ((1 << CORES_SHIFT) - 1)


class Shares:
    """Which of the real bytes each wave carries: as its charged bytes, so equal where both are equal."""

    def __init__(self, waves: Sequence[Wave], real: int) -> None:
        ends = np.cumsum([wave.nbytes for wave in waves]).tolist()
        total = ends[-1]
        self._ends = [0, *(real * end // total if total else real for end in ends)]

    def of(self, index: int) -> tuple[int, int]:
        """First byte and end of a wave's share."""
        return self._ends[index], self._ends[index + 1]


class SendSide:
    """The sender's end.

    Args:
        waves: of the transfer. slots: of the ring. base: the ring's tail before it; the ring is empty.

    Attributes:
        posted: waves stored so far. acked: slots of this transfer the receiver has emptied.
    """

    def __init__(self, waves: Sequence[Wave], slots: int, base: int) -> None:
        self.waves, self.slots, self.base = waves, slots, base
        self.posted = self.acked = self._filled = 0
        chunks = np.array([wave.chunks for wave in waves])
        self._marks = np.cumsum(chunks)[np.array([wave.records > 0 for wave in waves])]

    @property
    def tail(self) -> int:
        """Slots ever filled."""
        return self.base + self._filled

    @property
    def all_posted(self) -> bool:
        """Whether every wave has been stored in the ring."""
        return self.posted == len(self.waves)

    @property
    def is_done(self) -> bool:
        """Every slot has been emptied."""
        return self.all_posted and self.acked == self._filled

    def has_room(self) -> bool:
        """Whether there is a next wave and it fits into the ring."""
        return not self.all_posted and self._next() <= self.acked + self.slots

    def fill(self) -> Wave:
        """Count the next wave as stored; returns it."""
        wave = self.waves[self.posted]
        self.posted, self._filled = self.posted + 1, self._filled + wave.chunks
        return wave

    def acknowledgements(self) -> int:
        """How many acknowledgements of this transfer there must be before there is anything more to do."""
        need = self._filled if self.all_posted else self._next() - self.slots
        return int(np.searchsorted(self._marks, need)) + 1

    def acknowledge(self, head: int) -> None:
        """The receiver has emptied the ring up to `head` (modulo 2^32)."""
        self.acked = (head - self.base) % _WRAP

    def _next(self) -> int:
        return self._filled + self.waves[self.posted].chunks


def first_fill(waves: Sequence[Wave], slots: int) -> tuple[int, int]:
    """Slots and records a sender stores before any acknowledgement: all there is of a refused transfer."""
    side, records = SendSide(waves, slots, 0), 0
    while side.has_room():
        records += side.fill().records > 0
    return side.tail, records


class ReceiveSide:
    """The receiver's end; it knows the waves once the first record is in.

    Args:
        event, real, cores: what the caller asked for. slots: of the ring. base: slots emptied before.
    """

    def __init__(self, event: int, real: int, cores: int, slots: int, base: int) -> None:
        self.event, self.real, self.cores, self.slots, self.base = event, real, cores, slots, base
        self.waves: Sequence[Wave] = ()
        self.emptied = self._slots = 0

    def is_news(self, field: Field) -> bool:
        """Whether a record is of this transfer and says more than was known: no other event, no old tail."""
        return field.event == self.event and 0 < self._ahead(field) <= self.slots

    def disagreement(self, field: Field) -> str:
        """What the sender does otherwise than I; "" if nothing."""
        if field.real != self.real:
            return f"the sender has {field.real} bytes, the receiver takes {self.real}"
        if field.cores != self.cores:
            return f"the sender uses {field.cores} AIV cores, the receiver {self.cores}"
        return ""

    def arrived(self, field: Field) -> int:
        """How many more waves are in the ring, by a record that is news."""
        room, known = self._ahead(field), self.emptied
        while known < len(self.waves) and self.waves[known].chunks <= room:
            room -= self.waves[known].chunks
            known += 1
        return known - self.emptied

    def empty(self) -> Wave:
        """Count the next wave as copied; returns it."""
        wave = self.waves[self.emptied]
        self.emptied, self._slots = self.emptied + 1, self._slots + wave.chunks
        return wave

    @property
    def head(self) -> int:
        """Slots ever emptied."""
        return self.base + self._slots

    @property
    def is_done(self) -> bool:
        """Whether every wave has been copied out."""
        return bool(self.waves) and self.emptied == len(self.waves)

    def _ahead(self, field: Field) -> int:
        return (field.tail - self.head) % _WRAP


def expected_ps(numbers: Numbers, cls: int, waves: Sequence[Wave], price_ps: int = 0) -> tuple[int, int]:
    """How long an undisturbed transfer by AIV cores takes when the ring never fills up.

    Args:
        price_ps: added before the receiver begins with what a record told it.

    Returns: until the receiver has copied the last byte, and until the sender knows.
    """
    send, receive = TwoStage.at(0), TwoStage.at(0)
    waiting: list[Wave] = []
    record_ps, done = 0, 0
    for wave in waves:
        send.advance(0, local_ps(numbers, wave), store_ps(numbers, cls, wave))
        record_ps = numbers.port_ps(cls, wave.records * numbers.record_bytes)
        send.write_end += record_ps
        waiting.append(wave)
        if not wave.records:
            continue
        arrival = send.write_end + numbers.latency_ps[cls] + price_ps
        for each in waiting:
            copy = local_ps(numbers, each)
            done = receive.advance(arrival, copy, copy)[1]
        waiting.clear()
    return done, done + numbers.latency_ps[cls] + record_ps
