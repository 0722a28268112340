"""Time of a collective: binds the flows of a group to the machine and lets them pass.

    exchange   one n-to-n operation of the engine on the group's channel
    schedule   steps of puts and waits on the group's words, carried out while the rank sleeps

Each is one wake-up. Groups beyond the channels there are do an exchange by puts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from collectives.algorithms import Exchange, Flow, Schedule, Shape
from collectives.algorithms.steps import fan_out
from emulator.engine.api import GE, TIMEOUT
from emulator.engine.posts import K_PUT, new_posts
from emulator.engine.schedules import STEP_DTYPE, Sends, Steps

if TYPE_CHECKING:
    from collectives.groups import Group


class TooLate(Exception):
    """The virtual time-out of a collective came first."""


class Here(NamedTuple):
    """Where a flow passes: group, number of the collective, which flow of it, and its deadline."""

    group: Group
    call: int
    phase: int
    until_ps: int | None


def post(group: Group, call: int, flow: Flow, tag: int) -> None:
    """Start a flow without blocking: an exchange leaves, of a schedule what comes before its first wait."""
    if not isinstance(flow, Exchange) or group.channel is None:
        schedule = as_schedule(group, flow, 0) if isinstance(flow, Exchange) else flow
        steps, sends = bound(group, call, schedule)
        group.device.schedule(*before_wait(steps, sends))
        return
    sizes = flow.record_bytes
    if isinstance(sizes, int):
        group.device.exchange_post(group.channel, None, 0, sizes, None, tag)
    else:
        group.device.exchange_post(group.channel, None, 0, 0, None, tag, sizes)


def wait(here: Here, flow: Flow, tag: int, posted: bool) -> int | None:
    """Let a flow pass, or the rest of a posted one.

    Args:
        tag: given to all ranks with an exchange.

    Returns:
        the sum of all ranks' tags, modulo 2**64; None of a schedule, which carries none.

    Completion: everything this rank waits for in the flow is here. Raises: TooLate.
    """
    group, _, phase, until_ps = here
    channel = group.channel
    if channel is None or not isinstance(flow, Exchange):
        schedule = as_schedule(group, flow, phase) if isinstance(flow, Exchange) else flow
        if posted:
            _pass_schedule(here, schedule, from_wait)
        else:
            _pass_schedule(here, schedule)
        return None
    device, sizes = group.device, flow.record_bytes
    if posted:
        result = device.exchange_wait(channel)
        total, end_ps = int(result.tags.sum()), result.records_ps
    else:
        total = group.exchange_tags(channel, sizes, tag)
        end_ps = device.now_ps
    if end_ps + flow.tail_ps > device.now_ps:
        device.compute(end_ps + flow.tail_ps - device.now_ps)
    if until_ps is not None and device.now_ps > until_ps:
        raise TooLate
    return total


def _pass_schedule(here: Here, schedule: Schedule, part: Callable[[Steps], Steps] | None = None) -> None:
    group = here.group
    steps, sends = bound(group, here.call, schedule)
    if part is not None:
        steps = part(steps)
    left = None if here.until_ps is None else max(0, here.until_ps - group.device.now_ps)
    if group.device.schedule(steps, sends, timeout_ps=left) < len(steps):
        raise TooLate
    count(group, here.call, schedule)


def as_schedule(group: Group, flow: Exchange, phase: int) -> Schedule:
    """An exchange as a schedule: a put to each, me + 1 first and me last, then wait for all."""
    order = (np.arange(1, group.size + 1) + group.rank) % group.size
    sizes = np.broadcast_to(np.asarray(flow.record_bytes, np.int64), group.size)
    out = fan_out(order, sizes[order], phase * Shape(group.size, group.rank).half, group.size)
    if not flow.tail_ps:
        return out
    tail = np.array([(flow.tail_ps, 0, group.size, 0, -1, GE)], STEP_DTYPE)
    return out._replace(steps=np.concatenate([out.steps, tail]))


def before_wait(steps: Steps, sends: Sends) -> tuple[Steps, Sends]:
    """The part of a schedule up to its first wait, or to the first time that passes."""
    stop = _first_stop(steps)
    head = steps[: stop + 1].copy()
    if len(head) > stop:
        head["word"][stop] = -1
        if head["compute_ps"][stop]:
            head = head[:stop]
    used = int((head["first"] + head["count"]).max(initial=0))
    return head, sends[:used]


def from_wait(steps: Steps) -> Steps:
    """The rest of it."""
    stop = _first_stop(steps)
    rest = steps[stop:].copy()
    if len(rest) and not rest["compute_ps"][0]:
        rest["count"][0] = 0
    return rest


def _first_stop(steps: Steps) -> int:
    stops = np.flatnonzero((steps["word"] >= 0) | (steps["compute_ps"] > 0))
    return int(stops[0]) if stops.size else len(steps)


def bound(group: Group, call: int, schedule: Schedule) -> tuple[Steps, Sends]:
    """A schedule with the words and ranks of the machine, and counts since the words were made."""
    first = group.first_word(call)
    steps, sends = schedule.steps.copy(), schedule.sends.copy()
    waits = np.flatnonzero(steps["word"] >= 0)
    words = steps["word"][waits]
    steps["value"][waits] += group.space.counted[first + words]
    steps["word"][waits] = words + (group.space.first_word + first)
    sends["peer"] = group.places[sends["peer"]]
    sends["word"] += group.space.first_word + first
    return steps, sends


def count(group: Group, call: int, schedule: Schedule) -> None:
    """Note the signals that came."""
    first = group.first_word(call)
    for word, signals in schedule.signals.items():
        group.space.counted[first + word] += signals


def step_by_step(group: Group, call: int, schedule: Schedule, until_ps: int | None) -> bool:
    """What a schedule means: the same as `wait` of it to the picosecond, a wake-up a step. For tests."""
    device = group.device
    steps, sends = bound(group, call, schedule)
    posts = new_posts(len(sends), kind=K_PUT, **{name: sends[name] for name in sends.dtype.names or ()})
    for compute_ps, value, at, size, word, cmp in steps.tolist():
        if compute_ps:
            device.compute(compute_ps, publish=False)
        if size:
            device.post(posts[at : at + size])
        if word >= 0:
            left = None if until_ps is None else max(0, until_ps - device.now_ps)
            if device.wait([(word, cmp, value)], timeout_ps=left) == TIMEOUT:
                return False
    count(group, call, schedule)
    return True
