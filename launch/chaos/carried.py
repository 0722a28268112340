"""Which kinds of faults colocated serving carries out, and what for. Pure."""

from __future__ import annotations

from emulator.errors import UsageError
from emulator.faults import KINDS, FaultPlan
from emulator.faults.generate import BEATEN, INJECTED, LINKED, MEMBERS, NIC, SERVED
from emulator.faults.names import nearest

ALWAYS = (*INJECTED, *SERVED, *LINKED)
"""Kinds that every serving run carries out."""
IN_PLACE = (*BEATEN, *NIC, *MEMBERS)
"""Kinds that recovery in place brings the parts for."""
_WHY = (
    (BEATEN, "a pod that restarts sends no heartbeats and has no control process"),
    (NIC, "a pod that restarts takes no tokens to the front end by RDMA"),
    (MEMBERS, "a pod that restarts has the same members all the time"),
)


def carried(in_place: bool) -> tuple[str, ...]:
    """Kinds that are carried out."""
    return (*ALWAYS, *(IN_PLACE if in_place else ()))


def parse_kinds(words: str | None, in_place: bool = False) -> tuple[str, ...]:
    """Turn `kill,freeze` into kinds; all that can be by default.

    Raises:
        UsageError: an unknown kind, or one that is not carried out.
    """
    if words is None:
        return carried(in_place)
    kinds = tuple(word.strip() for word in words.split(",") if word.strip())
    for kind in kinds:
        if kind not in KINDS:
            raise UsageError(
                f"--faults {words}: no fault is called {kind!r}; nearest: {nearest(kind, KINDS)}"
            )
        check_kind(f"--faults {words}: ", kind, in_place)
    if not kinds:
        raise UsageError("--faults: name at least one kind")
    return kinds


def check_plan(plan: FaultPlan, in_place: bool) -> None:
    """Refuse a plan with a fault that would find nobody to carry it out. Raises UsageError with its line."""
    for index, fault in enumerate(plan.faults):
        check_kind(plan.place(index, "kind"), fault.kind, in_place)


def check_kind(place: str, kind: str, in_place: bool) -> None:
    """Refuse a kind that is not carried out. Raises UsageError: what, why, and what takes it."""
    if kind in carried(in_place):
        return
    why = next(reason for kinds, reason in _WHY if kind in kinds)
    raise UsageError(f"{place}{kind} needs --recovery in-place: {why}; restart has {', '.join(ALWAYS)}")
