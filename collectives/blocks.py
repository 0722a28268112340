"""The blocks of one operation in the managed area, doubled by event parity, and the exchange that
announces them.

A record tells each target where its rows begin in the sender's block and how many there are. Both fit one
32-bit field: `first * (most + 1) + count`, where `most` is the most rows one rank can send to one other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from emulator import Device
from emulator.engine.api import ChainStep, ExchangeResult
from emulator.errors import UsageError
from emulator.pairs import PairSide
from emulator.rows import Int32, Plan, Records, RowFormat
from emulator.transport import Area

if TYPE_CHECKING:
    from collectives.moe_parts import OperationCosts

_CHUNK = 32
_FIELD = 2**31
"""Values of a record's field."""
LARGEST_SEND = math.isqrt(_FIELD) - 1
"""Rows a rank can have in its block, all of them perhaps for one other: n * (n + 1) places are in a field."""


def most_capacity(most: int) -> int:
    """Rows a block can take where one rank may send `most` of them to one other."""
    return (_FIELD - 1) // (most + 1)


@dataclass(frozen=True)
class Block:
    """Shape of one block: records it takes, their form, most records for one target."""

    capacity: int
    form: RowFormat
    most: int

    def __post_init__(self) -> None:
        """Check that a record's field can hold every place. Raises: UsageError."""
        if self.capacity > most_capacity(self.most):
            raise UsageError(
                f"expert exchange: {self.capacity} rows with up to {self.most} for one rank are too "
                f"many for a 32-bit record field; lower max_tokens or max_rows"
            )

    @property
    def chunk(self) -> int:
        """Records of a chunk, a power of two."""
        return min(_CHUNK, 1 << (self.capacity - 1).bit_length())

    @property
    def nbytes(self) -> int:
        """Bytes, whole chunks."""
        return -(-self.capacity // self.chunk) * self.chunk * self.form.record_bytes


class BlockPair:
    """The two blocks of one (micro-batch, operation), its channel and its event counter."""

    def __init__(self, device: Device, block: Block, base: int, channel: int, micro_batch: int) -> None:
        self._device, self._block, self._base, self.channel = device, block, base, channel
        self.most, self.micro_batch = block.most, micro_batch
        self._event = np.zeros(1, np.int64)
        self.posted_ps = 0
        self._members: Int32 | None = None
        self._all = [self._cut(base + parity * block.nbytes) for parity in (0, 1)]
        me = device.rank if device.transport.kind == "shared" else 0
        self._own = [Records(records.view[:, me : me + 1]) for records in self._all]
        for records in self._all:
            device.transport.populate(records.view[0])

    def _cut(self, base: int) -> Records:
        """The block at `base` of all ranks that are mapped here."""
        block = self._block
        memory, ranks = self._device.transport.piece(base, block.nbytes)
        return Records(memory.reshape(-1, ranks, block.chunk, block.form.record_bytes))

    def regroup(self, members: Int32) -> None:
        """From the next event on, number 0, only `members` (ascending ranks) take part. All of them call it,
        after a change of membership."""
        self._device.open_group(self.channel, members)
        self._members = members
        self._event[0] = 0

    def own(self) -> Records:
        """My block of the coming event."""
        return self._own[self._event.item() % 2]

    def exchange(
        self, plan: Plan | None, costs: OperationCosts, chain: Sequence[ChainStep] = ()
    ) -> ExchangeResult:
        """Announce my block of this event (None: no rows), wait for all records, pay for my pulls."""
        self._device.transport.publish()
        event, self.posted_ps = self.skip(), self._device.now_ps
        charged, fields = self._row(plan)
        return self._whole(self._device.exchange(
            self.channel, charged, costs.row_bytes, costs.meta_bytes,
            costs.pull_start_ps, costs.record_ps, chain, fields, event,
        ))  # fmt: skip

    def post(self, plan: Plan, costs: OperationCosts) -> None:
        """Announce only."""
        self._device.transport.publish()
        event, self.posted_ps = self.skip(), self._device.now_ps
        charged, fields = self._row(plan)
        self._device.exchange_post(self.channel, charged, costs.row_bytes, costs.meta_bytes, fields, event)

    def give_up(self, costs: OperationCosts) -> None:
        """Take part in this event without rows; everybody finds a row of another event and raises. A row of
        no bytes: it wakes who sleeps through events that bring it nothing."""
        self._device.transport.publish()
        event, size = self.skip(), self._device.num_ranks if self._members is None else self._members.size
        one = np.ones(size, np.int32)
        self._device.exchange(self.channel, one, 0, costs.meta_bytes, offsets=one, tag=-1 - event)

    def wait(self, costs: OperationCosts) -> ExchangeResult:
        """Wait for all records of the event I announced, pay for my pulls."""
        return self._whole(self._device.exchange_wait(self.channel, costs.pull_start_ps, costs.record_ps))

    def _row(self, plan: Plan | None) -> tuple[Int32 | None, Int32 | None]:
        """Counts and fields of a plan for the members."""
        if plan is None or self._members is None:
            return (None, None) if plan is None else (plan.charged, plan.fields)
        return plan.charged[self._members], plan.fields[self._members]

    def _whole(self, result: ExchangeResult) -> ExchangeResult:
        """What came from the members, by rank; nothing from the others."""
        if self._members is None:
            return result
        n = self._device.num_ranks
        counts, offsets, tags = np.zeros(n, np.int32), np.zeros(n, np.int32), np.zeros(n, np.int64)
        counts[self._members], offsets[self._members] = result.counts, result.offsets
        tags[self._members] = result.tags
        return result._replace(counts=counts, offsets=offsets, tags=tags)

    @property
    def next_event(self) -> int:
        """Number of the coming event."""
        return self._event.item()

    def skip(self) -> int:
        """Count one event; returns its number."""
        self._event[0] += 1
        return self._event.item() - 1

    def side(self) -> PairSide:
        """All of this as the compiled operations want it."""
        return PairSide(self.channel, self._event, (self._all[0], self._all[1]), (self._own[0], self._own[1]))

    def pull(
        self, result: ExchangeResult, expected: Int32 | None = None
    ) -> tuple[Records, Int32, Int32, int]:
        """Find the records announced to me in the last event.

        Returns:
            the records; for each rank how many are mine and the first of them, int32 [n]; their sum.

        Raises:
            InternalError: rows of another event, or other counts than expected.
        """
        event = self._event.item() - 1
        counts, first, total = self._device.rows.decode(
            result.offsets, result.tags, event, self.most, expected
        )
        if self._device.transport.kind == "shared":
            return self._all[event % 2], counts, first, total
        return *self._fetch(event % 2, counts, first), total

    def _fetch(self, parity: int, counts: Int32, first: Int32) -> tuple[Records, Int32, Int32]:
        """Under rma: one Get for each rank that holds rows for me, then one flush."""
        transport, stride = self._device.transport, self._block.form.record_bytes
        after = np.cumsum(counts, dtype=np.int64)
        start = (after - counts).astype(np.int32)
        room = 1 << int(after[-1]).bit_length()
        local = np.empty((1, 1, room, stride), np.uint8)
        flat, base = local.reshape(-1), self._base + parity * self._block.nbytes
        for source in np.flatnonzero(counts).tolist():
            at, size = int(start[source]) * stride, int(counts[source]) * stride
            transport.start_read(
                source, Area.MANAGED, base + int(first[source]) * stride, flat[at : at + size]
            )
        transport.flush_reads()
        return Records(np.broadcast_to(local, (1, counts.size, room, stride))), counts, start
