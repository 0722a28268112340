"""Prefill of a pod on a rank: whole prompts, layer by layer, or two half batches.

    one batch    MoE layers: attention, dispatch, experts, combine
    two halves   the cube cores go on: attention of half 1 beside dispatch of half 0, experts of half 0 beside
                 dispatch of half 1, experts of half 1 beside combine of half 0, attention of half 0 of the
                 next layer beside combine of half 1

Exchanges inside attention (a prompt's heads over dies) are left out: each die attends to prompts of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from serving.decode.jitter import ATTENTION, EXPERTS
from serving.published.cases import Case
from serving.published.decode import spread
from serving.published.system import System
from serving.published.timeline import ROUTINGS, Timeline

_NO_DECODE = np.zeros(0, np.int64)


@dataclass
class Prefill:
    """A prefill. slots: experts of a die."""

    case: Case
    system: System
    line: Timeline
    slots: int

    def run(self) -> dict[str, Any]:
        """Go through the measured layers; returns what all ranks came to."""
        passes, parts = self.case.passes, self.case.microbatches
        for number in range(min(passes, ROUTINGS)):
            for half in range(parts):
                self.line.lane.prepare(number, half)
        attention = self._attention_ps(self.case.batch // parts)
        self.line.begin()
        if parts == 1:
            self._one_batch(passes, attention)
        else:
            self._two_halves(passes, attention)
        return self._found()

    def _attention_ps(self, tokens: int) -> int:
        model, prompts = self.system.prefill, [(0, self.case.low)] * (tokens // self.case.low)
        return sum(model.layer_kernels(_NO_DECODE, prompts).values()) + model.router_ps(tokens)

    def _experts_ps(self, number: int) -> int:
        price = self.system.prefill.experts_ps(spread(self.line.rows[number], self.slots))
        return self.line.block_ps(price, number, EXPERTS)

    def _one_batch(self, passes: int, attention: int) -> None:
        line = self.line
        for number in range(passes):
            line.meter.compute(line.block_ps(attention, number, ATTENTION))
            line.out(number, 0)
            line.meter.compute(self._experts_ps(number))
            line.back(number, 0)
            line.layer_done()

    def _two_halves(self, passes: int, attention: int) -> None:
        line, last = self.line, lambda: None
        for number in range(passes):
            times = [line.block_ps(attention, 2 * number + half, ATTENTION) for half in (0, 1)]
            line.beside(times[0], partial(line.back, number - 1, 1) if number else last)
            line.beside(times[1], partial(line.out, number, 0))
            line.beside(self._experts_ps(2 * number), partial(line.out, number, 1))
            line.beside(self._experts_ps(2 * number + 1), partial(line.back, number, 0))
            line.layer_done()
        line.back(passes - 1, 1)

    def _found(self) -> dict[str, Any]:
        model, shape, tokens = self.system.prefill, self.system.prefill.shape, self.case.batch
        prompts = [(0, self.case.low)] * (tokens // self.case.low)
        dense = sum(model.layer_kernels(_NO_DECODE, prompts).values()) + model.dense_mlp_ps(tokens)
        after = shape.dense_layers * dense + model.head_ps(len(prompts))
        return self.line.over_all() | {"kernels_ps": {}, "after_ps": after, "layers": shape.moe_layers}
