"""When each request goes through its states in a run without faults: what plans are drawn from."""

from __future__ import annotations

from typing import Any

from emulator.faults import NoFaults
from serving.engine import Clock


class Points(NoFaults):
    """Stands in for the injector and notes each state: [ps, request, state] in order.

    Args:
        clock: this rank's.
        noted: where they go.
    """

    active = True

    def __init__(self, clock: Clock, noted: list[tuple[int, int, str]]) -> None:
        self._clock, self._noted = clock, noted

    def point(self, kind: str, **facts: Any) -> None:
        """See `Faults.point`."""
        self._noted.append((self._clock.now_ps, int(facts["request"]), kind))
