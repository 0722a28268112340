"""A2E and E2A: dispatch and combine between attention dies and expert dies, with trampolines or without.

    attention                         trampolines (the first A experts)        the other experts
    rows -> own block, by trampoline
    record -> each trampoline         wait for A records, pull all rows
                                      rows -> own block, by expert
                                      record -> each expert served             wait for one, pull
    (experts compute)                                                          outputs -> own block
                                      wait, pull                               record -> trampoline
                                      outputs -> own block, by attention die
    wait, pull, weighted sum          record -> each attention die

Without trampolines each attention die stores a record to every expert and each expert to every attention die:
A x E records of scalar work instead of A x A + (E - A), but every row crosses the fabric once. Rows lie at
an expert by slot, inside a slot by (attention die, token, k), whichever way they came; the sum is in the
order of k. So results are equal bits. A die forwards only when all its rows are in.

Source: arXiv 2508.02520v6 section 3.3; pairing: `relay_plan`. Prices: `relay_costs`.
"""

from __future__ import annotations

import numpy as np

from collectives.moe_base import check_array
from collectives.xccl.relay_base import Arrived, Float32, Lane, RelayBase, Sent
from collectives.xccl.relay_blocks import Stage
from collectives.xccl.relay_costs import RelayCosts
from collectives.xccl.relay_plan import Int32, Int64, by_member, places
from collectives.xccl.relay_refusals import GivenUp
from emulator.errors import DeadlockError, InternalError, UsageError
from emulator.memory import as_bytes
from emulator.rows import HEADER_BYTES, Received, Records
from emulator.tracing import Op
from emulator.transport import Bytes


