"""Meetings of the wall clock (`start_clock`, `hold_clock`) that ranks come to while others wait for them.

Who has returned from a barrier first may hold up who has not: what that one waits for is decided once the
first acts again. Fails where ranks at a meeting are never let go (`sp_wall_meet` that returns after its first
loop; `_meet` of the twin): the runs then end with the host's deadline.
"""

import pytest
from ranks import run_ranks

pytestmark = pytest.mark.multirank

UNEVEN = """
    import time
    import numpy as np
    import emulator
    device = emulator.init()
    me, engine, at, early_ns = device.rank, device.engine, [], []
    for meet in (engine.hold_clock, engine.start_clock) * 2:
        device.compute(1 + 1_000_000 * me)
        device.barrier()
        meet()
        at.append(device.now_ps)
        device.sleep_ps(1_000_000 * (1 + me))
    device.barrier()
    engine.hold_clock()  # one after the other, and the last rank waits for what the first does after both
    engine.start_clock()
    if me == 3:
        device.wait([(100, 0, 1)])
    if me == 0:
        device.put(3, 0, np.zeros(8, np.uint8), 8, word=100, value=1)
    device.compute(1 + 100_000 * (me == 3))
    engine.start_clock()
    device.sleep_ps(2_000_000)
    early_ns.append(device.instant_ns - time.monotonic_ns())
    device.quiet()
    report(at=at, now_ps=device.now_ps, early_ns=early_ns, moved=int(engine.wall(me)[0][6]))
"""


@pytest.mark.parametrize("engine", ["c", "python"])
def test_a_meeting_right_after_a_barrier_holds_nobody_up(engine: str) -> None:
    common = {"engine": engine, "timeout_s": 60}
    virtual = run_ranks(4, UNEVEN, **common)
    env = {"SUPERPOD_GRACE_S": "60"}
    wall = run_ranks(4, UNEVEN, env=env, clock="wall", dilation=1000.0, wall_deadline_s=20, **common)
    assert wall.sha == virtual.sha
    for rank, seen in wall.reports.items():
        same = virtual.reports[rank]
        assert (seen["at"], seen["now_ps"], seen["moved"]) == (same["at"], same["now_ps"], 0)
    # Rank 3 comes last and starts the clock; who was let go went on unslept, and may be ahead of it.
    assert max(wall.reports[3]["early_ns"]) <= 0


INTERRUPTED = """
    import os, signal, time
    import emulator
    from emulator.errors import MembershipChanged
    device = emulator.init()
    device.subscribe()
    device.barrier()
    dead = []
    if device.rank == 2:
        device.engine.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        if device.rank == 0:
            emulator.start_clock()  # let go: rank 1 waits for the dead, and will not come
        device.barrier()
    except MembershipChanged as change:
        dead = [int(rank) for rank in change.ranks]
        device.lost()
    emulator.start_clock()
    begin_ns, begin_ps = time.monotonic_ns(), device.now_ps
    device.wait([(100, 0, 1)], timeout_ps=50_000_000)
    slept_ns = time.monotonic_ns() - begin_ns
    report(dead=dead, slept_ns=slept_ns, early_ns=device.instant_ns - time.monotonic_ns())
"""


@pytest.mark.parametrize("engine", ["c", "python"])
def test_ranks_meet_again_after_a_death_kept_some_from_a_meeting(engine: str) -> None:
    """Fails without `sp_wall_realign` (`_realign`): one rank is then a meeting ahead for ever, and what it
    does between two of them is not slept."""
    config = {"engine": engine, "keep_going": True, "check": False, "timeout_s": 60}
    env = {"SUPERPOD_GRACE_S": "60"}
    ran = run_ranks(3, INTERRUPTED, env=env, clock="wall", dilation=2000.0, wall_deadline_s=20, **config)
    assert sorted(ran.reports) == [0, 1], ran.stderr
    for seen in ran.reports.values():
        assert seen["dead"] == [2] and seen["early_ns"] <= 0 and seen["slept_ns"] > 80_000_000, seen
