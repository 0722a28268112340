"""Time of a collective: binds the flows of a group to the machine and lets them pass.

exchange   one n-to-n operation of the engine on the group's channel, one wake-up
schedule   steps of puts and waits on the group's words
"""

from __future__ import annotations

import numpy as np

from collectives.algorithms import Exchange, Flow, Schedule, Shape
from collectives.algorithms.steps import fan_out
from collectives.groups import Group
from emulator.engine.api import TIMEOUT
from emulator.engine.posts import K_PUT, new_posts


def post(group: Group, flow: Flow) -> None:
    """Start a flow without blocking, as far as that goes: an exchange leaves, of a schedule nothing."""
    if isinstance(flow, Exchange) and has_exchange(group, flow):
        assert group.channel is not None
        group.device.exchange_post(group.channel, None, 0, int(flow.record_bytes))


def wait(group: Group, call: int, phase: int, flow: Flow, until_ps: int | None) -> bool:
    """Let the rest of a posted flow pass. Returns False when `until_ps` (virtual time) came first.

    Args:
        call: number of the collective. phase: which flow of it, from 0.

    Completion: everything this rank waits for in the flow is here.
    """
    if isinstance(flow, Schedule):
        return run_schedule(group, call, flow, until_ps)
    if not has_exchange(group, flow):
        return run_schedule(group, call, as_schedule(group, flow, phase), until_ps)
    assert group.channel is not None
    result = group.device.exchange_wait(group.channel)
    return until_ps is None or result.time_ps <= until_ps


def has_exchange(group: Group, flow: Exchange) -> bool:
    """Whether the engine carries this exchange as one operation."""
    whole = group.channel is not None and group.size == group.device.num_ranks
    return whole and isinstance(flow.record_bytes, int)


def as_schedule(group: Group, flow: Exchange, phase: int) -> Schedule:
    """An exchange as a schedule: a put to each, me + 1 first and me last, then wait for all."""
    order = (np.arange(1, group.size + 1) + group.rank) % group.size
    sizes = np.broadcast_to(np.asarray(flow.record_bytes, np.int64), group.size)
    return fan_out(order, sizes[order], phase * Shape(group.size, group.rank).half, group.size)


def run_schedule(group: Group, call: int, schedule: Schedule, until_ps: int | None) -> bool:
    """Carry out a schedule step by step. Returns False when `until_ps` came first."""
    device, first = group.device, group.first_word(call)
    counted, base = group.space.counted, group.space.first_word + first
    sends = new_posts(
        len(schedule.sends), kind=K_PUT, peer=group.places[schedule.sends["peer"]],
        word=schedule.sends["word"] + base,
        **{name: schedule.sends[name] for name in ("nbytes", "value", "start_ps", "op", "plane")},
    )  # fmt: skip
    for compute_ps, value, at, count, word, cmp in schedule.steps.tolist():
        if compute_ps:
            device.compute(compute_ps, publish=False)
        if count:
            device.post(sends[at : at + count])
        if word >= 0:
            left = None if until_ps is None else max(0, until_ps - device.now_ps)
            condition = (base + word, cmp, int(counted[first + word]) + value)
            if device.wait([condition], timeout_ps=left) == TIMEOUT:
                return False
    for word, signals in schedule.signals.items():
        counted[first + word] += signals
    return True
