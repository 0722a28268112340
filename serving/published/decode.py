"""One decode iteration of a pod on a rank: all its layers in order, or two half batches on two streams.

one stream    late start | dense layers | MoE layers: attention, dispatch, experts, combine
two streams   slot after slot: attention of one half beside dispatch, experts and combine of the other's
              layer before; a slot ends when both have ended
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from serving.decode.charges import StepKernels, joined, step_kernels
from serving.decode.jitter import ATTENTION, EXPERTS
from serving.job import DecodeOptions
from serving.pricing import Kernels, PricedModel
from serving.published.cases import Case
from serving.published.system import System
from serving.published.timeline import ROUTINGS, Timeline


@dataclass
class Decode:
    """A decode iteration. slots: experts of a die; kv: int64 [sequences], tokens each attends to."""

    case: Case
    system: System
    line: Timeline
    slots: int
    kv: npt.NDArray[np.int64]

    def run(self) -> dict[str, Any]:
        """Go through the measured layers; returns what all ranks came to."""
        options = DecodeOptions(1, self.case.queries, self.case.mtp, True)
        whole = step_kernels(self.system.whole, self.kv, options)
        passes = self.case.passes or passes_of(self.case, self.system)
        self._prepare(passes)
        self.line.begin()
        for _ in range(self.system.whole.shape.dense_layers):
            self.line.meter.compute(sum(whole.dense_layer.values()))
        experts = (
            self._one_stream(passes, whole)
            if self.case.microbatches == 1
            else self._two_streams(passes, options)
        )
        self.line.attention = self.line.attention or [sum(whole.attention.values())] * passes
        return self._found(whole, experts, passes)

    def _prepare(self, passes: int) -> None:
        for number in range(min(passes, ROUTINGS)):
            for half in range(self.case.microbatches):
                self.line.lane.prepare(number, half)

    def _one_stream(self, passes: int, whole: StepKernels) -> list[Kernels]:
        line, experts, price = self.line, [], sum(whole.attention.values())
        for number in range(passes):
            line.meter.compute(line.block_ps(price, number, ATTENTION))
            experts.append(self._moe(self.system.whole, number, 0))
            line.layer_done()
        return experts

    def _two_streams(self, passes: int, options: DecodeOptions) -> list[Kernels]:
        """Slot 2l and 2l + 1: attention of half 0 and 1 of layer l; half 1 of layer l - 1 and half 0 of l."""
        line, halves = self.line, np.array_split(self.kv, 2)
        prices = [_attention_ps(self.system.attention, half, options) for half in halves]
        experts: list[Kernels] = []

        def moe(number: int, half: int) -> None:
            if number >= 0:
                experts.append(self._moe(self.system.moe, number, half))

        for number in range(passes):
            for half, of in ((0, number - 1), (1, number)):
                took = line.block_ps(prices[half], 2 * number + half, ATTENTION)
                other = line.beside(took, partial(moe, of, 1 - half))
                line.attention.append(took)
                line.moe.append(other)
            line.layer_done()
        moe(passes - 1, 1)
        return experts

    def _moe(self, model: PricedModel, number: int, half: int) -> Kernels:
        """Dispatch, experts and combine of a layer; the router is with the attention, as in the profile."""
        line = self.line
        line.out(number, half)
        kernels = model.experts_kernels(spread(line.rows[-1], self.slots))
        price = sum(kernels.values())
        line.meter.compute(line.block_ps(price, self.case.microbatches * number + half, EXPERTS))
        line.back(number, half)
        return kernels

    def _found(self, whole: StepKernels, experts: list[Kernels], passes: int) -> dict[str, Any]:
        line, shape = self.line, self.system.whole.shape
        total = joined(*experts)
        a_layer = joined(whole.attention, {k: v // passes for k, v in total.items()})
        layers = passes_of(self.case, self.system)
        heads = 1 + (shape.mtp_layers if self.case.mtp else 0)
        fixed = joined(*[whole.dense_layer] * shape.dense_layers, *[whole.head] * heads, whole.join)
        kernels = joined({k: v * layers for k, v in a_layer.items()}, fixed)
        after = sum(whole.head.values()) * heads + sum(whole.join.values())
        return line.over_all() | {
            "kernels_ps": line.mean_of(kernels),
            "after_ps": line.mean_of({"after": after})["after"],
            "layers": layers,
        }


def passes_of(case: Case, system: System) -> int:
    """MoE layers of an iteration, that of the MTP layer included."""
    shape = system.whole.shape
    return shape.moe_layers + (shape.mtp_layers if case.mtp else 0)


def spread(rows: int, slots: int) -> list[int]:
    """A die's rows over its experts, evenly."""
    return [rows // slots + (i < rows % slots) for i in range(slots)]


def _attention_ps(model: PricedModel, kv: npt.NDArray[np.int64], options: DecodeOptions) -> int:
    return sum(step_kernels(model, kv, options).attention.values())
