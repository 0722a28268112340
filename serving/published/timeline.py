"""Clock of one rank through the measured layers, and what all ranks came to. Times in ps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from collectives.calibrate.measure import Meter
from emulator.device import BARRIER_CHANNEL
from serving.decode.jitter import Jitter
from serving.published.lanes import Lane

WARM: Final = 2
"""Layers before those whose mean stands for all: a step's late start shows in them."""
ROUTINGS: Final = 4
"""Layers whose rows are drawn anew; layer i has the rows of layer i % 4."""


@dataclass
class Timeline:
    """What one rank measures.

    Attributes:
        ends: of each layer. dispatch, combine: each call. attention, moe: work of a stream in a half layer.
        rows: rows the experts got.
    """

    meter: Meter
    lane: Lane
    jitter: Jitter
    start_ps: int = 0
    ends: list[int] = field(default_factory=list)
    dispatch: list[int] = field(default_factory=list)
    combine: list[int] = field(default_factory=list)
    attention: list[int] = field(default_factory=list)
    moe: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)

    @property
    def now_ps(self) -> int:
        """This rank's clock."""
        return self.meter.device.now_ps

    def begin(self) -> None:
        """All ranks at once; then this one starts its step as late as it does."""
        self.start_ps = self.meter.together()
        self.meter.compute(self.jitter.launch_delay_ps(self.meter.device.rank, 0))

    def block_ps(self, price_ps: int, number: int, block: int) -> int:
        """What a block takes on this rank."""
        return price_ps + self.jitter.block_delay_ps(price_ps, self.meter.device.rank, 0, number, block)

    def out(self, layer: int, half: int) -> None:
        """A dispatch, timed."""
        begin = self.now_ps
        self.lane.dispatch(layer % ROUTINGS, half)
        self.dispatch.append(self.now_ps - begin)
        self.rows.append(self.lane.rows_in(layer % ROUTINGS, half))

    def back(self, layer: int, half: int) -> None:
        """A combine, timed."""
        begin = self.now_ps
        self.lane.combine(layer % ROUTINGS, half)
        self.combine.append(self.now_ps - begin)

    def beside(self, compute_ps: int, other: Callable[[], None]) -> int:
        """Compute on one stream while `other` runs on the other one; both have ended. Returns what `other`
        took."""
        begin = self.now_ps
        other()
        took = self.now_ps - begin
        self.meter.compute(max(0, compute_ps - took))
        return took

    def layer_done(self) -> None:
        """A layer is over."""
        self.ends.append(self.now_ps - self.start_ps)

    def over_all(self) -> dict[str, Any]:
        """What all ranks came to; every rank calls it. Means over ranks; of dispatch and combine also the
        least and the most."""
        ends = [self._tags(end).mean() for end in self.ends]
        found: dict[str, Any] = {"ends_ps": [float(end) for end in ends]}
        for name in ("dispatch", "combine"):
            mine: list[int] = getattr(self, name)
            found[name] = {
                "warm_ps": self._mean(mine[:WARM]),
                "mean_ps": self._mean(mine[WARM:] or mine),
                "min_ps": int(self._tags(min(mine)).min()),
                "max_ps": int(self._tags(max(mine)).max()),
            }
        for name in ("attention", "moe"):
            found[f"{name}_ps"] = self._mean(getattr(self, name)[WARM:])
        rows = np.array([self._tags(number) for number in self.rows[: 2 * ROUTINGS]])  # then they come again
        found["busiest"] = float((rows.max(axis=1) / rows.mean(axis=1)).mean())
        return found

    def mean_of(self, kernels: dict[str, int]) -> dict[str, float]:
        """The ranks' mean of some prices by name; every rank has the same names."""
        return {name: float(self._tags(kernels[name]).mean()) for name in sorted(kernels)}

    def _mean(self, mine: list[int]) -> float:
        return float(self._tags(sum(mine) // len(mine)).mean()) if mine else 0.0

    def _tags(self, ps: int) -> Any:
        return self.meter.device.exchange(BARRIER_CHANNEL, None, 0, tag=ps).tags
