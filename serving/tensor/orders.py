"""What the leader of a tensor-parallel group tells the other ranks before a step, as 32-bit numbers.

    released requests | transfers between tiers | prefixes found | segments

A segment brings its request's prompt the first time and from then on only what is new of its outputs, as
engines do; every rank then has requests alike, and makes the same batch of the same segments. Sampling and
all decisions are the leader's. Both sides are pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from emulator.errors import InternalError
from serving.kv.cache import Move, Transfer
from serving.request import Request, RequestSpec
from serving.scheduler import Segment

__all__ = ["Mirror", "Orders", "Teller"]

Words = NDArray[np.int32]
_MOVES = tuple(Move)


@dataclass(frozen=True)
class Orders:
    """One step of a group.

    released: requests whose KV was given back since the last step, in order. segments: the batch. tables:
    the pages of each, where they are lent by the leader. transfers, found: as `Forward.move` takes them.
    """

    released: Sequence[int] = ()
    segments: Sequence[Segment] = ()
    tables: Sequence[Sequence[int]] = ()
    transfers: Sequence[Transfer] = ()
    found: Sequence[int] = ()


class Teller:
    """The leader's side: remembers what the others know."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}

    def write(self, orders: Orders) -> Words:
        """The orders as int32 numbers; none if there is nothing to say."""
        if not (orders.segments or orders.released or orders.transfers or orders.found):
            return np.empty(0, np.int32)
        words: list[int] = []
        _write(words, orders.released)
        _write(
            words, [n for t in orders.transfers for n in (_MOVES.index(t.move), t.source, t.target, t.charge)]
        )
        _write(words, orders.found)
        for request_id in orders.released:
            self._known.pop(request_id, None)
        tables = orders.tables or [()] * len(orders.segments)
        words.append(len(orders.segments))
        for segment, table in zip(orders.segments, tables, strict=True):
            self._segment(words, segment, table)
        return np.array(words, np.int32)

    def settle(self, segments: Sequence[Segment], stay: Sequence[int]) -> Words:
        """After a step with drafts: how many rows of each segment stay, and the outputs they gave."""
        words: list[int] = []
        for segment, rows in zip(segments, stay, strict=True):
            request = segment.request
            words.append(rows)
            _write(words, request.outputs[self._known[request.spec.request_id] :])
            self._known[request.spec.request_id] = len(request.outputs)
        return np.array(words, np.int32)

    def _segment(self, words: list[int], segment: Segment, table: Sequence[int]) -> None:
        request, spec = segment.request, segment.request.spec
        known = self._known.get(spec.request_id)
        words += [
            spec.request_id, segment.start, segment.count, segment.priced_start, segment.priced_count,
            segment.samples, segment.decode, request.replayed, request.answered, known is None,
        ]  # fmt: skip
        if known is None:
            words += [spec.priced_prompt, spec.scale, spec.max_output]
            _write(words, spec.prompt.tolist())
        _write(words, request.outputs[known or 0 :])
        _write(words, request.drafts)
        _write(words, table)
        self._known[spec.request_id] = len(request.outputs)


@dataclass
class Mirror:
    """The other ranks' side: requests as the leader has them."""

    requests: dict[int, Request] = field(default_factory=dict)

    def read(self, words: Words) -> Orders:
        """The orders; requests that are released are forgotten."""
        if not len(words):
            return Orders()
        reader = _Reader(words.tolist())
        released, moves, found = reader.many(), reader.many(), reader.many()
        transfers = [
            Transfer(_MOVES[moves[i]], moves[i + 1], moves[i + 2], moves[i + 3])
            for i in range(0, len(moves), 4)
        ]
        for request_id in released:
            self.requests.pop(request_id, None)
        read = [self._segment(reader) for _ in range(reader.one())]
        if not reader.at_end:
            raise InternalError("orders of a tensor-parallel group: more was told than asked for")
        return Orders(
            released, [segment for segment, _ in read], [table for _, table in read], transfers, found
        )

    def settle(self, segments: Sequence[Segment], words: Words) -> list[int]:
        """Rows that stay of each of the step's segments; their requests have the outputs."""
        reader, stay = _Reader(words.tolist()), []
        for segment in segments:
            stay.append(reader.one())
            segment.request.outputs += reader.many()
        return stay

    def _segment(self, reader: _Reader) -> tuple[Segment, list[int]]:
        request_id, start, count, priced_start, priced_count, samples, decode, replayed, answered, is_new = (
            reader.some(10)
        )
        if is_new:
            priced_prompt, scale, max_output = reader.some(3)
            prompt = np.array(reader.many(), np.int64)
            spec = RequestSpec(request_id, 0, prompt, priced_prompt, scale, max_output, False, 0)
            self.requests[request_id] = Request(spec)
        request = self.requests[request_id]
        request.outputs += reader.many()
        request.drafts = reader.many()
        request.num_computed, request.replayed, request.answered = start, replayed, answered
        numbers = (start, count, priced_start, priced_count)
        return Segment(request, *numbers, samples=bool(samples), decode=bool(decode)), reader.many()


def _write(words: list[int], numbers: Sequence[int]) -> None:
    words.append(len(numbers))
    words += numbers


class _Reader:
    def __init__(self, words: list[int]) -> None:
        self._words, self._at = words, 0

    @property
    def at_end(self) -> bool:
        return self._at == len(self._words)

    def one(self) -> int:
        return self.some(1)[0]

    def some(self, count: int) -> list[int]:
        found = self._words[self._at : self._at + count]
        self._at += count
        if len(found) != count:
            raise InternalError("orders of a tensor-parallel group: less was told than asked for")
        return found

    def many(self) -> list[int]:
        return self.some(self.one())
