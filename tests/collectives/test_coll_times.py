"""Virtual times of every algorithm, to the picosecond, against written closed forms; schedules against loops.

All links are alike (one die a chip, one node) unless a test says so. P: price of a call, L: latency of a put,
s(b): time of b bytes at a port, n: ranks.
"""

import pytest
from ranks import run_ranks

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(200)]
ALIKE = {"pod.dies_per_chip": 1, "pod.chips_per_node": 8}

SETUP = """
import numpy as np, emulator
from collectives import coll
from collectives.groups import Group
device = emulator.init()
world, n, me = Group.world(device), device.num_ranks, device.rank
config = device.engine.config
P, L, LS = config.call_price_ps, config.put_latency_ps[2], config.put_latency_ps[0]
def s(b, link=2):
    return -(-b * 10**12 // config.write_bytes_per_s[link])
coll.barrier(world)
goal = [0]
def start():
    goal[0] += 10**9
    device.sleep_ps(goal[0] - device.now_ps - P)
    assert device.now_ps == goal[0]
def took(call):
    '''Time of the last rank, from a start at one instant.'''
    start()
    call()
    mine = np.array([device.now_ps - goal[0]])
    all_ = np.zeros(n, np.int64)
    coll.all_gather(world, mine, all_)
    return int(all_.max())
"""

CLOSED = (
    SETUP
    + """
rounds = (n - 1).bit_length()
b = 4000
block, vector = np.zeros(b // 4, np.int32), np.zeros(b // 4 * n, np.int32)
out, small = vector.copy(), block.copy()
def check(kind, name, want, *arguments, **how):
    got = took(lambda: getattr(coll, kind)(world, *arguments, algorithm=name, **how))
    assert got == want, (kind, name, got, want, got - want)
step = lambda nbytes: P + L + s(nbytes)
mesh = P + L + (n - 1) * s(b)
check("all_to_all", "full-mesh", mesh, vector, out)
check("all_gather", "full-mesh", mesh, block, out)
check("reduce_scatter", "full-mesh", mesh, vector, small)
check("all_reduce", "full-mesh", 2 * mesh, vector, out)
check("all_reduce", "one-shot", mesh, block, small)
check("all_reduce", "one-exchange", 2 * (P + L) + (n - 1) * s(2 * b), vector, out)
check("broadcast", "one-exchange", 2 * (P + L) + (n - 1) * s(2 * b), vector, root=n - 1)
check("gather", "one-exchange", mesh, block, out)
check("scatter", "one-exchange", mesh, out, small)
check("all_to_all", "pairwise", P + LS + s(b, 0) + (n - 1) * step(b), vector, out)
check("all_gather", "ring", (n - 1) * step(b), block, out)
check("reduce_scatter", "ring", (n - 1) * step(b), vector, small)
check("all_reduce", "ring", 2 * (n - 1) * step(b), vector, out)
counts = [min(1 << j, n - (1 << j)) for j in range(rounds)]
check("all_gather", "bruck", sum(step(c * b) for c in counts), block, out)
bits = [sum(i >> j & 1 for i in range(n)) for j in range(rounds)]
check("all_to_all", "bruck", sum(step(c * b) for c in bits), vector, out)
check("barrier", "dissemination", rounds * step(8))
check("barrier", "full-mesh", P + L + (n - 1) * s(32))
if n & (n - 1) == 0:
    check("all_reduce", "recursive-doubling", rounds * step(b), block, small)
    halves = sum(step(b * n >> (j + 1)) for j in range(rounds))
    check("reduce_scatter", "recursive-halving", halves, vector, small)
    check("all_gather", "recursive-doubling", halves, block, out)
    check("all_reduce", "recursive-halving", 2 * halves, vector, out)
flags = P + L + (n - 1) * s(8)                      # all ready flags are at the root
check("broadcast", "direct", flags + P + (n - 1) * s(b) + L, block)
check("scatter", "direct", flags + P + (n - 1) * s(b) + L, vector, small)
check("reduce", "direct", P + L + (n - 1) * s(b) + (n - 1) * P + s(8) + L, block, small)
check("gather", "direct", P + L + (n - 1) * s(b) + (n - 1) * P + s(8) + L, block, out)
if n == 4:                                          # rank 3 is the child of 2, the child of 0
    up = step(8) + step(8)
    check("broadcast", "binomial", up + step(b) + step(b), block)
    check("barrier", "binomial", up + step(8) + step(8))
charged = P + L + (n - 1) * s(7680)
check("all_to_all", "full-mesh", charged, vector, out, charge_bytes=7680)
report(now=device.now_ps)
"""
)


@pytest.mark.parametrize("n", [2, 4, 5])
def test_closed_forms(n):
    """Mutations: a signal of 16 B; ring one step short; two_shot with whole vectors."""
    run_ranks(n, CLOSED, set=ALIKE)


LEVELS = (
    SETUP
    + """
LN, LP = config.put_latency_ps[2], config.put_latency_ps[3]
b, p, q = 4000, 2, n // 2
vector = np.zeros(b // 4 * n, np.int32)
out, small = vector.copy(), vector[: b // 4].copy()
inside = P * (p - 1) + LN + s(q * b)
between = P + LP + (q - 1) * s(b, 3)
for kind, want, args in (
    ("reduce_scatter", inside + between, (vector, small)), ("all_gather", inside + between, (small, out)),
    ("all_reduce", 2 * (inside + between), (vector, out)),
    ("all_to_all", inside + P + LP + (q - 1) * s(p * b, 3), (vector, out)),
):
    got = took(lambda: getattr(coll, kind)(world, *args, algorithm="two-level"))
    assert got == want, (kind, got, want, got - want)
"""
)


def test_two_level_closed_forms():
    """Two ranks a node, three nodes."""
    run_ranks(6, LEVELS, set={"pod.dies_per_chip": 1, "pod.chips_per_node": 2})


LOOPS = (
    SETUP
    + """
import sys
from collectives import movement
if sys.argv[1] == "loop":
    def by_steps(here, schedule):
        if not movement.step_by_step(here.group, here.call, schedule, here.until_ps):
            raise movement.TooLate
    movement._pass_schedule = by_steps
rng = np.random.default_rng(me)
vector, total = np.arange(5 * n, dtype=np.float32), np.zeros(5 * n, np.float32)
times = []
for kind, name in (("all_reduce", "ring"), ("barrier", "dissemination"), ("all_reduce", "recursive-halving"),
                   ("all_to_all", "pairwise"), ("all_gather", "bruck"), ("broadcast", "binomial")):
    device.compute(int(rng.integers(1, 5_000_000)))
    few = {"barrier": (), "broadcast": (vector,), "all_gather": (vector[:5], total)}
    getattr(coll, kind)(world, *few.get(kind, (vector, total)), algorithm=name)
    times.append(device.now_ps)
report(times=times)
"""
)


def test_a_schedule_is_its_loop_to_the_picosecond():
    """Waking at each step or once: equal times on every rank, both engines, with skewed arrivals."""
    runs = [
        run_ranks(5, LOOPS, args=(how,), engine=engine)
        for how, engine in (("loop", "c"), ("whole", "c"), ("whole", "python"))
    ]
    assert runs[0].reports == runs[1].reports == runs[2].reports
    assert runs[1].sha == runs[2].sha
