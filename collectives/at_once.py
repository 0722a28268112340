"""Blocking calls of one plain exchange, in as little code as can be: where hundreds of ranks share a core,
each wake-up finds cold caches, and a call costs as much as it touches code and objects. What is out of the
ordinary takes the steps of `collectives.work`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from collectives.disagreement import MACHINE_ERRORS, compare, explain, late
from collectives.groups import TIMED_PS, Group
from collectives.plan import Plan
from collectives.work import Work
from emulator.engine.native import WAITING


def allowed(group: Group) -> bool:
    """Whether a blocking call of mine concerns nothing but its exchange: no time-out that may end it on its
    way, no watch for deaths, no open works, and entered by compiled code."""
    if group.enter is None:
        return False
    space, limit_ps = group.space, group.timeout_ps
    return not space.busy and not space.watching and (limit_ps is None or limit_ps >= TIMED_PS)


def at_once(group: Group, plan: Plan, send: Any = None, recv: Any = None) -> Work:
    """Call and complete a collective; the same as a `Work` that is run.

    Args:
        group: where `allowed`. plan: a `single` one. send, recv: the buffers.

    Raises: as `Work.wait`.
    """
    work, clock, [phase] = Work.__new__(Work), group.clock, plan.phases
    work.group, work.plan, work.send, work.recv = group, plan, send, recv
    work.number = group.calls = group.calls + 1
    work.start_ps, work.end_ps, work._error = clock[0], -1, None
    group.log.append(plan.note)
    try:
        if phase.before is not None:
            phase.before(work)
        if phase.due is not None:
            phase.due(work)
        agreed = group.enter(plan.packed, work.number)  # type: ignore[misc]
        if agreed is None:
            return _step_by_step(work)
        if clock[WAITING] or group.device.after_barrier:
            group.device.exchange_ended()
        limit_ps = group.timeout_ps
        if limit_ps is not None and clock[0] > work.start_ps + limit_ps:
            raise late(work, limit_ps)
        if not agreed:
            compare(work)
        if phase.after is not None:
            phase.after(work)
    except MACHINE_ERRORS as error:
        explain(work, error)
        raise
    finally:
        work.end_ps = clock[0]
    return work


def meeting(group: Group, plan: Plan) -> Callable[[], int]:
    """Make a function that takes part in a barrier, as `at_once` where `allowed`, without a `Work`.

    Args:
        plan: a `single` one, of a barrier of the group as it is now.

    Returns:
        a function that returns how long it took, ps of virtual time, for the caller to look at time-outs; -1
        where nothing has happened: the caller takes `coll.barrier` then.
    """
    space, enter, clock = group.space, group.enter, group.clock
    limit_ps, apart, after = group.timeout_ps, group.apart, group.device.after_barrier
    packed, note, chosen = plan.packed, plan.note, group.log.append
    assert enter is not None

    def meet() -> int:
        if space.busy or space.watching or group.enter is not enter:
            return -1
        if group.timeout_ps != limit_ps or group.apart is not apart:
            return -1
        number, start_ps = group.calls + 1, clock[0]
        try:
            agreed = enter(packed, number)
            if agreed is None:
                return -1
            group.calls = number
            chosen(note)
            if clock[WAITING] or after:
                group.device.exchange_ended()
            if not agreed:
                compare(_called(group, plan, number))
        except MACHINE_ERRORS as error:
            explain(_called(group, plan, number), error)
            raise
        return clock[0] - start_ps

    return meet


def too_long(group: Group, plan: Plan, limit_ps: int) -> Exception:
    """The error of the call that has just ended, where it took longer than `limit_ps`."""
    return late(_called(group, plan, group.calls), limit_ps)


def _called(group: Group, plan: Plan, number: int) -> Work:
    """The work of a call that is not counted yet or just now."""
    group.calls = number - 1
    return Work(group, plan)


def _step_by_step(refused: Work) -> Work:
    """The same call once more, of which nothing has happened but that its bytes are published."""
    group = refused.group
    group.calls -= 1
    work = Work(group, refused.plan, refused.send, refused.recv)
    work.run()
    return work
