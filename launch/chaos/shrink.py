"""A failing plan made small: fewer faults, then simpler ones, as long as it still fails. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from emulator.faults import Fault, FaultPlan


def shrink(plan: FaultPlan, fails: Callable[[FaultPlan], bool], most_runs: int = 40) -> FaultPlan:
    """Return the smallest plan found that still fails.

    Args:
        plan: a plan that fails.
        fails: runs a plan; deterministic.
        most_runs: how often `fails` may be called.
    """
    runs = 0
    while True:
        for smaller in _smaller(plan):
            if runs == most_runs:
                return plan
            runs += 1
            if fails(smaller):
                plan = smaller
                break
        else:
            return plan


def _smaller(plan: FaultPlan) -> Iterator[FaultPlan]:
    if len(plan.faults) > 1:
        for index in range(len(plan.faults)):
            yield plan.without(index)
    for index, fault in enumerate(plan.faults):
        for changes in _simpler(fault):
            at = fault.at_request
            if "count" in changes and at is not None:
                changes = {"at_request": at.model_copy(update=changes)}
            faults = list(plan.faults)
            faults[index] = fault.model_copy(update=changes)
            yield FaultPlan(faults, plan.seed)


def _simpler(fault: Fault) -> Iterator[dict[str, object]]:
    if fault.duration_ps is not None and fault.duration_ps > 1_000_000:
        yield {"duration_ps": fault.duration_ps // 8}
    if fault.factor is not None and fault.factor > 2:
        yield {"factor": 2.0}
    if fault.at_request is not None and fault.at_request.count > 1:
        yield {"count": 1}
