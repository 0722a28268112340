"""What is wrong with a collective that does not end well: who called something else, who never came, who is
dead, or what else this rank has begun."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from collectives.agreement import (
    AGREED,
    CollectiveMismatchError,
    CollectiveTimeoutError,
    absent,
    differences,
    mismatch,
)
from emulator.engine.reports import ranges
from emulator.errors import DeadlockError, InternalError, MembershipChanged

if TYPE_CHECKING:
    from collectives.work import Work

_MARK = "collective "
MACHINE_ERRORS = (DeadlockError, InternalError, MembershipChanged)
"""With what a wait ends that cannot end well; see `explain`."""


def compare(work: Work) -> None:
    """All have entered: compare what they called. Raises: CollectiveMismatchError."""
    group, plan = work.group, work.plan
    if not group.prepared:
        group.store.opened()
        group.prepare()
    table = group.store.announced(work.number)
    row = np.array(work.descriptor)[:AGREED]
    equal = (table[:, :AGREED] == row).all()
    if equal and not int(table[:, AGREED].sum()):
        return
    text = differences(table, group.members)
    if equal:
        text = plan.disagreement(work) if plan.disagreement is not None else "sizes"
    raise mismatch(group.name, work.descriptor, text or "descriptors differ")


def explain(work: Work, error: Exception) -> None:
    """Raise what lies behind a run that cannot go on, if it is a disagreement of this group, or behind a wait
    that ended for deaths."""
    group = work.group
    if isinstance(error, MembershipChanged):
        text = f"collective {work.number} of group {group.name} ({work.descriptor.words})"
        lost = f"{text} was given up: ranks {list(error.ranks)[:20]} are lost"
        raise MembershipChanged(lost, error.ranks, epoch=error.epoch) from None
    if isinstance(error, InternalError):
        text = str(error).partition(": ")[2]
        if text.startswith(_MARK):
            raise CollectiveMismatchError(text, group=group.name, call=work.number) from None
        return
    assert isinstance(error, DeadlockError)
    missing = absent(group.store.last_calls(), work.number, group.members)
    table = group.store.announced(work.number)
    here = table[:, 0] == work.number
    unlike = differences(table[here], np.array(group.members)[here].tolist())
    if unlike is None and missing:
        unlike = f"{ranges(missing)} never entered it; {error.message}"
    if unlike is None:
        unlike = _held_up(work, error)
    if unlike is not None:
        raise mismatch(group.name, work.descriptor, unlike) from error


def _held_up(work: Work, error: DeadlockError) -> str | None:
    """What this rank has begun in other groups, which may be what the others wait for."""
    busy = work.group.space.busy
    others = [group.open[0] for group in busy if group.open and group is not work.group]
    if not others:
        return None
    begun = "; ".join(
        f"collective {other.number} of group {other.group.name} ({other.descriptor.words})"
        for other in others[:4]
    )
    return (
        f"this rank waits for it while it has begun {begun}, which move on only in calls that wait for "
        f"collectives or messages; {error.message}"
    )


def late(work: Work, timeout_ps: int | None) -> CollectiveTimeoutError:
    """The error of a collective that took too long, with who had not entered."""
    group = work.group
    missing = absent(group.store.last_calls(), work.number, group.members)
    who = f"; {ranges(missing)} had not entered" if missing else ""
    return CollectiveTimeoutError(
        f"collective {work.number} of group {group.name} ({work.descriptor.words}) took longer than "
        f"{timeout_ps} ps on rank {group.device.rank}{who}",
        group=group.name, call=work.number, timeout_ps=timeout_ps, missing=tuple(missing),
    )  # fmt: skip
