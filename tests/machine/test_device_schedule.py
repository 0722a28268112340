"""A device's schedule: its loop's times, an observation point up to its last wait, disturbed and refused."""

import pytest
from ranks import run_ranks

pytestmark = pytest.mark.multirank

RING = """
import numpy as np
import emulator
from emulator.engine import ADD, GE, new_sends, new_steps
from emulator.engine.schedules import posts_of
from emulator.transport import Area
from emulator.errors import DeadlockError, UsageError

device = emulator.init()
n, me = device.num_ranks, device.rank
_, word, _ = device.symmetric.carve(Area.HEAP, 64, "ring", words=2)

def ring(first, tail=False):
    k = np.arange(2 * (n - 1))
    steps = new_steps(k.size + tail, compute_ps=1000 * me, first=np.arange(k.size + tail), count=1, cmp=GE)
    steps["word"][: k.size], steps["value"][: k.size] = word, first + k + 1
    return steps, new_sends(k.size + tail, nbytes=4096, peer=(me + 1) % n, word=word, op=ADD, value=1)

def loop(steps, sends):
    for step in steps.tolist():
        compute, value, first, count, word, cmp = step
        if compute:
            device.compute(compute)
        device.post(posts_of(sends[first : first + count]))
        if word >= 0:
            device.wait([(word, cmp, value)])

def timed(call, *args):
    start = (device.now_ps // 10**8 + 1) * 10**8  # everybody begins at the same time
    device.sleep_ps(start - device.now_ps - 1)
    call(*args)
    return device.now_ps - start
"""


def test_times_are_the_loops():
    """(Mutation: Device.schedule observes after its last puts: `end` moves by a call's price.)"""
    program = (
        RING
        + """
first = 0
times = []
for call in (loop, device.schedule, loop if me % 2 else device.schedule):
    times.append(timed(call, *ring(first, tail=True)))
    first += 2 * (n - 1) + 1  # the put of the tail counts too
wires = int(device.ledger.wire[0])
blank = new_steps(1, word=word, cmp=GE, value=10**6)
start = device.now_ps
late = device.schedule(blank, new_sends(0), timeout_ps=5_000_000), device.now_ps - start
wrong = []
for steps, sends in ((blank, new_sends(1, peer=n)), (blank, [1]), (new_steps(1, count=1), new_sends(0))):
    try:
        device.schedule(steps, sends)
    except UsageError as error:
        wrong.append(str(error).splitlines()[0])
report(times=times, late=late, wrong=wrong, wires=wires)
"""
    )
    ran = run_ranks(4, program)
    for rank, told in ran.reports.items():
        assert len(set(told["times"])) == 1, (rank, told)
        assert told["late"] == [0, 5_000_000]
        assert [x.split(",")[0] for x in told["wrong"]] == [
            "schedule: peer of send 0 is 4",
            "schedule: needs a contiguous row of SEND_DTYPE",
            "schedule: count of step 0 is 1",
        ]
    assert {told["wires"] for told in ran.reports.values()} == {3 * 7 * 4096}


def test_what_a_schedule_shows():
    """Bytes put before the awaited signal are there; adversarial delivery changes times, not counts; the
    compiled call and the steps one by one leave the same trace. (Mutation: the compiled call forgets the
    trace record.)"""
    program = (
        RING
        + """
place = device.symmetric.carve(Area.HEAP, 8 * n, "marks")[0]
device.put((me + 1) % n, place, np.array([me + 1]), 8)
if device.may_reorder:
    device.quiet()
steps, sends = ring(0)
device.schedule(steps, sends)
seen = int(device.heap[place : place + 8].view(np.int64)[0])
after, more = ring(2 * (n - 1))
device.schedule(after, more)
device.barrier()
report(seen=seen, count=device.read(word))
"""
    )
    shas = []
    ways = {"delivery": "natural"}, {"delivery": "natural", "engine": "python"}, {"delivery": "adversarial"}
    for way in ways:
        ran = run_ranks(4, program, seed=5, **way)
        shas.append(ran.sha)
        for rank, told in ran.reports.items():
            assert told["seen"] == (rank - 1) % 4 + 1
            assert told["count"] == 12
    assert shas[0] == shas[1] != shas[2]


def test_a_schedule_that_cannot_end():
    """Everybody is told which step waits for which word."""
    program = (
        RING
        + """
steps, sends = ring(0)
if me == 1:
    steps["value"][3] += 100
try:
    device.schedule(steps, sends)
    said = ""
    device.barrier()
except DeadlockError as error:
    said = str(error)
report(said=said)
"""
    )
    ran = run_ranks(3, program, check=False)
    assert "rank 1 in schedule(step 3: word" in ran.stderr + str(ran.reports)
