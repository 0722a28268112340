"""A2E and E2A in closed form, for routing that spreads rows evenly over the experts: to check the emulation,
and to say in no time what a large machine would show (160:288: within 5 %). Nothing is charged by it.

    hop = records written + latency + records polled + settled + max(bytes / rate, pulls issued) + latency

The bytes of a hop are those of the busier end: who pulls, or who is pulled from. Left out: uneven rows,
queues at ports, the mix of links (all are taken for the farthest).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from collectives.xccl.relay_costs import RelayCosts
from collectives.xccl.relay_plan import Relays
from emulator.npu import ceil_ps
from emulator.profile import Profile
from emulator.topology import Topology, put_latency_ps, read_bytes_per_s

Hop = Callable[[int, int, int], int]


class Estimate(NamedTuple):
    """Times in ps over the dies that wait at the end: the first, the last, their mean."""

    least: int
    most: int
    mean: int


def a2e_ps(profile: Profile, relays: Relays, rows: int, costs: RelayCosts) -> Estimate:
    """From the attention dies' start until an expert has its rows.

    Args:
        rows: charged rows (tokens times slots) of each attention die.
    """
    hop, times = _hops(profile, relays, costs), []
    attention, trampolines = len(relays.attention), relays.num_trampolines
    each = attention * rows // len(relays.experts)
    for trampoline in range(trampolines):
        others = len(relays.served_by(trampoline)) - 1
        first = costs.start_ps + hop(trampolines, attention, max(rows, (1 + others) * each))
        copied = costs.copy_row_ps * others * each
        times += [first] + [first + copied + hop(others, 1, others * each)] * others
    return Estimate(min(times), max(times), sum(times) // len(times))


def e2a_ps(profile: Profile, relays: Relays, rows: int, costs: RelayCosts) -> Estimate:
    """From the experts' start until an attention die has its sums; all wait for the busiest trampoline.
    Arguments as `a2e_ps`."""
    hop, attention = _hops(profile, relays, costs), len(relays.attention)
    others, each = relays.most_forwards, attention * rows // len(relays.experts)
    time = costs.start_ps + (
        hop(1, others, others * each) + costs.copy_row_ps * others * each if others else 0
    )
    time += hop(attention, relays.num_trampolines, max(rows, (1 + others) * each))
    return Estimate(time, time, time)


def _hops(profile: Profile, relays: Relays, costs: RelayCosts) -> Hop:
    """A function of records written by one end, records polled by the other, rows moved by the busier."""
    ranks = [*relays.attention, *relays.experts]
    cls = Topology.from_profile(profile, max(ranks) + 1).link_class(min(ranks), max(ranks))
    latency, rate = put_latency_ps(profile)[cls], read_bytes_per_s(profile)[cls]

    def hop(written: int, polled: int, rows: int) -> int:
        pull = max(ceil_ps(rows * costs.row_bytes, rate), costs.issue_ps * (polled - 1))
        return written * costs.write_ps + polled * costs.poll_ps + costs.settle_ps + pull + 2 * latency

    return hop
