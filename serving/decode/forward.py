"""A decode step in which every priced MoE layer is a dispatch and a combine of its own.

The functional model may have fewer layers than the priced one. Executed layer j stands for the priced layers
j, j + m, j + 2m, …: its attention, routing and experts are computed once, for layer j; each of the others
dispatches the same rows to the same experts and combines the same results once more, through the machine,
at its own price and its own jitter, and must receive the bits of the first time. A model as deep as the
priced one computes every layer.

    bubble | launch jitter | dense layers | MoE layers 0 … 57 | head | MTP: join, MoE layer 58, head
    a MoE layer: attention and router (jitter) | dispatch | experts (jitter) | combine

Measured: start and end of every dispatch and combine, the part of each spent waiting for the last record
(`ExpertLink`), kernels and jitter charged.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from emulator.errors import InternalError
from serving.charges import Charges, LayerPlan
from serving.decode.charges import StepKernels, contexts, moe_passes, step_kernels
from serving.decode.jitter import ATTENTION, EXPERTS, Jitter
from serving.forward import ComputeClock, ExpertLink, Forward, Received, _Batch, _priced_rows
from serving.job import DecodeOptions
from serving.ledger import TimeLedger
from serving.model.kv_cache import PagedKV
from serving.model.layers import Layer
from serving.model.model import Model
from serving.placement import Placement
from serving.pricing import Kernels
from serving.scheduler import Segment

_SKEW_GRID = 1.0 / (1 << 14)


@dataclass
class StepTimes:
    """One measured step of one rank, ps.

    begin_ps: after the bubble. dispatch_ps, combine_ps: length of each call in order of the priced layers;
    *_wait_ps: of that, until the last metadata record was in. expert_rows: priced rows received. kernels:
    charged, by name; jitter_ps: added to them.
    """

    begin_ps: int
    end_ps: int = 0
    jitter_ps: int = 0
    dispatch_ps: list[int] = field(default_factory=list)
    dispatch_wait_ps: list[int] = field(default_factory=list)
    combine_ps: list[int] = field(default_factory=list)
    combine_wait_ps: list[int] = field(default_factory=list)
    expert_rows: list[int] = field(default_factory=list)
    kernels: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class _Routed:
    """An executed layer's rows: what is sent again for each further layer it stands for."""

    h: NDArray[np.float32]
    slots: NDArray[np.int64]
    factors: NDArray[np.float32]
    results: NDArray[np.float32]
    received_sum: int
    combined_sum: int


