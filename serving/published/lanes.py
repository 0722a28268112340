"""Rows of dispatch and combine through the machine, at the library's own charges.

Pulled (XCCL): records to all, rows fetched. Pushed (CANN): rows stored at their ranks, some to each peer in
turn. Charged bytes are the priced model's; what a row holds is another test's business.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from collectives.calibrate.measure import MOST_PUTS, PASS_ROWS, Meter, part, ring
from collectives.libraries import EpCharges, Library, charges
from collectives.moe import ExpertExchange, Handle
from emulator import Device
from emulator.planes import Plane
from emulator.profile import Profile
from serving.published.routing import TOPK, Routing

Int32 = npt.NDArray[np.int32]
ROWS_A_TOKEN = TOPK + 1
_FUNCTIONAL = 8  # values of a row that is really moved


class Lane(Protocol):
    """Dispatch and combine of one case on one rank. `layer` and `half` name rows prepared before."""

    def prepare(self, layer: int, half: int) -> None:
        """Agree with all ranks on who sends what; takes virtual time, so before anything is measured."""

    def rows_in(self, layer: int, half: int) -> int:
        """Rows this rank's experts get."""

    def dispatch(self, layer: int, half: int) -> None:
        """Rows out; returns when all mine are in."""

    def combine(self, layer: int, half: int) -> None:
        """Rows back; returns when all mine are in."""


def costs_of(
    library: Library, profile: Profile, operation: str, ranks: int, hidden: int, tokens: int
) -> EpCharges:
    """What an exchange inside a step is charged on a rank that has `tokens`."""
    return charges(
        library,
        profile,
        operation,
        ranks=ranks,
        hidden=hidden,
        topk=ROWS_A_TOKEN,
        tokens=tokens,
        in_situ=True,
    )


class Pushed:
    """Implements `Lane`: each rank stores its rows at every peer and waits for all of theirs."""

    def __init__(
        self, device: Device, meter: Meter, routing: Routing, out: EpCharges, back: EpCharges, tokens: int
    ):
        self._device, self._meter, self._routing, self._tokens = device, meter, routing, tokens
        self._costs = (out, back)
        self._peers = np.roll(ring(device.rank, routing.ranks), 1)
        self._rows: dict[tuple[int, int], tuple[Int32, Int32]] = {}
        a_peer = -(-tokens * ROWS_A_TOKEN // routing.ranks)
        self._passes = max(1, min(MOST_PUTS // routing.ranks, -(-a_peer // PASS_ROWS)))

    def prepare(self, layer: int, half: int) -> None:
        mine = self._routing.rows_to(self._device.rank, 2 * layer + half, self._tokens)
        self._rows[layer, half] = mine, self._meter.counts(mine)[: self._routing.ranks]

    def rows_in(self, layer: int, half: int) -> int:
        return int(self._rows[layer, half][1].sum())

    def dispatch(self, layer: int, half: int) -> None:
        self._exchange(0, self._rows[layer, half][0])

    def combine(self, layer: int, half: int) -> None:
        self._exchange(1, self._rows[layer, half][1])

    def _exchange(self, which: int, rows: Int32) -> None:
        costs, meter = self._costs[which], self._meter
        meter.compute(costs.start_ps)
        for number in range(self._passes):
            nbytes = part(rows[self._peers], number, self._passes) * costs.row_bytes
            meter.put(self._peers, nbytes, Plane.UB, which)
        meter.await_puts(self._routing.ranks * self._passes, which)
        meter.compute(costs.pull_start_ps)


class Pulled:
    """Implements `Lane` by `collectives.moe.ExpertExchange`. All ranks of the run take part."""

    def __init__(
        self, device: Device, routing: Routing, out: EpCharges, back: EpCharges, tokens: int
    ) -> None:
        self._device, self._routing, self._tokens, self._costs = device, routing, tokens, (out, back)
        most = tokens * ROWS_A_TOKEN * 3
        self._exchange = ExpertExchange(device, 1, _FUNCTIONAL, tokens, ROWS_A_TOKEN, max_rows=most)
        self._x = np.full((tokens, _FUNCTIONAL), device.rank, np.float32)
        self._weights = np.full((tokens, ROWS_A_TOKEN), 1 / ROWS_A_TOKEN, np.float32)
        self._dies: dict[tuple[int, int], npt.NDArray[np.int64]] = {}
        self._handle: Handle

    def prepare(self, layer: int, half: int) -> None:
        self._dies[layer, half] = self._routing.dies(self._device.rank, 2 * layer + half, self._tokens)

    def rows_in(self, layer: int, half: int) -> int:
        return len(self._handle.rows)

    def dispatch(self, layer: int, half: int) -> None:
        self._handle = self._exchange.dispatch(self._x, self._dies[layer, half], self._costs[0])

    def combine(self, layer: int, half: int) -> None:
        self._exchange.combine(self._handle, self._handle.rows, self._weights, self._costs[1])
