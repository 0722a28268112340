"""Forward passes of a tensor-parallel group: the leader orders, all compute their share, rows go out once.

    leader           orders -> the others
    every rank       attention of its heads | gather | its columns of the output projection | gather
    dense layer      its columns | gather | its columns | gather
    MoE layer        its share of the rows: route, dispatch, experts of all the pod, combine | gather rows
                     its columns of the shared experts | gather | its columns | gather

The tokens of a group are on all its ranks after attention; each routes and dispatches only its share of them.
Only the leader samples. KV is split by KV heads (grouped queries) or kept by every rank (latent).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from serving.charges import LayerPlan, StepCharge
from serving.forward import Forward, RowsOf, _priced_rows
from serving.kv.cache import Transfer
from serving.model.layers import Layer
from serving.scheduler import Segment
from serving.speculation import Speculation
from serving.tensor.group import TensorGroup
from serving.tensor.orders import Mirror, Orders, Teller

__all__ = ["TensorForward"]


class TensorForward(Forward):
    """Forward passes of one rank of a group.

    Args:
        parts: as `Forward`; model and prices are of this rank's share.
        group: of the ranks that compute together.
    """

    def __init__(self, *parts: Any, group: TensorGroup) -> None:
        super().__init__(*parts)
        self._group = group
        self._model.part.gather = group.gather
        self._teller, self._mirror = Teller(), Mirror()
        self._released: list[int] = []
        self._moves: tuple[Sequence[Transfer], Sequence[int]] = ((), ())
        self.speculation: Speculation | None = None
        """Who drafts, where there are draft layers."""

    # ---- the leader -------------------------------------------------------------------------------

    def step(self, segments: Sequence[Segment]) -> torch.Tensor:
        """See `Forward.step`: the group's requests, of which this rank is the leader."""
        self._order(segments)
        return super().step(segments)

    def move(self, transfers: Sequence[Transfer], found: Sequence[int]) -> None:
        """See `Forward.move`: done with the step that follows, by all ranks."""
        self._moves = transfers, found

    def release(self, request_id: int) -> None:
        """See `Forward.release`: the others hear of it before the next step."""
        self._released.append(request_id)
        super().release(request_id)

    def agree(self, kept: Sequence[tuple[Segment, torch.Tensor]]) -> None:
        """See `Forward.agree`."""
        if self._group.leads:
            stay = [len(rows) for _, rows in kept]
            self._group.tell(self._teller.settle([segment for segment, _ in kept], stay))

    def _order(self, segments: Sequence[Segment]) -> None:
        tables = [self._kv.lent(segment.request.spec.request_id) for segment in segments]
        orders = Orders(self._released, segments, tables, *self._moves)
        self._group.tell(self._teller.write(orders))
        self._released = []
        moves, self._moves = self._moves, ((), ())
        super().move(*moves)

    # ---- the others -------------------------------------------------------------------------------

    def idle(self) -> None:
        """A step for which this rank has no requests of its own: its group may have."""
        if self._group.leads:
            self._order(())
            super().idle()
            return
        segments = self._obey()
        if not segments:
            super().idle()
            return
        super().step(segments)
        if self.speculation is not None:
            self._draft(self.speculation, segments)

    def _draft(self, speculation: Speculation, segments: Sequence[Segment]) -> None:
        """Drop the rows the leader has rejected, and compute the draft layers over the others."""
        stay = self._mirror.settle(segments, self._group.hear())
        rows = torch.split(self.last_rows, [segment.count for segment in segments])
        for segment, count in zip(segments, stay, strict=True):
            if count < segment.count:
                self._kv.truncate(segment.request.spec.request_id, segment.start + count)
        speculation.draft([(s, hidden[:n]) for s, hidden, n in zip(segments, rows, stay, strict=True)])
        speculation.keep()

    def _obey(self) -> Sequence[Segment]:
        orders = self._mirror.read(self._group.hear())
        for request_id in orders.released:
            super().release(request_id)
            self._kv.lend(request_id, ())
            if self.speculation is not None:
                self.speculation.forget(request_id)
        for segment, table in zip(orders.segments, orders.tables, strict=True):
            self._kv.lend(segment.request.spec.request_id, table)
        super().move(orders.transfers, orders.found)
        return orders.segments

    def close(self) -> None:
        """After the last step: the others give back what has ended since."""
        if self._group.leads:
            self._order(())
        else:
            self._obey()

    # ---- all --------------------------------------------------------------------------------------

    def layer_begins(self, rows: int, repeat: int) -> None:
        """See `Forward.layer_begins`."""
        self._group.rows, self._group.repeat = rows, repeat

    def router_ps(self, rows: int) -> int:
        """See `Forward.router_ps`: of my share of them."""
        return super().router_ps(-(-rows // self._group.size))

    def _moe(
        self, layer: Layer, plan: LayerPlan, x: torch.Tensor, batch: RowsOf, charge: StepCharge
    ) -> torch.Tensor:
        """See `Forward._moe`: this rank's share of the rows goes to the experts; all come back to all."""
        h, moe_index = layer.norm(x), plan.index - self._num_dense
        share = self._group.share(len(h))
        mine, shares = h[share], batch.shares[share]
        experts, weights = layer.route(mine)
        if self.observe is not None:
            self.observe(moe_index, experts.numpy(), shares)
        slots, factors = self._route_slots(
            moe_index, experts.numpy(), weights.numpy(), batch.positions[share]
        )
        costs = self._charges.dispatch(int(shares.sum()) * slots.shape[1], plan.repeat)
        received = self._link.dispatch(mine.numpy(), slots, shares, costs)
        if not self._placement.shared_placed:
            self._compute("experts", plan.repeat * charge.shared_ps)
        results = self._experts(moe_index, received)
        costs = self._charges.combine(_priced_rows(received), plan.repeat)
        routed = self._group.gather_rows(self._link.combine(received, results, factors, costs), len(h))
        if self._placement.shared_placed:
            return x + routed
        return x + layer.joined(routed, h)

    moe = _moe
