"""The calm run as a calendar: when each request enters which state, and how many are in flight then. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence

from emulator.faults.generate import Moment
from launch.chaos.rounds import Served
from serving.request import RequestSpec


def calendar(served: Served, specs: Sequence[RequestSpec]) -> list[Moment]:
    """Every entry of a request into a state in a run without faults, by time.

    Until the first fault of a plan fires, its run is this one, to the picosecond.
    """
    arrivals = sorted(spec.arrival_ps for spec in specs)
    ends = sorted(e.times_ps[-1] for e in served.endings if e.times_ps)
    seen: Counter[tuple[int, str, int]] = Counter()
    moments = []
    for result in served.lives[0].results:
        for ps, request, state in result.get("points", []):
            seen[request, state, result["rank"]] += 1
            count = seen[request, state, result["rank"]]
            flying = bisect_right(arrivals, ps) - bisect_right(ends, ps)
            moments.append(Moment(ps, result["rank"], request, state, count, flying))
    return sorted(moments)
