"""What one rank knows of its messages: which of its calls are under way and which envelopes nobody took.

The engine matches; this module only follows its records, in key order, each rank its own. Pure: records go
in, finished calls and findable envelopes come out.

    IN_UNEXPECTED  an envelope came and no receive was posted for it: it can be probed
    IN_MATCH       a receive of mine has its message; an eager one has its payload too
    IN_DONE        a rendezvous is over, for its receiver or its sender; or a receive was cancelled
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from emulator.engine.posts import IN_DONE, IN_MATCH, IN_UNEXPECTED, ST_FLUSH
from emulator.posting import InboxRecord
from memsem.mpi_errors import ERR_TRUNCATE, SUCCESS
from memsem.status import ANY_SOURCE, ANY_TAG

Bytes = npt.NDArray[np.uint8]
LENGTH, NUMBERS, KINDS = 42, 16, 4
"""Bits of a message's length, of its number and of its kind in the word that travels with it."""
NUMBER_BITS = 56
"""A call's number is the low part of its records' `user_b`; the high byte says whose records they are."""


class Envelope(NamedTuple):
    """A message that has arrived and that no receive has taken. source: rank in the whole pod."""

    context: int
    source: int
    tag: int
    nbytes: int


@dataclass(eq=False)
class Operation:
    """A send or a receive between its call and its end.

    Attributes:
        call: how a report names it.
        sink: takes the payload of a receive; None for sends.
        capacity: bytes a receive has room for.
        matched, done: how far it is. cancelled: it ended without a message.
        error: SUCCESS or ERR_TRUNCATE.
        source, tag, nbytes: of the message received; the source as rank in the whole pod.
        number: which of the source's messages to me it is, modulo 2**16.
        kind: what the sender said its elements are (`Endpoint.send`), below 2**4; 0 if it did not.
        eager: the payload came with the envelope.
        file_id, file_offset: where the payload is staged.
        context, seq: of a receive, by which the engine knows it.
    """

    call: str = ""
    sink: Callable[[Bytes], None] | None = None
    capacity: int = 0
    matched: bool = False
    done: bool = False
    cancelled: bool = False
    error: int = SUCCESS
    source: int = ANY_SOURCE
    tag: int = ANY_TAG
    nbytes: int = 0
    number: int = 0
    kind: int = 0
    eager: bool = False
    file_id: int = -1
    file_offset: int = 0
    context: int = 0
    seq: int = 0


def packed(nbytes: int, eager: bool, number: int = 0, kind: int = 0) -> int:
    """Say in one word what the receiver must know of a message: the kind of its elements (below 2**4), which
    of the sender's messages to it this is (modulo 2**16), its length (below 2**42), and how it travels."""
    return (kind << NUMBERS | number % (1 << NUMBERS)) << LENGTH + 1 | nbytes << 1 | eager


def length_of(word: int) -> int:
    """Return the bytes a `packed` word speaks of."""
    return word >> 1 & ((1 << LENGTH) - 1)


class Mailbox:
    """Calls under way by number, and unexpected envelopes in the order they came."""

    def __init__(self) -> None:
        self._open: dict[int, Operation] = {}
        self._unexpected: dict[int, list[Envelope]] = {}
        self._next = 1

    def open(self, operation: Operation) -> int:
        """Take up a call whose end a record will tell; returns its number, for `user_b`."""
        number = self._next
        self._next += 1
        self._open[number] = operation
        return number

    def take(self, record: InboxRecord) -> Operation | None:
        """Follow one record; returns the receive whose payload can be fetched now, if it says so."""
        if record.kind == IN_UNEXPECTED:
            found = Envelope(record.context, record.rank, record.tag, length_of(record.value))
            self._unexpected.setdefault(record.context, []).append(found)
            return None
        number = record.user_b & ((1 << NUMBER_BITS) - 1)
        if record.kind == IN_MATCH:
            return self._match(number, record)
        return self._end(number, record) if record.kind == IN_DONE else None

    def _match(self, number: int, record: InboxRecord) -> Operation | None:
        operation = self._open[number]
        operation.matched = True
        operation.nbytes, operation.eager = length_of(record.value), bool(record.value & 1)
        operation.number = record.value >> LENGTH + 1 & ((1 << NUMBERS) - 1)
        operation.kind = record.value >> LENGTH + 1 + NUMBERS
        operation.source, operation.tag = record.rank, record.tag
        operation.file_id, operation.file_offset = record.file_id, record.file_offset
        operation.error = ERR_TRUNCATE if operation.nbytes > operation.capacity else SUCCESS
        self._forget(Envelope(record.context, record.rank, record.tag, operation.nbytes))
        if not operation.eager:
            return None
        del self._open[number]
        operation.done = True
        return operation

    def _end(self, number: int, record: InboxRecord) -> Operation | None:
        operation = self._open.pop(number)
        operation.done = True
        operation.cancelled = record.status == ST_FLUSH
        return operation if operation.matched else None

    def _forget(self, envelope: Envelope) -> None:
        """A receive took this message: it can be probed no longer. (None was unexpected where the receive was
        posted first.) Of equal envelopes the engine takes the oldest."""
        waiting = self._unexpected.get(envelope.context, [])
        if envelope in waiting:
            waiting.remove(envelope)

    def find(self, context: int, source: int, tag: int) -> Envelope | None:
        """Return the oldest unexpected envelope of `context` from `source` with `tag` (or any), if there is
        one."""
        for envelope in self._unexpected.get(context, []):
            if source in (ANY_SOURCE, envelope.source) and tag in (ANY_TAG, envelope.tag):
                return envelope
        return None

    @property
    def under_way(self) -> list[str]:
        """The calls that have not ended, oldest first."""
        return [operation.call for operation in self._open.values()]