class DecodeForward(Forward):
    """Forward passes of one rank; a step in which all decode is measured.

    Args:
        options, jitter: how steps are measured, and how unevenly this machine runs.
        steps: where measured steps go.
        start_clock: called before the first of them, on all ranks.
        The others: as `Forward`.
    """

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
        options: DecodeOptions,
        jitter: Jitter,
        steps: list[dict[str, Any]],
        start_clock: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(rank, clock, model, plans, charges, placement, link, kv, time)
        self._options, self._jitter, self._steps = options, jitter, steps
        self._moe_plans = [plan for plan in plans if plan.is_moe]
        self._num_passes = moe_passes(charges.priced, options)
        self._start_clock = start_clock
        self._now: StepTimes

    def step(self, segments: Sequence[Segment]) -> torch.Tensor:
        """Compute one step over my batch; returns float32[answers of all segments, vocab] logits."""
        if not all(segment.decode for segment in segments):
            return super().step(segments)
        if not self._steps:
            self._start_clock()
        kernels = step_kernels(self._charges.priced, contexts(segments), self._options)
        self._compute("other", self._charges.step_overhead_ps)
        self._now = StepTimes(self._clock.now_ps)
        self._pause("other", self._jitter.launch_delay_ps(self._rank, len(self._steps)))
        batch = _Batch(segments, self._model, self._kv)
        x = self._dense_layers(self._model.embed(batch.tokens), batch, kernels)
        x, routed = self._first_passes(x, batch, kernels)
        for number in range(len(routed), self._num_passes):
            self._before(number, kernels)
            self._again(routed[number % len(routed)], number, batch, kernels)
        self._charge("other", kernels.head)
        self._now.end_ps = self._clock.now_ps
        self._steps.append(self._now.as_dict())
        return self._model.logits(x.index_select(0, batch.sampled_rows))

    def _dense_layers(self, x: torch.Tensor, batch: _Batch, kernels: StepKernels) -> torch.Tensor:
        for plan in self._plans:
            if not plan.is_moe:
                for _ in range(plan.repeat):
                    self._charge("other", kernels.dense_layer)
                layer = self._model.layer(plan.index)
                x = layer.attention(x, batch.plan)
                x = x + layer.dense(layer.norm(x))
        return x

    def _first_passes(
        self, x: torch.Tensor, batch: _Batch, kernels: StepKernels
    ) -> tuple[torch.Tensor, list[_Routed]]:
        """The MoE layers that are computed; each for the first priced layer it stands for."""
        routed = []
        for number, layer in enumerate(self._moe_layers):
            self._before(number, kernels)
            x = layer.attention(x, batch.plan)
            out, kept = self._computed(layer, x, number, batch, kernels)
            x = x + out
            routed.append(kept)
        return x, routed

    def _before(self, number: int, kernels: StepKernels) -> None:
        """What precedes a priced layer's dispatch; the main model's head comes before the MTP layer."""
        if number == self._charges.priced.shape.moe_layers:
            self._charge("other", kernels.head)
            self._charge("other", kernels.join)
        self._block("attention", kernels.attention, number, ATTENTION)

    def _computed(
        self, layer: Layer, x: torch.Tensor, number: int, batch: _Batch, kernels: StepKernels
    ) -> tuple[torch.Tensor, _Routed]:
        h = layer.norm(x)
        experts, weights = layer.route(h)
        slots, factors = self._route_slots(number, experts.numpy(), weights.numpy(), batch.positions)
        rows = h.numpy()
        received = self._dispatch(rows, slots, batch, kernels)
        self._charge_experts(received, number)
        results = self._expert_results(number, received)
        out = self._combine(received, results, factors)
        kept = _Routed(rows, slots, factors, results, _checksum(received.rows), _checksum(out))
        return torch.from_numpy(out), kept

    def _again(self, routed: _Routed, number: int, batch: _Batch, kernels: StepKernels) -> None:
        received = self._dispatch(routed.h, routed.slots, batch, kernels)
        self._charge_experts(received, number)
        out = self._combine(received, routed.results, routed.factors)
        if _checksum(received.rows) != routed.received_sum or _checksum(out) != routed.combined_sum:
            raise InternalError(f"rank {self._rank}: layer {number} did not receive the rows sent before")

    def _dispatch(
        self, h: NDArray[np.float32], slots: NDArray[np.int64], batch: _Batch, kernels: StepKernels
    ) -> Received:
        costs = self._charges.dispatch(kernels.rows * slots.shape[1], 1)
        begin_ps, waited_ps = self._clock.now_ps, self._time.ps["waiting"]
        received = self._link.dispatch(h, slots, batch.shares * self._options.queries, costs)
        self._now.dispatch_ps.append(self._clock.now_ps - begin_ps)
        self._now.dispatch_wait_ps.append(self._time.ps["waiting"] - waited_ps)
        self._now.expert_rows.append(_priced_rows(received))
        return received

    def _combine(
        self, received: Received, results: NDArray[np.float32], factors: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        begin_ps, waited_ps = self._clock.now_ps, self._time.ps["waiting"]
        costs = self._charges.combine(_priced_rows(received), 1)
        out = self._link.combine(received, results, factors, costs)
        self._now.combine_ps.append(self._clock.now_ps - begin_ps)
        self._now.combine_wait_ps.append(self._time.ps["waiting"] - waited_ps)
        return out

    def _charge_experts(self, received: Received, number: int) -> None:
        kernels = self._charges.priced.experts_kernels(received.priced_per_slot)
        self._block("experts", kernels, number, EXPERTS)

    def _block(self, bucket: str, kernels: Kernels, number: int, block: int) -> None:
        """Charge a block of a layer at its price, and its jitter."""
        price_ps, step = sum(kernels.values()), len(self._steps)
        delay_ps = self._jitter.block_delay_ps(price_ps, self._rank, step, number, block)
        self._count(kernels)
        self._now.jitter_ps += delay_ps
        self._compute(bucket, price_ps + delay_ps)

    def _charge(self, bucket: str, kernels: Kernels) -> None:
        self._count(kernels)
        self._compute(bucket, sum(kernels.values()))

    def _count(self, kernels: Kernels) -> None:
        for name, ps in kernels.items():
            self._now.kernels[name] = self._now.kernels.get(name, 0) + ps

    def _pause(self, bucket: str, ps: int) -> None:
        self._now.jitter_ps += ps
        self._compute(bucket, ps)


def _checksum(rows: NDArray[np.float32]) -> int:
    return zlib.crc32(np.ascontiguousarray(rows).data)


def skew_router(model: Model, skew: float, seed: int) -> None:
    """Add to the correction bias of every expert a normal number of this standard deviation."""
    if not skew:
        return
    for layer in model.layers:
        if layer.is_moe:
            draw = np.random.default_rng((seed, layer.index)).normal(0.0, skew, len(layer.router_bias))
            added = torch.from_numpy((np.round(draw / _SKEW_GRID) * _SKEW_GRID).astype(np.float32))
            layer.set_router_bias(layer.router_bias + added)
