"""Faults under the wall clock: planned ones come at their instants, and a death holds nobody up.

Fails on a build in which `start_clock` waits for the dead (`agreed` of both engines that asks all ranks).
"""

import json
from pathlib import Path

import pytest
from ranks import run_ranks

PROGRAM = """
    import os, signal, time
    import emulator
    device = emulator.init()
    device.barrier()
    emulator.start_clock()
    for i in range(4):
        device.barrier()
        device.sleep_ps(10_000_000)
    frozen_ps = device.now_ps
    for i in range(4):  # rank 3 dies
        device.sleep_ps(40_000_000)
    lost_ps, early_ns = device.now_ps, device.instant_ns - time.monotonic_ns()
    if device.rank == 2:  # not planned, and while the others wait for it
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    emulator.start_clock()
    device.sleep_ps(1_000_000)
    device.observe()
    again_ns = device.instant_ns - time.monotonic_ns()
    report(frozen_ps=frozen_ps, lost_ps=lost_ps, early_ns=early_ns, again_ns=again_ns)
"""
PLAN = {
    "fault": [
        {"kind": "freeze", "rank": 1, "at_ps": 20_000_000, "duration_ps": 50_000_000},
        {"kind": "kill", "rank": 3, "at_ps": 150_000_000},
    ]
}


@pytest.mark.parametrize("engine", ["c", "python"])
def test_faults_come_at_their_instants_and_deaths_hold_nobody_up(tmp_path: Path, engine: str) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(PLAN))
    common = {"engine": engine, "keep_going": True, "faults": str(plan), "check": False, "timeout_s": 60}
    env = {"SUPERPOD_GRACE_S": "60"}
    virtual = run_ranks(4, PROGRAM, **common)
    wall = run_ranks(4, PROGRAM, env=env, clock="wall", dilation=2000.0, **common)
    assert sorted(virtual.reports) == sorted(wall.reports) == [0, 1], wall.stderr
    assert virtual.result is not None and wall.result is not None
    for rank, seen in wall.reports.items():
        for when, least_ps in (("frozen_ps", 80_000_000), ("lost_ps", 240_000_000)):
            assert seen[when] == virtual.reports[rank][when] >= least_ps
        assert max(seen["early_ns"], seen["again_ns"]) <= 0
    assert wall.result["dead_ranks"] == virtual.result["dead_ranks"] == [2, 3]
    fired = [[row["fired"] for row in ran.result["faults"]] for ran in (virtual, wall)]
    assert fired[0] == fired[1] and all(fired[0])
