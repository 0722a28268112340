"""Which rank serves a request: the least loaded one, worked out alike on every rank.

Every step the ranks exchange one 64-bit status word each: how many priced tokens they still have to
compute, and their clock. The latest clock is the pod's *shared now*; requests that have arrived by then are
handed out in order of arrival, each to the rank with the least outstanding tokens, ties to the lowest rank.
All inputs are shared, so no rank has to be told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from emulator.errors import InternalError
from serving.request import RequestSpec

TICK_PS = 10_000_000
"""Resolution of the shared clock: 10 µs, so that 33 bits hold 23 hours. Arrivals round up to it."""
_LOAD_BITS = 30
_TICK_BITS = 33


def pack_status(outstanding: int, now_ps: int) -> int:
    """One status word: clock in ticks (rounded down) above the outstanding priced tokens."""
    ticks = now_ps // TICK_PS
    if not 0 <= outstanding < 1 << _LOAD_BITS or ticks >= 1 << _TICK_BITS:
        raise InternalError(f"status does not fit its word: {outstanding} tokens at {now_ps} ps")
    return (ticks << _LOAD_BITS) | outstanding


def unpack_status(words: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """Status words int64[n] -> (outstanding tokens int64[n], shared now in ps)."""
    loads = words & np.int64((1 << _LOAD_BITS) - 1)
    return loads, int((words >> np.int64(_LOAD_BITS)).max()) * TICK_PS


class Dispatcher:
    """Hands out the requests of a workload; holds the same state on every rank.

    Args:
        specs: in order of arrival.
        is_refused: whether a request can never be served (it is handed out, to fail, but brings no load).
        ranks: the rank of each request where that is settled already; None: the least loaded one.
    """

    def __init__(
        self,
        specs: Sequence[RequestSpec],
        is_refused: Callable[[RequestSpec], bool],
        ranks: Sequence[int] | None = None,
    ) -> None:
        self._specs, self._ranks = specs, ranks
        self._is_refused = is_refused
        self._next = 0
        self._owner: dict[int, int] = {}
        self._again: list[RequestSpec] = []
        self._dead: list[int] = []

    @property
    def next_arrival_ps(self) -> int | None:
        """When the next request not yet handed out arrives, rounded up to a tick; None after the last."""
        if self._again:
            return 0
        if self._next == len(self._specs):
            return None
        return -(-self._specs[self._next].arrival_ps // TICK_PS) * TICK_PS

    def assign(self, loads: NDArray[np.int64], now_ps: int) -> list[tuple[int, RequestSpec]]:
        """Hand out everything that has arrived by `now_ps`; `loads` int64[n] is updated in place.

        Returns:
            (rank, request) in order of arrival.
        """
        assigned = []
        while (arrival := self.next_arrival_ps) is not None and arrival <= now_ps:
            fixed = None if self._ranks is None or self._again else self._ranks[self._next]
            spec = self._again.pop(0) if self._again else self._specs[self._next]
            self._next += spec.request_id not in self._owner
            rank = self._least_loaded(loads) if fixed is None else fixed
            if not self._is_refused(spec):
                loads[rank] += spec.priced_total
            self._owner[spec.request_id] = rank
            assigned.append((rank, spec))
        return assigned

    def _least_loaded(self, loads: NDArray[np.int64]) -> int:
        if not self._dead:
            return int(np.argmin(loads))
        masked = loads.copy()
        masked[self._dead] = np.iinfo(np.int64).max
        return int(np.argmin(masked))

    def lose(self, dead: Sequence[int], has_ended: Callable[[RequestSpec], bool]) -> list[RequestSpec]:
        """These ranks are gone: their requests that have not ended are handed out again, before all others.

        Returns:
            those requests, in order of arrival.
        """
        self._dead = sorted({*self._dead, *dead})
        gone = set(dead)
        lost = [
            spec
            for spec in self._specs[: self._next]
            if self._owner[spec.request_id] in gone and not has_ended(spec)
        ]
        self._again += lost
        return lost
