"""Ranks that die in the middle of collectives, and what the others do then: groups end, new ones work."""

import pytest
from ranks import run_ranks

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(200)]

DEATHS = """
import os, signal, sys
import numpy as np, emulator, pytest
from collectives import coll
from collectives.groups import Group
from collectives.ep import ExpertParallel
from emulator.errors import RankLostError
from memsem.window import Window
device = emulator.init()
world, n, me = Group.world(device), device.num_ranks, device.rank
data, seen = np.arange(3000) * (me + 1), []
def total(ranks): return np.arange(3000) * sum(r + 1 for r in ranks)
def die():
    device.engine.flush()
    os.kill(os.getpid(), signal.SIGKILL)
def lost(call, *dead):
    with pytest.raises(RankLostError) as caught:
        call()
    assert tuple(caught.value.ranks) == dead, caught.value
    return str(caught.value)
def everything(group):
    '''Exchanges, schedules, works under way together, messages; values written down.'''
    out, ranks = np.zeros(3000, np.int64), group.members
    for algorithm in (None, "ring", "full-mesh", "one-shot", "recursive-doubling"):
        coll.all_reduce(group, data, out, algorithm=algorithm)
        assert np.array_equal(out, total(ranks)), algorithm
    outs = [np.zeros(3000, np.int64) for _ in range(3)]
    works = [coll.all_reduce(group, data + k, out, async_op=True) for k, out in enumerate(outs)]
    for k in (2, 0, 1):
        works[k].wait()
        assert np.array_equal(outs[k], total(ranks) + k * group.size)
    coll.broadcast(group, out, group.size - 1)
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    sent = coll.send(group, data[:5], right, 1, async_op=True)
    coll.recv(group, out[:5], left, 1)
    sent.wait()
    assert np.array_equal(out[:5], np.arange(5) * (ranks[left] + 1))

everything(world)
low = Group.of(device, [0, 1]) if me < 2 else None
high = Group.of(device, [3, 4, 5]) if me > 2 else None
for group in (low, high):
    if group:
        coll.barrier(group)
out = np.zeros(3000, np.int64)
if me == 2:
    die()
# 3 waits in a group of the living for 4 and 5, who wait for the dead: all are told, at one time
pending = coll.all_reduce(low, data, np.zeros(3000, np.int64), async_op=True) if me == 1 else None
text = lost(lambda: coll.all_reduce(high if me == 3 else world, data, out, algorithm="ring"), 2)
assert "all_reduce" in text and "[2] are lost" in text, text
seen.append(device.now_ps)
for group in (world, low, high):
    if group:
        assert "make a new one of the living" in lost(lambda: coll.barrier(group), 2)
        lost(lambda: group.split(0), 2)
        group.free()
if pending:
    lost(pending.wait, 2)
lost(lambda: Group.of(device, [1, 2, me] if me != 1 else [1, 2]), 2)
living = [0, 1, 3, 4, 5]
for turn in range(int(sys.argv[1])):            # in another order each
    group = Group.of(device, living[turn % 5:] + living[:turn % 5])
    everything(group)
    half = group.split(me % 2)
    assert half.members == tuple(r for r in group.members if r % 2 == me % 2)
    everything(half)
    coll.barrier(group)
    half.free(), group.free()
group = Group.of(device, living, "second")
coll.barrier(group)
if me == 4:                                     # before a new group has met: 5 is on its way to the next
    die()
fresh = Group.of(device, living, "never met")
text = lost(lambda: coll.barrier(fresh if me in (0, 5) else group), 2, 4)
seen.append(device.now_ps)
group = Group.of(device, [5, 0, 1, 3])
everything(group)
# what all ranks of the machine make together, the living make now: windows, barriers, expert buffers
for turn in range(3):
    window = Window.create((n, 2), np.int64, signals=1)
    for peer in group.members:
        window.put_signal(peer, [me, turn], 2 * me, signal=0, value=1, op="add")
    window.signal_wait_until(0, "ge", 4)
    got = window.load().reshape(n, 2).tolist()
    assert all(got[r] == [r, turn] for r in group.members)
    device.barrier()
    window.free()
ep = ExpertParallel(group, 8, 4, 2, 2, "xccl")
x = np.full((2, 4), me, np.float32)
handle = ep.dispatch(x, np.array([[0, 7], [me, 1]]))
assert np.array_equal(ep.combine(handle, handle.rows, np.ones((2, 2), np.float32)), 2 * x)
assert "make it of the living" in lost(lambda: ExpertParallel(device, 12, 4, 2, 2), 2, 4)
report(seen=seen, now=device.now_ps)
"""


@pytest.mark.parametrize(("engine", "turns"), [("c", 20), pytest.param("python", 4, marks=pytest.mark.sweep)])
def test_survivors_make_new_groups(engine, turns):
    """open-mpi/ompi #13915, pmodels/mpich #2198. All are told at the same virtual time, whenever the host saw
    the deaths; a second run of them gives the same times. (20 groups are more than there are slots.) Windows
    and expert buffers of the living: shown to fail where the machine's barrier still waits for all
    (`Device.lost` without `regroup`)."""
    call = {"args": (str(turns),), "keep_going": True, "check": False, "engine": engine}
    runs = [run_ranks(6, DEATHS, **call) for _ in range(2)]
    for ran in runs:
        assert sorted(ran.reports) == [0, 1, 3, 5], ran.stderr
        assert len({tuple(r["seen"]) for r in ran.reports.values()}) == 1
    assert runs[0].reports == runs[1].reports
