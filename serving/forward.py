"""One forward pass of the pod, seen from one rank: compute what is functional, charge what is priced.

    attention | route | dispatch | my experts on the rows received | combine | + shared expert

Every charge comes before the arithmetic it stands for, so the other ranks run on meanwhile. A rank without
tokens sleeps through the exchanges that bring it nothing (`idle`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from emulator.errors import InternalError
from emulator.faults import Faults, NoFaults
from serving.charges import Charges, LayerPlan, StepCharge
from serving.exchange_price import ExchangeCosts
from serving.kv.cache import Transfer
from serving.kv.tiers import TierPrices
from serving.ledger import TimeLedger
from serving.model.kv_cache import PagedKV
from serving.model.layers import Layer
from serving.model.model import Model
from serving.placement import EMPTY, Placement
from serving.pricing import PricedModel
from serving.scheduler import Segment

COMPUTE_LABELS = {
    "attention": 1,
    "experts": 2,
    "dispatch": 3,
    "combine": 4,
    "other": 5,
    "kv_load": 6,
    "tensor": 7,
}
"""Numbers that name compute regions in the trace."""


@dataclass
class Received:
    """Rows a dispatch brought here: float32[R, hidden] by slot, their count and priced count int64[slots].

    `ticket` is what the link needs to send results back.
    """

    rows: NDArray[np.float32]
    rows_per_slot: NDArray[np.int64]
    priced_per_slot: NDArray[np.int64]
    ticket: object

    @property
    def count(self) -> int:
        return len(self.rows)


Observer = Callable[[int, NDArray[np.int64], NDArray[np.int64]], None]
"""(MoE layer, experts [T, K], priced rows of each token [T])."""


class ExpertLink(Protocol):
    """Rows to the experts and back; adds its own virtual time to dispatch, combine and waiting."""

    def dispatch(
        self,
        x: NDArray[np.float32],
        slots: NDArray[np.int64],
        shares: NDArray[np.int64],
        costs: ExchangeCosts,
    ) -> Received:
        """Send row t to the physical slots slots[t], int64[T, K], as shares[t] priced rows each."""

    def combine(
        self,
        received: Received,
        results: NDArray[np.float32],
        weights: NDArray[np.float32],
        costs: ExchangeCosts,
    ) -> NDArray[np.float32]:
        """Send results[R, hidden] back; return float32[T, hidden]: weights[t, k] times row, summed."""

    def idle(self, layers: Sequence[tuple[ExchangeCosts, ExchangeCosts]]) -> tuple[int, Received | None]:
        """Take part in these layers' exchanges without rows. Returns (layer index, rows) of the first
        dispatch that brought any, or (len(layers), None)."""

    def combine_then_idle(
        self,
        received: Received,
        results: NDArray[np.float32],
        costs: ExchangeCosts,
        layers: Sequence[tuple[ExchangeCosts, ExchangeCosts]],
    ) -> tuple[int, Received | None]:
        """`combine` of a rank without tokens, then `idle` of the layers that follow, in one sleep."""


class Router(Protocol):
    """Chooses experts in place of the layer (`serving.recovery.masks`)."""

    def begin(self, segments: Sequence[Segment]) -> None:
        """A step over these segments begins."""

    def route(
        self, layer: Layer, h: torch.Tensor, owners: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `Layer.route`; row i is of request owners[i], at positions[i]."""


class RowsOf(Protocol):
    """Whose rows a step computes: requests, and of each row its request, its position
    and its priced tokens, int64 [rows]."""

    @property
    def requests(self) -> list[int]: ...
    @property
    def owners(self) -> NDArray[np.int64]: ...
    @property
    def positions(self) -> NDArray[np.int64]: ...
    @property
    def shares(self) -> NDArray[np.int64]: ...


class ComputeClock(Protocol):
    @property
    def now_ps(self) -> int: ...

    def compute(self, ps: int | None = None, *, label: int = 0) -> None: ...


