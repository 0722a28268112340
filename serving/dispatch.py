"""Which rank serves a request: the least loaded one, worked out alike on every rank.

Every step the ranks exchange one 64-bit status word each: how many priced tokens they still have to
compute, and their clock. The latest clock is the pod's *shared now*; requests that have arrived by then are
handed out in order of arrival, each to the rank with the least outstanding tokens, ties to the lowest rank.
All inputs are shared, so no rank has to be told.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from emulator.errors import InternalError
from serving.balance import Balancer, Group, LeastTokens
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
        ranks: the rank of each request where that is settled already; None: the balancer chooses.
        balancer: how; by default the rank with the fewest outstanding tokens.
    """

    def __init__(
        self,
        specs: Sequence[RequestSpec],
        is_refused: Callable[[RequestSpec], bool],
        ranks: Sequence[int] | None = None,
        balancer: Balancer | None = None,
    ) -> None:
        self._specs, self._ranks = specs, ranks
        self._balancer: Balancer = balancer or LeastTokens()
        self._is_refused = is_refused
        self._next = 0
        self._owner: dict[int, int] = {}
        self._again: list[RequestSpec] = []
        self._cancelled: set[int] = set()
        self._taken_back: list[RequestSpec] = []
        self._dead: list[int] = []

    def pack(self, group: Group, now_ps: int) -> int:
        """A rank's status word."""
        return pack_status(self._balancer.status(group), now_ps)

    def unpack(self, words: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
        """All ranks' loads int64[n] (0: nothing to do), and the shared now in ps."""
        said, now_ps = unpack_status(words)
        return self._balancer.learn(said), now_ps

    @property
    def next_arrival_ps(self) -> int | None:
        """When the next request not yet handed out arrives, rounded up to a tick; None after the last."""
        if self._again:
            return 0
        if self._next == len(self._specs):
            return None
        return -(-self._specs[self._next].arrival_ps // TICK_PS) * TICK_PS

    def exclude(self, ranks: Sequence[int]) -> None:
        """Give these ranks nothing: others lead their groups."""
        self._dead = sorted({*self._dead, *ranks})

    def add(self, spec: RequestSpec) -> None:
        """A request that comes from outside the workload."""
        raise InternalError(f"request {spec.request_id} comes to a dispatcher whose workload is fixed")

    def cancel(self, request_id: int) -> RequestSpec | None:
        """Take a request back that has not been handed out; None if there is none of that number."""
        for place, spec in enumerate(self._again):
            if spec.request_id == request_id:
                self._taken_back.append(spec)
                return self._again.pop(place)
        for spec in self._specs[self._next :]:
            if spec.request_id == request_id and request_id not in self._cancelled:
                self._taken_back.append(spec)
                self._cancelled.add(request_id)
                self._skip_cancelled()
                return spec
        return None

    def _skip_cancelled(self) -> None:
        while self._next < len(self._specs) and self._specs[self._next].request_id in self._cancelled:
            self._next += 1

    def assign(self, loads: NDArray[np.int64], now_ps: int) -> list[tuple[int, RequestSpec]]:
        """Hand out everything that has arrived by `now_ps`; `loads` int64[n] is updated in place.

        Returns:
            (rank, request) in order of arrival.
        """
        arrived = self._arrived(now_ps)
        settled = [self._settled(spec) for spec in arrived]
        free = [spec for spec, rank in zip(arrived, settled, strict=True) if rank is None]
        chosen = dict(zip((s.request_id for s in free), self._choose(free, loads), strict=True))
        assigned = []
        for spec, rank in zip(arrived, settled, strict=True):
            place = chosen[spec.request_id] if rank is None else rank
            if place is None:
                self._again.append(spec)
                continue
            if rank is not None and not self._is_refused(spec):
                loads[rank] += spec.priced_total
            self._own(spec, place)
            assigned.append((place, spec))
        return assigned

    def _arrived(self, now_ps: int) -> list[RequestSpec]:
        """Requests not yet handed out that have arrived, those that come again first."""
        arrived, self._again = self._again, []
        while self._next < len(self._specs):
            spec = self._specs[self._next]
            if -(-spec.arrival_ps // TICK_PS) * TICK_PS > now_ps:
                break
            arrived.append(spec)
            self._next += 1
            self._skip_cancelled()
        return arrived

    def _settled(self, spec: RequestSpec) -> int | None:
        if self._ranks is None or spec.request_id in self._owner:
            return None
        return self._ranks[spec.request_id]

    def _choose(self, specs: Sequence[RequestSpec], loads: NDArray[np.int64]) -> list[int | None]:
        """A rank for each; one that is refused goes somewhere to fail, and brings no load."""
        chosen: list[int | None] = []
        batch: list[RequestSpec] = []
        for spec in specs:
            if not self._is_refused(spec):
                batch.append(spec)
                continue
            chosen += self._balancer.choose(batch, loads, self._dead)
            batch.clear()
            chosen.append(next(r for r in np.argsort(loads, kind="stable").tolist() if r not in self._dead))
        return chosen + self._balancer.choose(batch, loads, self._dead)

    def _own(self, spec: RequestSpec, rank: int) -> None:
        self._owner[spec.request_id] = rank

    def join(self, ranks: Sequence[int]) -> None:
        """These ranks are given requests again."""
        self._dead = [rank for rank in self._dead if rank not in ranks]

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
            if self._owner.get(spec.request_id) in gone and not has_ended(spec)
        ]
        self._again += lost
        self._again += [spec for spec in self._taken_back if not has_ended(spec)]  # who was to say so is gone
        self._taken_back.clear()
        return lost


class OpenDispatcher(Dispatcher):
    """Hands out requests that come while the pod runs; it forgets them when it has."""

    def __init__(self, is_refused: Callable[[RequestSpec], bool], balancer: Balancer | None = None) -> None:
        super().__init__((), is_refused, None, balancer)
        self._pending: list[RequestSpec] = []

    @property
    def next_arrival_ps(self) -> int | None:
        """See `Dispatcher`."""
        if self._again:
            return 0
        if not self._pending:
            return None
        return -(-self._pending[0].arrival_ps // TICK_PS) * TICK_PS

    def add(self, spec: RequestSpec) -> None:
        """A request from outside; it waits until its time of arrival."""
        insort(self._pending, spec, key=lambda one: (one.arrival_ps, one.request_id))

    def cancel(self, request_id: int) -> RequestSpec | None:
        """See `Dispatcher`."""
        for waiting in (self._again, self._pending):
            for place, spec in enumerate(waiting):
                if spec.request_id == request_id:
                    return waiting.pop(place)
        return None

    def _arrived(self, now_ps: int) -> list[RequestSpec]:
        count = 0
        for spec in self._pending:
            if -(-spec.arrival_ps // TICK_PS) * TICK_PS > now_ps:
                break
            count += 1
        arrived = self._again + self._pending[:count]
        self._again = []
        del self._pending[:count]
        return arrived

    def _own(self, spec: RequestSpec, rank: int) -> None:
        """Nobody asks whose it is."""
