"""Asynchronous works of several groups, waited for crosswise: whoever waits lets its other works move on."""

import pytest
from ranks import run_ranks

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(200)]

CROSS = """
import numpy as np, emulator, pytest
from collectives import coll
from collectives.agreement import CollectiveMismatchError
from collectives.groups import Group
device = emulator.init()
world, n, me = Group.world(device), device.num_ranks, device.rank
here, there = Group.of(device, range(n), "here"), Group.of(device, range(n)[::-1], "there")
coll.barrier(here)
coll.barrier(there)
first, last = (here, there) if me % 2 else (there, here)
times = []
def turn(make, check, depth=3):
    '''`depth` works of each group, begun in different order; the last of either group is waited for first.'''
    begun = {group: [make(group, k) for k in range(depth)] for group in (first, last)}
    begun[first][-1][0].wait()
    times.append(device.now_ps)
    begun[last][-1][0].wait()
    times.append(device.now_ps)
    for group, works in begun.items():
        for k, (work, out) in enumerate(works):
            assert work.is_completed()
            check(group, k, out)
def reduced(group, k, algorithm, size):
    out = np.zeros(size, np.int64)
    how = {"algorithm": algorithm} if algorithm else {}
    return coll.all_reduce(group, np.arange(size) * (me + k), out, async_op=True, **how), out
def sum_is_right(group, k, out):
    assert (out == np.arange(out.size) * (sum(range(n)) + n * k)).all(), (group.name, k, out)
for limit in (None, 10**11):                                      # exchanges, puts
    here.timeout_ps = there.timeout_ps = limit
    for algorithm in (None, "ring", "recursive-doubling", "full-mesh", "recursive-halving"):
        for size in (3, 5000):
            turn(lambda group, k: reduced(group, k, algorithm, size), sum_is_right)
    def spread(group, k):
        out = np.full(4, 7 + k if group.rank == k else 0)
        return coll.broadcast(group, out, k, algorithm="binomial", async_op=True), out
    turn(spread, lambda group, k, out: (out == 7 + k).all() or 1 / 0, depth=min(3, n))
here.timeout_ps = there.timeout_ps = None
# a blocking call, and a message, of one rank while the other waits for what it has begun elsewhere
for name in ("ring", None):
    works = [reduced(here, k, name, 10)[0] for k in range(3)]
    if me == 0:
        works[-1].wait()
        coll.send(world, np.arange(3), 1, 1)
    elif me == 1:
        coll.recv(world, np.zeros(3, np.int64), 0, 1)
    coll.barrier(world)
    for work in works:
        work.wait()
# one rank disagrees about the second of three: those before and after it are right, on all ranks
works = [reduced(here, k, None, 4 + (k == 1 and me == 1)) for k in range(3)]
other = [reduced(there, k, None, 4) for k in range(2)]
(other if me % 2 else works)[-1][0].wait()
for k, (work, out) in enumerate(works):
    if k == 1:
        with pytest.raises(CollectiveMismatchError, match="rank 1: 5"):
            work.wait()
    else:
        work.wait()
        sum_is_right(here, k, out)
for work, out in other:
    work.wait()
report(times=times, now=device.now_ps)
"""


def test_works_waited_for_crosswise():
    """Mutations: `progress.wanted` is never so (ranks wait for each other for ever); a moved schedule sends
    nothing after its first wait; HERE holds before the last record came."""
    runs = [run_ranks(4, CROSS, engine=engine) for engine in ("c", "python")]
    assert runs[0].reports == runs[1].reports
    assert runs[0].sha == runs[1].sha
