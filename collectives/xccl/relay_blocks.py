"""Rows and records of A2E and E2A in the managed area, and the stores and reads that announce and pull them.

Each die keeps its rows in its own block; a table beside it says for each target {event, first row, rows,
charged rows}. A record on the fabric tells the target that its line of the table is there (it adds 1 to a
word); who has waited for all its records reads its lines and then the rows.

One block a hop is enough. A die writes event n + 1 only after it has heard, over the other hops of event n,
from every die that pulls from that block; and each of those had pulled before it said so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from collectives.blocks import Block
from collectives.xccl.relay_costs import RelayCosts
from collectives.xccl.relay_plan import Int32, Int64, rotated
from collectives.xccl.relay_refusals import GivenUp
from emulator.engine.api import ADD, GE
from emulator.engine.posts import K_GET, K_PUT, new_posts
from emulator.errors import InternalError
from emulator.fabric import Transaction
from emulator.rows import Records, RowFormat
from emulator.transport import Area

if TYPE_CHECKING:
    from emulator import Device

LINE = 4
"""Numbers of a line: event, first row, rows, charged rows. Of an event that was given up its complement,
and the rank that could not take part."""
_ALIGN = 4096


class Stage:
    """One hop: a block and a table on each die that sends, a word on each that receives.

    Args:
        device: this rank. base: where block and table lie in the managed area. word: of the receivers.
        block: shape of the block. width: most targets of one die.
    """

    def __init__(self, device: Device, block: Block, width: int, base: int, word: int) -> None:
        self._device, self._block, self._width, self._base = device, block, width, base
        self.word = word
        self.records = self.rows_pulled = 0

    @staticmethod
    def nbytes(block: Block, width: int) -> int:
        """Managed bytes of block and table."""
        return _pages(block.nbytes) + _pages(width * LINE * 8)

    def own(self) -> Records:
        """My block."""
        records, me = self._all(), self._device.rank if self._is_shared else 0
        return Records(records.view[:, me : me + 1])

    # --- announcing -------------------------------------------------------------------------------------

    def announce(
        self, event: int, targets: range, lines: npt.NDArray[np.int64], costs: RelayCosts, me: int
    ) -> None:
        """Write my table and store one record to each target, beginning after number `me`.

        Args:
            lines: int64 [targets, 3]: first row, rows, charged rows.
        """
        self._announce(event, targets, lines, costs, me)

    def give_up(self, event: int, targets: range, who: int, costs: RelayCosts, me: int) -> None:
        """Store a record to each target that says rank `who` could not take part."""
        lines = np.array([[who, 0, 0]] * len(targets), np.int64).reshape(-1, 3)
        self._announce(~event, targets, lines, costs, me)

    def _announce(
        self, mark: int, targets: range, lines: npt.NDArray[np.int64], costs: RelayCosts, me: int
    ) -> None:
        table = self._own_table()
        table[: len(targets), 0], table[: len(targets), 1:] = mark, lines
        self._device.transport.publish()
        peers = np.array(targets, np.int32)[rotated(len(targets), me)]
        posts = new_posts(
            peers.size, kind=K_PUT, peer=peers, nbytes=costs.meta_bytes, word=self.word, op=ADD, value=1
        )
        self._device.post(posts, step_ps=costs.write_ps)
        self._device.ledger.add("mem", Transaction.FLAG, peers.size, peers.size * costs.meta_bytes)
        self.records += peers.size

    # --- pulling ----------------------------------------------------------------------------------------

    def gather(
        self, event: int, sources: range, mine: int, costs: RelayCosts, engine: str, me: int
    ) -> tuple[Int32, Int32, Int64]:
        """Wait for a record of each source, read line `mine` of their tables, and pay for pulling the rows.

        Returns: rows and first row of each source, int32 [sources]; charged rows, int64 [sources].

        Raises: GivenUp, a source or one that it heard of could not take part. InternalError, a line of
            another event.
        """
        device = self._device
        self.hear(event, sources)
        lines = self._lines(sources, mine)
        troubled = lines[lines[:, 0] == ~event]
        if troubled.size:
            raise GivenUp(int(troubled[0, 1]))
        if (lines[:, 0] != event).any():
            raise InternalError(
                f"rank {device.rank}: A2E event {event} found lines of {lines[:, 0].tolist()}"
            )
        price = costs.poll_ps * len(sources) + costs.settle_ps
        if price:
            device.compute(price, publish=False)
        self._pull(sources, lines[:, 3], costs, engine, me)
        return lines[:, 2].astype(np.int32), lines[:, 1].astype(np.int32), lines[:, 3]

    def hear(self, event: int, sources: range) -> None:
        """Wait for a record of each source."""
        self._device.wait([(self.word, GE, (event + 1) * len(sources))])

    def _pull(self, sources: range, charged: Int64, costs: RelayCosts, engine: str, me: int) -> None:
        order = rotated(len(sources), me)
        order = order[charged[order] > 0]
        self.rows_pulled += int(charged.sum())
        if not order.size:
            return
        device, ranks = self._device, np.array(sources, np.int32)[order]
        posts = new_posts(order.size, kind=K_GET, peer=ranks, nbytes=charged[order] * costs.row_bytes)
        if engine == "urma":
            classes = device.topology.classes(device.rank)[ranks]
            for cls in np.unique(classes).tolist():
                for name, value in device.fabric.urma("read", 0, cls)._asdict().items():
                    posts[name][classes == cls] = value
            device.ledger.add("mem", Transaction.DESCRIPTOR, order.size)
        device.post(posts, step_ps=costs.issue_ps)
        device.quiet()

    # --- bytes ------------------------------------------------------------------------------------------

    def fetch(self, sources: range, counts: Int32, first: Int32) -> tuple[Records, Int32]:
        """The records of some sources, as a view with one row of the ranks' axis for each; and where each
        source's begin in it."""
        if self._is_shared:
            return Records(self._all().view[:, sources.start : sources.stop : sources.step]), first
        transport, stride = self._device.transport, self._block.form.record_bytes
        start = (np.cumsum(counts) - counts).astype(np.int32)
        room = 1 << int(counts.sum()).bit_length()
        local = np.empty((1, 1, room, stride), np.uint8)
        flat, base = local.reshape(-1), self._base
        for at in np.flatnonzero(counts).tolist():
            low, size = int(start[at]) * stride, int(counts[at]) * stride
            where = base + int(first[at]) * stride
            transport.start_read(sources[at], Area.MANAGED, where, flat[low : low + size])
        transport.flush_reads()
        return Records(np.broadcast_to(local, (1, counts.size, room, stride))), start

    def _lines(self, sources: range, mine: int) -> Int64:
        base = self._table
        if self._is_shared:
            memory, ranks = self._device.transport.piece(base, _pages(self._width * LINE * 8))
            table = memory.view(np.int64).reshape(ranks, -1)
            chosen = table[sources.start : sources.stop : sources.step]
            found: Int64 = chosen[:, mine * LINE : (mine + 1) * LINE].copy()
            return found
        lines = np.empty((len(sources), LINE), np.int64)
        for at, source in enumerate(sources):
            where = base + mine * LINE * 8
            self._device.transport.start_read(source, Area.MANAGED, where, lines[at].view(np.uint8))
        self._device.transport.flush_reads()
        return lines

    def _own_table(self) -> Int64:
        memory, ranks = self._device.transport.piece(self._table, _pages(self._width * LINE * 8))
        mine = memory.reshape(ranks, -1)[self._device.rank if ranks > 1 else 0]
        lines: Int64 = mine[: self._width * LINE * 8].view(np.int64).reshape(self._width, LINE)
        return lines

    def _all(self) -> Records:
        block = self._block
        memory, ranks = self._device.transport.piece(self._base, block.nbytes)
        return Records(memory.reshape(-1, ranks, block.chunk, block.form.record_bytes))

    @property
    def _table(self) -> int:
        return self._base + _pages(self._block.nbytes)

    @property
    def _is_shared(self) -> bool:
        return self._device.transport.kind == "shared"


def block_of(capacity: int, form: RowFormat) -> Block:
    """A block for up to `capacity` rows."""
    return Block(max(1, capacity), form, 0)


def _pages(nbytes: int) -> int:
    return -(-nbytes // _ALIGN) * _ALIGN
