"""Ranks that disagree: an error on every rank that names ranks and what differs; time-outs; lost ranks."""

import pytest
from ranks import run_ranks

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(200)]

SETUP = """
import numpy as np, emulator
from collectives import coll
from collectives.agreement import CollectiveMismatchError, CollectiveTimeoutError
from collectives.groups import Group
from emulator.errors import *
device = emulator.init()
world, n, me = Group.world(device), device.num_ranks, device.rank
a, b = np.arange(4 * n, dtype=np.float32), np.zeros(4 * n, np.float32)
odd = me == 2
def caught(kind, call):
    try:
        call()
    except kind as error:
        return str(error)
    return "nothing was raised"
"""

TOGETHER = (
    SETUP
    + """
wrong = lambda call: caught(CollectiveMismatchError, call)
texts = dict(
    count=wrong(lambda: coll.all_reduce(world, a[: 4 + odd], b[: 4 + odd])),
    op=wrong(lambda: coll.all_reduce(world, a[:4], b[:4], "max" if odd else "sum")),
    dtype=wrong(lambda: coll.all_gather(world, a[:2].view(np.int32 if odd else np.float32),
                                        b[: 2 * n].view(np.int32 if odd else np.float32))),
    charge=wrong(lambda: coll.all_to_all(world, a, b, charge_bytes=9 if odd else 8)),
    operation=wrong(lambda: coll.all_to_all(world, a, b) if odd else coll.all_gather(world, a[:4], b)),
    counts=wrong(lambda: coll.all_gather_v(world, a[:2], b, [2, 2, 2, 3 if odd and me != 3 else 2][:n])),
    pairs=wrong(lambda: coll.all_to_all_v(world, a, [2] * n, b, [2, 2, 2, 3 if odd else 2])),
    gathered=wrong(lambda: coll.gather_v(world, a[: 1 + odd], b, [1] * n if me == 0 else None)),
)
coll.all_reduce(world, a, b)                      # the group goes on
assert np.array_equal(b, n * a)
report(**texts)
"""
)


@pytest.mark.parametrize("transport", ["shared", "rma"])
def test_differences_are_seen_by_all_and_the_group_goes_on(transport):
    """Mutation: a tag without the descriptor's mark; the counts of one rank are then taken for all."""
    ran = run_ranks(4, TOGETHER, transport=transport)
    for texts in ran.reports.values():
        assert "count: ranks 0-1, 3: 4; rank 2: 5" in texts["count"]
        assert "op: ranks 0-1, 3: sum; rank 2: max" in texts["op"]
        assert "dtype: ranks 0-1, 3: float32; rank 2: int32" in texts["dtype"]
        assert "charge_bytes: ranks 0-1, 3: 8; rank 2: 9" in texts["charge"]
        assert "operation: ranks 0-1, 3: all_gather; rank 2: all_to_all" in texts["operation"]
        assert "rank 2" in texts["counts"] and "list of counts" in texts["counts"]
        assert "rank 3 sends 2 elements to rank 2, which expects 3" in texts["pairs"]
        assert (
            "the root expects other counts than are sent" in texts["gathered"]
            and "rank 2 sends 2, the root has 1" in texts["gathered"]
        )


HANGS = {
    "root": ("coll.broadcast(world, a, 1 if odd else 0)", "root: ranks 0-1, 3: 0; rank 2: 1"),
    "order": (
        "coll.barrier(pair if odd else world) if me in (1, 2) else coll.barrier(world)",
        "rank 2 never entered it",
    ),
    "left": ("None if odd else coll.barrier(world)", "rank 2 ended"),
    "lists": (
        "coll.barrier(Group.of(device, [0, 2, 3] if odd else [0, 1, 2, 3]))",
        "of ranks 0-3; rank 2: in the making of group",
    ),
    "algorithm": (
        "coll.barrier(world, algorithm='dissemination' if odd else 'binomial')",
        "algorithm: ranks 0-1, 3: binomial; rank 2: dissemination",
    ),
    "alone": ("coll.all_reduce(world, a, b[:1] if odd else b)", "rank 2: refused at "),
}


@pytest.mark.parametrize("case", HANGS)
def test_what_would_hang_is_an_error_on_every_rank(case):
    """Each says who made it hang, and what with. Seen to fail without remarks ("lists", "alone") and without
    who has ended ("left")."""
    call, text = HANGS[case]
    program = f"""{SETUP}
pair = Group.of(device, [1, 2]) if me in (1, 2) else None
if pair:
    coll.barrier(pair)
try:
    {call}
    report(text="nothing")
except (CollectiveMismatchError, SizeError) as error:
    report(text=str(error), kind=type(error).__name__)
    raise SystemExit(0)
"""
    ran = run_ranks(4, program)
    kinds = {rank: report.get("kind") for rank, report in ran.reports.items()}
    others = [r for r in range(4) if not (r == 2 and case in ("left", "alone"))]
    assert all(text in ran.reports[r]["text"] for r in others if not (r == 2 and case == "order")), (
        ran.reports
    )
    assert all(kinds[r] == "CollectiveMismatchError" for r in others), kinds
    if case == "alone":
        assert "recv has 1 elements, 16 are needed" in ran.reports[2]["text"]


TIMES = (
    SETUP
    + """
world.timeout_ps = 5_000_000
late = lambda call: caught(CollectiveTimeoutError, call)
pair = Group.of(device, [1, 2]) if me in (1, 2) else None
start = device.now_ps
if odd:
    device.compute(500_000_000)
    report(done=True)
    raise SystemExit(0)
text = late(lambda: coll.CALL)
took = device.now_ps - start
first = ""
if pair:
    pair.timeout_ps = 5_000_000
    first = late(lambda: coll.barrier(pair))
report(text=text, took=took, first=first)
"""
)


@pytest.mark.parametrize("call", ["barrier(world, algorithm='dissemination')", "all_reduce(world, a, b)"])
def test_a_time_out_takes_effect_at_its_instant(call):
    """Also where a member never comes, and at the first collective of a group. Mutation: no deadline."""
    ran = run_ranks(4, TIMES.replace("CALL", call))
    for rank in (0, 1, 3):
        report = ran.reports[rank]
        assert "took longer than 5000000 ps" in report["text"] and "rank 2 had not entered" in report["text"]
        assert report["took"] == 5_000_000
    assert "not heard of: rank 2" in ran.reports[1]["first"]


def test_a_lost_rank_is_named():
    program = f"""{SETUP}
import os, signal
coll.barrier(world)
if odd:
    os.kill(os.getpid(), signal.SIGKILL)
report(text=caught(RankLostError, lambda: coll.all_reduce(world, a, b)))
"""
    ran = run_ranks(4, program, keep_going=True, check=False)
    assert all(
        "2" in ran.reports[rank]["text"] and "lost" in ran.reports[rank]["text"] for rank in (0, 1, 3)
    ), ran
