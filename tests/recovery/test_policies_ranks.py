"""A death under each policy on real ranks: a spare stands in, experts are lost, routing leaves them out."""

from __future__ import annotations

import os
from typing import Any

import pytest

from emulator.faults import FaultPlan
from launch import paths
from launch.chaos.campaign import prepared
from launch.recovery_options import Policy, recovery_times

pytestmark = [pytest.mark.multirank, pytest.mark.sweep]

_KILL = {"kind": "kill", "at_request": {"request": 9, "state": "decode", "count": 2}}


def _under(policy: Policy) -> dict[str, Any]:
    own = paths.RunDirectory()
    try:
        return prepared(own, 5, 12, 60.0, policy).run(FaultPlan([_KILL]))[0]
    finally:
        own.remove()
        os.close(own.lock_fd)


def test_each_policy_answers_exactly_or_says_what_it_did_not() -> None:
    """Found by it: a touched request not flagged, a mask that is not the reference's, a spare without
    experts, an exact request failed."""
    times = recovery_times("in-place")
    spare = _under(Policy(times, spares=1))
    assert spare["violations"] == [] and spare["exact"] == 12
    (change,) = spare["recoveries"]
    assert change["joined"] == [4] and list(change["experts_loaded"]) == ["4"] and not change["experts_lost"]
    failing = _under(Policy(times, lost_experts="fail"))
    (change,) = failing["recoveries"]
    assert failing["violations"] == [] and change["experts_lost"] and not change["experts_loaded"]
    assert failing["failed"] > 0 and failing["failed"] + failing["exact"] == 12
    masked = _under(Policy(times, lost_experts="mask"))
    touched = masked["degraded"]
    assert masked["violations"] == [] and touched and masked["exact"] + len(touched) == 12
    for facts in touched.values():
        assert facts["as_reference_under_mask"] and set(facts["experts"]) <= set(change["experts_lost"])
