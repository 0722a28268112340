"""Dispatch and combine with rows; see `collectives.moe`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from collectives.blocks import BlockPair
from collectives.moe_base import ExchangeBase, check_array
from collectives.moe_parts import Handle, OperationCosts, Pending
from collectives.moe_refusals import give_up
from collectives.refusals import refused
from emulator.engine.api import ExchangeResult
from emulator.errors import DeadlockError, InternalError, UsageError
from emulator.rows import Int32, Plan

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
NO_WEIGHTS = np.empty((0, 0), np.float32)


class RowExchange(ExchangeBase):
    """Dispatch and combine; made as `ExchangeBase` is."""

    # --- dispatch ---------------------------------------------------------------------------------------

    def dispatch(
        self,
        x: Float32,
        slot_ids: Int64,
        costs: OperationCosts | None = None,
        charge: Int32 | None = None,
        micro_batch: int = 0,
    ) -> Handle:
        """Send each row to its slots and receive the rows of mine. All ranks call it; blocks.

        Args:
            x: float32 [T, hidden], T from 0 to `max_tokens`.
            slot_ids: int64 [T, topk], physical slots.
            costs: of this call, for all the layers it stands for.
            charge: int32 [T], priced rows each row stands for, at least 1; None for 1.
            micro_batch: which pair of buffers.

        Raises:
            UsageError: on every rank, what one cannot do: too many rows, wrong shapes, a slot that does not
                exist. More rows come to a rank than its `max_rows`: there in its next combine, which all
                others raise it from too. CollectiveMismatchError: ranks are not in the same call.
        """
        if 0 <= micro_batch < len(self._compiled):
            numbers = _numbers(costs or self._dispatch_costs)
            try:
                handle: Handle | None = self._compiled[micro_batch][0](x, slot_ids, charge, numbers)
            except (DeadlockError, InternalError) as error:
                raise self._explained(error, self._out[micro_batch]) from None
            if handle is not None:
                self._check_rows(handle.rows.shape[0], micro_batch)
                return handle
        pair, plan, costs = self._write_out(x, slot_ids, costs, charge, micro_batch)
        self._hook("poll")
        try:
            return self._take_in(pair, plan, x.shape[0], pair.exchange(plan, costs))
        except (DeadlockError, InternalError) as error:
            raise self._explained(error, pair) from None

    def post_dispatch(
        self,
        x: Float32,
        slot_ids: Int64,
        costs: OperationCosts | None = None,
        charge: Int32 | None = None,
        micro_batch: int = 0,
    ) -> Pending:
        """The first half of `dispatch`: rows written, records posted; does not block unless it is refused."""
        pair, plan, costs = self._write_out(x, slot_ids, costs, charge, micro_batch)
        pair.post(plan, costs)
        return Pending(pair, plan, x.shape[0], costs)

    def finish_dispatch(self, pending: Pending) -> Handle:
        """The second half: wait for all records, pull."""
        self._hook("poll")
        pair = pending.pair
        try:
            return self._take_in(pair, pending.plan, pending.tokens, pair.wait(pending.costs))
        except (DeadlockError, InternalError) as error:
            raise self._explained(error, pair) from None

    def _write_out(
        self,
        x: Float32,
        slot_ids: Int64,
        costs: OperationCosts | None,
        charge: Int32 | None,
        micro_batch: int,
    ) -> tuple[BlockPair, Plan, OperationCosts]:
        pair, costs = self._pair(self._out, micro_batch), costs or self._dispatch_costs
        device = self.device
        try:
            x, ids = self._checked(x, slot_ids, charge)
            if costs.start_ps:
                device.compute(costs.start_ps, publish=False)
            plan = device.rows.send(
                pair.own(), self._out_form, x, ids, device.num_ranks, self.topk, charge, pair.most
            )
        except UsageError as error:
            raise give_up(device, pair, costs, error) from None
        return pair, plan, costs

    def _take_in(self, pair: BlockPair, plan: Plan, tokens: int, result: ExchangeResult) -> Handle:
        self._hook("pull")
        records, counts, first, total = pair.pull(result)
        self._check_rows(total, pair.micro_batch)
        got = self.device.rows.unpack(records, self._out_form, counts, first, total)
        self._record(pair, result, got.rows)
        handle = Handle(got.rows, pair.micro_batch)
        handle.tokens, handle.sent, handle.place = tokens, plan, got.place
        handle.rows_per_slot, handle.charged_per_slot = got.per_slot, got.charged_per_slot
        handle.received, handle.received_charge = counts, result.counts
        return handle

    def _check_rows(self, total: int, micro_batch: int) -> None:
        """Refuse more rows than a combine could send back, before any work on them; the others, whose
        dispatch is over by then, find it in their combine, which this rank waits for."""
        if total > self.max_rows:
            text = f"dispatch: rank {self.device.rank} gets {total} rows, it takes max_rows={self.max_rows}"
            raise give_up(self.device, self._back[micro_batch], self._combine_costs, UsageError(text))

    # --- combine ----------------------------------------------------------------------------------------

    def combine(
        self, handle: Handle, y: Float32, weights: Float32, costs: OperationCosts | None = None
    ) -> Float32:
        """Send the experts' outputs home and add up mine: out[t] = sum over k, in order, of weights[t, k]
        * y.

        Args:
            handle: of the dispatch.
            y: float32 [R, hidden], outputs in the order of `handle.rows`.
            weights: float32 [T, topk]; not looked at when T is 0.
            costs: of this call.

        Returns:
            float32 [T, hidden]. The sum of a token depends on its rows and weights only, not on the layout.

        Raises:
            UsageError: on every rank, what one cannot do: wrong shapes, more rows in its dispatch than it
                takes. CollectiveMismatchError: ranks are not in the same call, or combine another dispatch.
        """
        if handle.kept is not None and handle.micro_batch < len(self._compiled):
            numbers = _numbers(costs or self._combine_costs)
            try:
                out: Float32 | None = self._compiled[handle.micro_batch][1](handle.kept, y, weights, numbers)
            except (DeadlockError, InternalError) as error:
                raise self._explained(error, self._back[handle.micro_batch]) from None
            if out is not None:
                return out
        pair, plan, costs = self._write_back(handle, y, weights, costs)
        self._hook("poll")
        try:
            return self._add_up(pair, handle, weights, pair.exchange(plan, costs))
        except (DeadlockError, InternalError) as error:
            raise self._explained(error, pair) from None

    def post_combine(
        self, handle: Handle, y: Float32, weights: Float32, costs: OperationCosts | None = None
    ) -> Pending:
        """The first half of `combine`; does not block unless it is refused."""
        pair, plan, costs = self._write_back(handle, y, weights, costs)
        pair.post(plan, costs)
        return Pending(pair, plan, handle.tokens, costs, handle, weights)

    def finish_combine(self, pending: Pending) -> Float32:
        """The second half of `combine`."""
        pair = pending.pair
        if pending.handle is None or pending.weights is None:
            text = "combine: this was posted as a dispatch; finish it with finish_dispatch"
            raise refused(self.device, UsageError(text))
        self._hook("poll")
        try:
            return self._add_up(pair, pending.handle, pending.weights, pair.wait(pending.costs))
        except (DeadlockError, InternalError) as error:
            raise self._explained(error, pair) from None

    def _write_back(
        self, handle: Handle, y: Float32, weights: Float32, costs: OperationCosts | None
    ) -> tuple[BlockPair, Plan, OperationCosts]:
        pair, costs = self._pair(self._back, handle.micro_batch), costs or self._combine_costs
        try:
            check_array("combine: y", y, (handle.rows.shape[0], self.hidden))
            if handle.tokens:
                check_array("combine: weights", weights, (handle.tokens, self.topk))
        except UsageError as error:
            raise give_up(self.device, pair, costs, error) from None
        if costs.start_ps:
            self.device.compute(costs.start_ps, publish=False)
        plan = self.device.rows.plan_back(handle.received, handle.received_charge, handle.place, pair.most)
        self.device.rows.pack(pair.own(), self._back_form, y, handle.place, 1, None, None)
        return pair, plan, costs

    def _add_up(self, pair: BlockPair, handle: Handle, weights: Float32, result: ExchangeResult) -> Float32:
        self._hook("pull")
        records, counts, first, _ = pair.pull(result, handle.sent.counts)
        if not handle.tokens:
            weights = np.empty((0, self.topk), np.float32)
        out = self.device.rows.combine(records, self.hidden, counts, first, handle.sent.order, weights)
        self._record(pair, result, out)
        return out


def _numbers(costs: OperationCosts) -> tuple[int, int, int, int, int]:
    return costs.start_ps, costs.pull_start_ps, costs.record_ps, costs.row_bytes, costs.meta_bytes
