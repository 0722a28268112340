"""Faults on real ranks: one run with a freeze, a slow die and two kills, one of them inside a lock."""

from collections.abc import Callable

import pytest

from emulator.faults import FaultPlan
from emulator.testing import FaultyRun, fault_plan, faulty_pod  # noqa: F401

pytestmark = pytest.mark.multirank

_PROGRAM = """
import emulator
from emulator.errors import RankLostError
from emulator.testing import report
device = emulator.init()
times = []
try:
    for _ in range(60):
        device.compute(1_000_000)
        device.barrier()
        times.append(device.now_ps)
except RankLostError:
    pass
report(times=times, dead=device.board.dead.tolist())
"""


def test_faults_of_real_ranks_fire_at_their_times_and_the_same_way_twice(
    fault_plan: Callable[..., FaultPlan],  # noqa: F811
    faulty_pod: Callable[..., FaultyRun],  # noqa: F811
) -> None:
    plan = fault_plan(
        {"kind": "freeze", "rank": 1, "at_ps": 4_000_000, "duration_ps": 50_000_000},
        {"kind": "slow", "rank": 2, "at_ps": 70_000_000, "factor": 5.0, "duration_ps": 20_000_000},
        {"kind": "kill", "rank": 0, "at_ps": 130_000_000},
        {"kind": "qp_error", "rank": 1, "at_ps": 0},
    )
    first, again = (faulty_pod(4, _PROGRAM, plan) for _ in range(2))
    assert first.code == 0, first.stderr
    assert first.reports == again.reports and first.faults == again.faults
    assert [row["fired"] for row in first.faults] == [1, 1, 1, 0]
    assert "1 of 4 faults never fired: 3 (qp_error)" in first.stderr
    assert sorted(first.reports) == [1, 2, 3] and first.reports[3]["dead"] == [1, 0, 0, 0]
    times = first.reports[3]["times"]
    steps = [b - a for a, b in zip(times, times[1:], strict=False)]
    assert max(steps) > 48_000_000 and sum(step > 4_500_000 for step in steps) >= 4
    assert first.faults[0]["undone_ps"] == 54_000_000 and first.faults[1]["undone_ps"] == 90_000_000
