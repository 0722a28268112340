"""Blocking calls of one plain exchange, in as little code as can be: where hundreds of ranks share a core,
each wake-up finds cold caches, and a call costs as much as it touches code and objects. What is out of the
ordinary takes the steps of `collectives.work`.
"""

from __future__ import annotations

from typing import Any

from collectives.disagreement import MACHINE_ERRORS, compare, explain
from collectives.groups import Group
from collectives.plan import Plan
from collectives.work import Work


def allowed(group: Group) -> bool:
    """Whether a blocking call of mine concerns nothing but its exchange: no time-out, no watch for deaths, no
    open works, and entered by compiled code."""
    space = group.space
    plain = group.enter is not None and group.timeout_ps is None and not space.busy and not space.watching
    return plain and group.device.compiled is not None


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
        device = group.device
        if device.after_barrier or device.posting.owners:
            device.exchange_ended()
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


def _step_by_step(refused: Work) -> Work:
    """The same call once more, of which nothing has happened but that its bytes are published."""
    group = refused.group
    group.calls -= 1
    work = Work(group, refused.plan, refused.send, refused.recv)
    work.run()
    return work
