"""Aborts that a workload plans: nobody wants the answer any more from a virtual time on."""

from __future__ import annotations

from collections.abc import Sequence

from serving.feed import Abort, Command
from serving.request import RequestSpec


class PlannedAborts:
    """A source (`serving.feed.Source`) that ends each request at the first boundary at or after its
    `abort_ps`; alike on all ranks. Pure.

    Args:
        specs: the workload; requests without `abort_ps` are let be.
    """

    closed = True

    def __init__(self, specs: Sequence[RequestSpec]) -> None:
        planned = [(spec.abort_ps, spec.request_id) for spec in specs if spec.abort_ps is not None]
        self._planned = sorted(planned)
        self._next = 0

    def announce(self, idle: bool, now_ps: int) -> None:
        """See `Source`."""

    def take(self, now_ps: int) -> list[Command]:
        """See `Source`."""
        first = self._next
        while self._next < len(self._planned) and self._planned[self._next][0] <= now_ps:
            self._next += 1
        return [Abort(request) for _, request in self._planned[first : self._next]]

    def again(self) -> None:
        """Say all of them again when their time has come: a rank that was to carry some out may be gone.
        An abort of a request that has ended does nothing."""
        self._next = 0
