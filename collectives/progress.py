"""Works that were begun move on while this rank waits for something else.

A rank that waits for a collective of one group, or for a message, may be what others wait for in another
group: a step of an algorithm, or the next of several open works. So it waits for its own condition and for
theirs at once, and whenever one of theirs holds it takes that step. Works from which nobody needs anything
more are left alone: where no work needs help, a wait costs what it costs without any.

MPI 4.1, section 3.7.4 (progress), asks for as much: a call that blocks lets the process's other operations go
on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectives import movement
from collectives.algorithms import Exchange, Flow
from emulator.engine.api import HERE, TIMEOUT
from emulator.engine.schedules import Steps

if TYPE_CHECKING:
    from collectives.groups import Group, Space
    from collectives.work import Work

Condition = tuple[int, int, int]


class Moving:
    """A flow that is moved from wait to wait.

    Args:
        here: where. flow: what. tag: given to all with an exchange.
        posted: it has left by `movement.post`; else it leaves now.

    Attributes:
        done: it has passed. tags: sum of all ranks' tags then, None of a schedule.
    """

    def __init__(self, here: movement.Here, flow: Flow, tag: int, posted: bool) -> None:
        self._here, self._at = here, 0
        self.done = False
        self.tags: int | None = None
        group = here.group
        self._exchange = flow if isinstance(flow, Exchange) and group.channel is not None else None
        if self._exchange is not None:
            if not posted:
                movement.post(group, here.call, flow, tag)
            return
        schedule = movement.as_schedule(group, flow, here.phase) if isinstance(flow, Exchange) else flow
        self._schedule = schedule
        steps, self._sends = movement.bound(group, here.call, schedule)
        self._steps = movement.from_wait(steps) if posted else steps
        self._go()

    @property
    def more(self) -> bool:
        """Whether others wait for something that this rank has yet to send."""
        return self._exchange is None and _sends_after(self._steps, self._at)

    @property
    def condition(self) -> Condition | None:
        """What it waits for, as `Device.wait` takes it; None when it is done."""
        if self.done:
            return None
        if self._exchange is not None:
            assert self._here.group.channel is not None
            return self._here.group.channel, HERE, 0
        _, value, _, _, word, cmp = self._steps[self._at].tolist()
        return word, cmp, value

    def advance(self) -> None:
        """The condition holds (or it is done): go on to the next wait."""
        if self.done:
            return
        if self._exchange is None:
            self._at += 1
            self._go()
            return
        device, channel = self._here.group.device, self._here.group.channel
        assert channel is not None
        result = device.exchange_wait(channel)
        end_ps = result.records_ps + self._exchange.tail_ps
        if end_ps > device.now_ps:
            device.compute(end_ps - device.now_ps)
        self.tags, self.done = int(result.tags.sum()), True

    def _go(self) -> None:
        device = self._here.group.device
        for at in range(self._at, len(self._steps)):
            self._at = at
            compute_ps, _, first, count, word, _ = self._steps[at].tolist()
            if compute_ps:
                device.compute(compute_ps, publish=False)
            if count:
                step = self._steps[at : at + 1].copy()
                step["compute_ps"], step["first"], step["word"] = 0, 0, -1
                device.schedule(step, self._sends[first : first + count])
            if word >= 0:
                return
        self.done = True
        movement.count(self._here.group, self._here.call, self._schedule)


def more_after(flow: Flow) -> bool:
    """Whether a rank that has posted a flow has yet to send something in it. Pure."""
    return not isinstance(flow, Exchange) and _sends_after(flow.steps, 0)


def _sends_after(steps: Steps, at: int) -> bool:
    return bool(steps["count"][at + 1 :].any())


def wanted(space: Space, mine: Group | None) -> bool:
    """Whether a work of another group than `mine` needs this rank."""
    return bool(space.busy) and bool(_in_need(space, mine))


def _in_need(space: Space, mine: Group | None) -> list[Work]:
    return [group.open[0] for group in space.busy if group is not mine and group.open[0].needs_help()]


def catch_up(group: Group) -> None:
    """Take the steps of a group's works that could have been taken by now, so that the next may leave.

    A rank that calls one work after another, computing between, waits for none of them; without this only the
    first would be under way. A look costs what a wait for what has happened costs.
    """
    while len(group.open) > 1 and group.open[0].is_entered:
        condition = group.open[0].condition()
        if condition is not None and group.device.wait([condition], True, 0) == TIMEOUT:
            return
        group.open[0].move_on()


def passed(moving: Moving, until_ps: int | None) -> int | None:
    """Let a flow pass, and others move meanwhile; returns as `movement.wait`. Raises: TooLate."""
    group = moving._here.group
    while (condition := moving.condition) is not None:
        left = None if until_ps is None else max(0, until_ps - group.device.now_ps)
        if not wait(group.space, condition, left, group):
            raise movement.TooLate
        moving.advance()
    if until_ps is not None and group.device.now_ps > until_ps:
        raise movement.TooLate
    return moving.tags


def wait(space: Space, mine: Condition, timeout_ps: int | None, group: Group | None = None) -> bool:
    """Wait for a condition while works of other groups than `group` move on; False: `timeout_ps` passed."""
    device = space.device
    until_ps = None if timeout_ps is None else device.now_ps + timeout_ps
    while True:
        works = _in_need(space, group) if space.busy else []
        theirs = [work.condition() for work in works]
        if None in theirs:
            works[theirs.index(None)].move_on()
            continue
        left = None if until_ps is None else max(0, until_ps - device.now_ps)
        index = device.wait([mine, *(one for one in theirs if one is not None)], bool(works), left)
        if index <= 0:
            return index != TIMEOUT
        works[index - 1].move_on()