class Forward:
    """Forward passes of one rank."""

    def __init__(
        self,
        rank: int,
        clock: ComputeClock,
        model: Model,
        plans: Sequence[LayerPlan],
        charges: Charges,
        placement: Placement,
        link: ExpertLink,
        kv: PagedKV,
        time: TimeLedger,
    ) -> None:
        self._rank, self._clock, self._model, self._plans = rank, clock, model, plans
        self._charges, self._placement, self._link, self._kv = charges, placement, link, kv
        self._time = time
        self.faults: Faults = NoFaults()
        """Who is told that a request's rows are dispatched and combined."""
        self.tiers: TierPrices | None = None
        """Prices of moving KV, where there is a second tier."""
        self.moved = dict.fromkeys(("kv_load_bytes", "kv_store_bytes", "kv_store_ps"), 0)
        """What has moved between the tiers, priced."""
        moe = [plan for plan in plans if plan.is_moe]
        self._num_dense = len(plans) - len(moe)
        self._moe_layers = [model.layer(plan.index) for plan in moe] + [mtp.layer for mtp in model.mtp]
        self._moe_repeats = [plan.repeat for plan in moe] + [1] * len(model.mtp)
        self._idle_costs = [(charges.dispatch(0, k), charges.combine(0, k)) for k in self._moe_repeats]
        self._tables: list[Placement] = []
        self.place([placement] * len(self._moe_layers))
        self.last_rows = torch.empty(0)
        """Rows of the last step after all layers, float32 [rows, hidden], where there are draft layers."""
        self.observe: Observer | None = None
        """Who counts what tokens choose."""
        self._serves = True
        self.router: Router | None = None
        self._shared_column = np.array([placement.num_routed], dtype=np.int64)

    def place(self, tables: Sequence[Placement]) -> None:
        """Route by these from the next step on, one for each MoE layer: same ranks, slots and experts."""
        self._tables = list(tables)
        self._my_slots = [table.slot_expert[self._rank].tolist() for table in tables]

    def step(self, segments: Sequence[Segment]) -> torch.Tensor:
        """Compute one step over my batch; returns float32[answers of all segments, vocab] logits."""
        charge = self._charges.step(segments)
        if self.router is not None:
            self.router.begin(segments)
        self._compute("other", self._charges.step_overhead_ps)
        batch = _Batch(segments, self._model, self._kv)
        x = self._model.embed(batch.tokens)
        for plan in self._plans:
            self.layer_begins(charge.rows, plan.repeat)
            layer = self._model.layer(plan.index)
            self._compute("attention", plan.repeat * charge.layer_attention_ps(plan.is_moe))
            x = layer.attention(x, batch.plan)
            if plan.is_moe:
                x = self._moe(layer, plan, x, batch, charge)
            else:
                self._compute("other", plan.repeat * charge.dense_ps)
                x = x + layer.dense(layer.norm(x))
        self.layer_begins(charge.rows, 1)
        self._compute("other", charge.head_ps)
        if self._model.mtp:
            self.last_rows = x
        return self._model.logits(x.index_select(0, batch.sampled_rows))

    @property
    def priced(self) -> PricedModel:
        """The model that is charged."""
        return self._charges.priced

    def shared_ps(self, rows: int) -> int:
        """Price of local shared experts over priced rows."""
        return self._charges.priced.shared_ps(rows) if not self._placement.shared_placed else 0

    def router_ps(self, rows: int) -> int:
        """Price of routing these priced rows of my batch."""
        return self._charges.priced.router_ps(rows)

    def layer_begins(self, rows: int, repeat: int) -> None:
        """A layer over so many priced rows begins, which stands for `repeat` priced ones: ranks that compute
        it together are told."""

    def agree(self, kept: Sequence[tuple[Segment, torch.Tensor]]) -> None:
        """Drafts are verified: these rows of each segment stay. Ranks that compute together are told."""

    def charge(self, bucket: str, ps: int) -> None:
        """Let my clock run on, for a part of a step that is computed elsewhere."""
        self._compute(bucket, ps)

    def idle(self) -> None:
        """Host my experts for a step in which I have no tokens."""
        if not self._serves:
            return
        self._compute("other", self._charges.step_overhead_ps)
        self._host(0)

    def idle_drafts(self) -> None:
        """Host my experts of the draft layers for a step in which I have no rows for them."""
        self._host(len(self._moe_layers) - len(self._model.mtp))

    def _host(self, done: int) -> None:
        """Take part without tokens in the MoE layers from `done` on."""
        received: Received | None = None
        if done < len(self._idle_costs):
            skipped, received = self._link.idle(self._idle_costs[done:])
            done += skipped
        while received is not None:
            results = self._experts(done, received)
            costs = self._charges.combine(_priced_rows(received), self._moe_repeats[done])
            following = self._idle_costs[done + 1 :]
            skipped, received = self._link.combine_then_idle(received, results, costs, following)
            done += 1 + skipped

    def move(self, transfers: Sequence[Transfer], found: Sequence[int]) -> None:
        """Before a step: move KV between tiers, and pay for prefixes found (priced tokens of each).

        Loads are waited for; stores leave behind the computation.
        """
        if transfers:
            if self.tiers is not None:
                self._compute("kv_load", self.tiers.load_ps(transfers))
                self.moved["kv_load_bytes"] += self.tiers.load_bytes(transfers)
                self.moved["kv_store_bytes"] += self.tiers.store_bytes(transfers)
                self.moved["kv_store_ps"] += self.tiers.store_ps(transfers)
            self._kv.move(transfers)
        if found:
            self._compute("other", self._charges.reuse_ps(found))

    def release(self, request_id: int) -> None:
        """Give back the KV of an ended request."""
        self._kv.free(request_id)

    def roll_back(self, segments: Sequence[Segment]) -> None:
        """Take back a step that did not end: its tokens leave the cache."""
        for segment in segments:
            self._kv.truncate(segment.request.spec.request_id, segment.start)

    def regroup(self, placement: Placement, charges: Charges, serves: bool = True) -> None:
        """Go on with other experts in my slots, among other ranks; or, if I do not serve, without me."""
        self._serves = serves
        self._placement, self._charges = placement, charges
        self.place([placement] * len(self._moe_layers))
        self._idle_costs = [(charges.dispatch(0, k), charges.combine(0, k)) for k in self._moe_repeats]

    def _moe(
        self, layer: Layer, plan: LayerPlan, x: torch.Tensor, batch: RowsOf, charge: StepCharge
    ) -> torch.Tensor:
        """A MoE layer after its attention: x float32 [rows, hidden] to the same, residual added."""
        h = layer.norm(x)
        if self.router is None:
            experts, weights = layer.route(h)
        else:
            experts, weights = self.router.route(layer, h, batch.owners, batch.positions)
        moe_index = plan.index - self._num_dense
        if self.observe is not None:
            self.observe(moe_index, experts.numpy(), batch.shares)
        slots, factors = self._route_slots(moe_index, experts.numpy(), weights.numpy(), batch.positions)
        costs = self._charges.dispatch(charge.rows * slots.shape[1], plan.repeat)
        self._announce("dispatch", batch)
        received = self._link.dispatch(h.numpy(), slots, batch.shares, costs)
        if not self._placement.shared_placed:
            self._compute("experts", plan.repeat * charge.shared_ps)
        results = self._experts(moe_index, received)
        self._announce("combine", batch)
        costs = self._charges.combine(_priced_rows(received), plan.repeat)
        routed = torch.from_numpy(self._link.combine(received, results, factors, costs))
        if self._placement.shared_placed:
            return x + routed
        return x + layer.joined(routed, h)

    moe = _moe

    def _announce(self, state: str, batch: RowsOf) -> None:
        if self.faults.active:
            for request in batch.requests:
                self.faults.point(state, request=request)

    def _route_slots(
        self,
        moe_index: int,
        experts: NDArray[np.int64],
        weights: NDArray[np.float32],
        positions: NDArray[np.int64],
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Physical slots and weights [T, K]; a placed shared expert is one more column, of weight 1, last."""
        if self._placement.shared_placed:
            column = np.broadcast_to(self._shared_column, (len(experts), 1))
            experts = np.concatenate([experts, column], axis=1)
            weights = np.concatenate([weights, np.ones((len(weights), 1), np.float32)], axis=1)
        return self._tables[moe_index].slots_for(experts, positions, self._rank), weights

    def _experts(self, moe_index: int, received: Received) -> NDArray[np.float32]:
        """Run my experts of one layer over the rows received, grouped by slot; float32[R, hidden]."""
        price = self._charges.experts_ps(received.priced_per_slot)
        self._compute("experts", self._moe_repeats[moe_index] * price)
        return self._expert_results(moe_index, received)

    def _expert_results(self, moe_index: int, received: Received) -> NDArray[np.float32]:
        """What my experts make of the rows received, grouped by slot; charges nothing."""
        layer = self._moe_layers[moe_index]
        results = np.empty_like(received.rows)
        first = 0
        for slot in np.flatnonzero(received.rows_per_slot).tolist():
            end = first + int(received.rows_per_slot[slot])
            rows = torch.from_numpy(received.rows[first:end])
            results[first:end] = self._expert(layer, self._my_slots[moe_index][slot], rows).numpy()
            first = end
        return results

    def _expert(self, layer: Layer, expert: int, rows: torch.Tensor) -> torch.Tensor:
        if expert == EMPTY:
            raise InternalError(f"rank {self._rank}: rows arrived for a spare expert slot")
        if expert == self._placement.num_routed:
            return layer.shared_here(rows)
        return layer.expert(expert, rows)

    def _compute(self, bucket: str, ps: int) -> None:
        if ps:
            start_ps = self._clock.now_ps
            self._clock.compute(ps, label=COMPUTE_LABELS[bucket])
            self._time.add(bucket, self._clock.now_ps - start_ps)


class _Batch:
    """A step's rows: tokens, plan of the attention, and what each row stands for."""

    def __init__(self, segments: Sequence[Segment], model: Model, kv: PagedKV) -> None:
        parts = [segment.request.input_tokens(segment.count) for segment in segments]
        self.tokens = torch.from_numpy(np.concatenate(parts).astype(np.int64))
        self.requests = [segment.request.spec.request_id for segment in segments]
        appended = [kv.append(s.request.spec.request_id, s.count, s.start) for s in segments]
        if [segment.start for segment in appended] != [segment.start for segment in segments]:
            raise InternalError("KV cache and scheduler disagree on where a sequence stands")
        self.plan = model.plan(appended, kv)
        self.positions = np.concatenate([np.arange(s.start, s.start + s.count) for s in segments])
        self.owners = np.repeat(np.array(self.requests, np.int64), [len(part) for part in parts])
        self.shares = np.array([share for s in segments for share in s.shares()], dtype=np.int64)
        ends = self.plan.last_rows.tolist()
        rows = [row for s, end in zip(segments, ends, strict=True) for row in _last(end, len(s.answers))]
        self.sampled_rows = torch.tensor(rows, dtype=torch.int64)


def _priced_rows(received: Received) -> int:
    """Priced rows that came, which go back in the combine."""
    return int(received.priced_per_slot.sum())


def _last(end: int, count: int) -> range:
    """The last `count` rows up to `end`."""
    return range(end - count + 1, end + 1)