class A2E(RelayBase):
    """One rank's end of A2E and E2A; arguments and attributes as `RelayBase`."""

    # --- attention --------------------------------------------------------------------------------------

    def a2e_send(
        self,
        x: Float32,
        slot_ids: Int64,
        charge: Int32 | None = None,
        micro_batch: int = 0,
        costs: RelayCosts | None = None,
    ) -> Sent:
        """Offer rows to their experts' slots; does not wait. Attention dies call it.

        Args:
            x: float32 [T, hidden], T from 0 to `max_tokens`. slot_ids: int64 [T, topk].
            charge: int32 [T], priced rows each row stands for; None for 1.

        Completion: `x` may be reused. Raises: UsageError, wrong shapes or slots: on all dies, which this one
            waits for. StateError: the micro-batch's last A2E has not come home, or I am no attention die.
        """
        lane, costs = self._lane(micro_batch, "a2e_send", ("attention",)), costs or self._a2e
        if lane.is_open:
            raise self._state(
                f"a2e: micro-batch {micro_batch} of rank {self.device.rank} is still out: e2a_receive"
            )
        try:
            ids = self._checked(x, slot_ids, charge)
        except UsageError as error:
            raise self._refuse(lane, costs, error) from None
        start = self.device.now_ps
        self._charge(costs.start_ps)
        trampolines = self.relays.trampolines
        plan = self.device.rows.send(
            lane.out.own(), self._wide, x, self.relays.relabel(ids, self.slots), len(trampolines),
            self.topk, charge, 0,
        )  # fmt: skip
        lines = np.stack([plan.first, plan.counts, plan.charged], axis=1).astype(np.int64)
        lane.out.announce(lane.event, trampolines, lines, costs, self._me)
        lane.is_open = True
        return Sent(plan, x.shape[0], micro_batch, lane.event, start)

    def e2a_receive(self, sent: Sent, weights: Float32, costs: RelayCosts | None = None) -> Float32:
        """Wait for the experts' outputs; returns float32 [T, hidden]: the sum over k, in order, of
        weights[t, k] times them. Attention dies call it.

        Args:
            weights: float32 [T, topk], contiguous.

        Raises:
            StateError: `sent` is not what is out.
            InternalError: other rows came back than were sent.
        """
        lane, costs = self._lane(sent.micro_batch, "e2a_receive", ("attention",)), costs or self._e2a
        if not lane.is_open or sent.event != lane.event:
            raise self._state(
                f"a2e: what was sent in event {sent.event} is not what is out (rank {self.device.rank})"
            )
        check_array("e2a: weights", weights, (sent.tokens, self.topk))
        counts, first, _ = self._gather(lane, lane.home, self.relays.trampolines, self._me, costs, self._me)
        if not np.array_equal(counts, sent.plan.counts):
            raise InternalError(f"rank {self.device.rank}: E2A brings other rows than A2E took")
        records, first = lane.home.fetch(self.relays.trampolines, counts, first)
        out = self.device.rows.combine(records, self.hidden, counts, first, sent.plan.order, weights)
        self._record(out, sent.micro_batch)
        lane.event, lane.is_open = lane.event + 1, False
        return out

    # --- experts ----------------------------------------------------------------------------------------

    def a2e_receive(self, micro_batch: int = 0, costs: RelayCosts | None = None) -> Arrived:
        """Wait for the next rows; a trampoline also sends on what is for others. Expert dies call it.

        Raises:
            StateError: the rows before wait for their `e2a_send`.
        """
        lane, costs = self._lane(micro_batch, "a2e_receive", ("trampoline", "expert")), costs or self._a2e
        if lane.is_open:
            raise self._state(
                f"a2e: micro-batch {micro_batch} of rank {self.device.rank} waits for its e2a_send"
            )
        event, number, order = lane.event, self._me, None
        if self.role == "trampoline":
            stage, sources, mine = lane.out, self.relays.attention, number
        else:
            trampoline, member = self.relays.place(number)
            stage, sources, mine = (
                lane.forward,
                self.relays.trampolines[trampoline : trampoline + 1],
                member - 1,
            )
        counts, first, charged = self._gather(lane, stage, sources, mine, costs, number)
        self._check_rows(lane, costs, int(counts.sum()))
        records, first = stage.fetch(sources, counts, first)
        if len(self._served()) > 1:
            got, order = self._send_on(lane, records, counts, first, costs)
        else:
            got = self.device.rows.unpack(records, self._form, counts, first, int(counts.sum()))
        self._record(got.rows, micro_batch)
        lane.is_open = True
        return Arrived(
            got.rows, got.per_slot, got.charged_per_slot, micro_batch, event, self.device.now_ps, got.place,
            counts, charged, order,
        )  # fmt: skip

    def e2a_send(self, arrived: Arrived, y: Float32, costs: RelayCosts | None = None) -> None:
        """Send outputs home; a trampoline first waits for those of the experts it serves. Expert dies call
        it.

        Args:
            y: float32 [R, hidden], in the order of `arrived.rows`.

        Raises:
            StateError: `arrived` is not what this rank has open.
        """
        lane, costs = (
            self._lane(arrived.micro_batch, "e2a_send", ("trampoline", "expert")),
            costs or self._e2a,
        )
        if not lane.is_open or arrived.event != lane.event:
            raise self._state(f"a2e: event {arrived.event} is not what rank {self.device.rank} has open")
        try:
            check_array("e2a: y", y, arrived.rows.shape)
        except UsageError as error:
            raise self._refuse(lane, costs, error) from None
        self._charge(costs.start_ps)
        if self.role == "expert":
            trampoline, _ = self.relays.place(self._me)
            target = self.relays.trampolines[trampoline : trampoline + 1]
            self._pack(lane.back.own(), y, arrived.place)
            lines = np.array([[0, y.shape[0], arrived.charged.sum()]])
            lane.back.announce(lane.event, target, lines, costs, 0)
        else:
            self._send_home(lane, arrived, y, costs)
        lane.event, lane.is_open = lane.event + 1, False

    # --- trampolines ------------------------------------------------------------------------------------

    def _send_on(
        self, lane: Lane, records: Records, counts: Int32, first: Int32, costs: RelayCosts
    ) -> tuple[Received, Int64]:
        """Put what I pulled into my own block, by expert, and tell those I serve; returns what is mine."""
        raw = records.take(*places(counts, first))
        head = raw[:, :HEADER_BYTES].copy().view(np.int32)
        member, head[:, 0] = np.divmod(head[:, 0], np.int32(self.slots))
        raw[:, :HEADER_BYTES] = head.view(np.uint8)
        order, rows, begin = by_member(member, self.relays.group_size)
        charged = np.bincount(member, head[:, 1], self.relays.group_size).astype(np.int64)
        block = lane.forward.own()
        block.write(raw[order])
        lines = np.stack([begin, rows, charged], axis=1)[1 : len(self._served())]
        self._charge(costs.copy_row_ps * int(lines[:, 2].sum()))
        lane.forward.announce(lane.event, self._served()[1:], lines, costs, 0)
        mine = rows[:1].astype(np.int32)
        return self.device.rows.unpack(block, self._form, mine, np.zeros(1, np.int32), int(mine[0])), order

    def _send_home(self, lane: Lane, arrived: Arrived, y: Float32, costs: RelayCosts) -> None:
        """Outputs of my group into my own block, by attention die as they came, and a record to each."""
        event, block = lane.event, lane.home.own()
        if arrived.order is None:
            self._pack(block, y, arrived.place)
        else:
            served = self._served()[1:]
            rows, first, charged = self._gather(lane, lane.back, served, 0, costs, 0)
            records, first = lane.back.fetch(served, rows, first)
            home = np.empty((arrived.order.size, self._back_form.record_bytes), np.uint8)
            home[arrived.order] = np.concatenate(
                [self._packed(y, arrived.place), records.take(*places(rows, first))]
            )
            block.write(home)
            self._charge(costs.copy_row_ps * int(charged.sum()))
        start = np.cumsum(arrived.counts, dtype=np.int64) - arrived.counts
        lines = np.stack([start, arrived.counts, arrived.charged], axis=1)
        lane.home.announce(event, self.relays.attention, lines, costs, self._me)

    # --- shared -------------------------------------------------------------------------------------

    def _gather(
        self, lane: Lane, stage: Stage, sources: range, mine: int, costs: RelayCosts, me: int
    ) -> tuple[Int32, Int32, Int64]:
        """`Stage.gather` of the lane's event. Raises: UsageError, as all do: one cannot take part."""
        try:
            return stage.gather(lane.event, sources, mine, costs, self._engine, me)
        except GivenUp as news:
            raise self._hear(lane, costs, news.who) from None
        except DeadlockError as error:
            raise self._explained(error) from None

    def _pack(self, block: Records, y: Float32, place: Int32) -> None:
        self.device.rows.pack(block, self._back_form, y, place, 1, None, None)

    def _packed(self, y: Float32, place: Int32) -> Bytes:
        """My outputs as records in the order they came."""
        room = 1 << (max(1, place.size) - 1).bit_length()
        local = np.zeros((1, 1, room, self._back_form.record_bytes), np.uint8)
        self._pack(Records(local), y, place)
        return local[0, 0, : place.size]

    def _charge(self, ps: int) -> None:
        if ps:
            self.device.compute(ps, publish=False)

    def _record(self, rows: Float32, micro_batch: int) -> None:
        raw, now = as_bytes(rows), self.device.now_ps
        self.device.trace.add(Op.ROWS, now, now, micro_batch, raw.size, self.device.rows.checksum(raw))
