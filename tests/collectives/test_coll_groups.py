"""Groups that overlap, in any order of making; asynchronous work; messages; both transports; large counts."""

import pytest
from ranks import run_ranks

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(200)]

GROUPS = """
import os
os.environ["SUPERPOD_COLL_ALGORITHM"] = "reduce_scatter:ring"
import numpy as np, emulator, pytest
from collectives import coll, refs_coll as refs
from collectives.groups import Group
from emulator.errors import SizeError, StateError, UsageError
device = emulator.init()
world, n, me = Group.world(device), device.num_ranks, device.rank
lists = [[0, 1, 2], [2, 3, 4], [4, 1], [5, 0, 3, 1], [1, 2, 0], [0, 1, 2, 3, 4, 5], [3]]
mine = [k for k in range(len(lists)) if me in lists[k]]
made = {k: Group.of(device, lists[k]) for k in (mine if me % 2 else reversed(mine))}    # in any order
for _ in range(3):
    for k in mine:
        group = made[k]
        assert (group.size, group.members[group.rank]) == (len(lists[k]), me)
        data = [np.arange(5) * 10 + 100 * r + k for r in group.members]
        out, many = np.zeros(5, np.int64), np.zeros(5 * group.size, np.int64)
        coll.all_reduce(group, data[group.rank], out)
        assert np.array_equal(out, sum(data))
        coll.all_gather(group, data[group.rank], many)
        assert np.array_equal(many, np.concatenate(data))
# works of overlapping groups open at once, each group's own in order
works, outs = [], {}
for k in mine:
    for turn in range(3):
        outs[k, turn] = np.zeros(4, np.int64)
        kind = coll.all_reduce(made[k], np.full(4, me + turn), outs[k, turn], async_op=True)
        works.append(kind)
device.compute(50_000_000)
for work in reversed(works):
    work.wait()
    assert work.is_completed() and 0 <= work.start_ps <= work.end_ps
for (k, turn), out in outs.items():
    assert (out == sum(r + turn for r in lists[k])).all()
first = works[0]
assert first.end_ps - first.start_ps >= 50_000_000 and first.algorithm == "one-shot"
# of several groups, waited for in another order by each rank, with blocking calls between
# mutation: asynchronous calls choose as blocking ones do; ranks then wait for each other's second phase
pair = [Group.of(device, range(n)), Group.of(device, range(n)[::-1])]
twice = [Group.of(device, range(n), name=name) for name in ("ab" if me % 2 else "ba")]
twice.sort(key=lambda group: group.name)                           # told apart by their names
rows = np.random.default_rng(5).random((n, 997)).astype(np.float32)
for size, name in ((5, "one-shot"), (997, "one-exchange"), (1 << 18, "one-exchange")):
    many = np.resize(rows, (n, size))
    want, back = many[0].copy(), many[n - 1].copy()
    for r in range(1, n):
        want += many[r]
        back += many[n - 1 - r]
    for limit in (None, 10**11):                                       # exchanges, puts
        for group in pair:
            group.timeout_ps = limit
        outs = [np.zeros(size, np.float32) for _ in range(4)]
        hers, block = many[me].copy(), np.zeros(size, np.float32)
        begun = [coll.all_reduce(group, many[me], out, async_op=True) for group, out in zip(pair, outs)]
        if me == 0:
            coll.barrier(twice[0])
            coll.barrier(twice[1])
        for at in (0, 1) if me % 2 else (1, 0):
            begun[at].wait()
        assert np.array_equal(outs[0], want) and np.array_equal(outs[1], back)
        assert begun[0].algorithm == name or size == 997, begun[0].algorithm
        if me:
            coll.barrier(twice[0])
            coll.barrier(twice[1])
        given = many if me == 2 else None
        begun = [
            coll.broadcast(pair[0], hers, 1, async_op=True),
            coll.scatter(pair[1], given, block, n - 3, async_op=True),
            coll.reduce(twice[0], many[me], outs[2], root=1, async_op=True),
        ]
        for at in np.roll(range(3), me):
            begun[at].wait()
        assert np.array_equal(hers, many[1]) and np.array_equal(block, many[n - 1 - me])
        assert me != 1 or np.array_equal(outs[2], want)
        every = np.zeros((n, size), np.float32)
        begun = [
            coll.gather(pair[0], many[me], every, 1, async_op=True),
            coll.barrier(pair[1], async_op=True),
        ]
        for at in np.roll(range(2), me):
            begun[at].wait()
        assert me != 1 or np.array_equal(every, many)
for group in (*pair, *twice):
    group.timeout_ps = None
    group.free()
row = world.split(me % 2, -me)
assert row.members == tuple(sorted((r for r in range(n) if r % 2 == me % 2), reverse=True))
assert world.split(None if me else 0) is None or me == 0
out = np.zeros(1, np.int64)
coll.reduce_scatter(row, np.full(row.size, me), out)
assert out[0] == sum(row.members) and row.log[-1] == ("reduce_scatter", 8, "ring", "SUPERPOD_COLL_ALGORITHM")
coll.all_reduce(row, out, out)                                     # in place
assert out[0] == row.size * sum(row.members)
assert row.log[-1][2] == "one-shot" and "estimates" in row.log[-1][3]
for group in made.values():
    group.free()
coll.barrier(world)
again = {k: Group.of(device, lists[k]) for k in mine}
for k in mine:
    coll.barrier(again[k])
with pytest.raises(StateError, match="1 operations are not complete"):
    work = coll.barrier(row, async_op=True)
    row.free()
work.wait()
for text, call in (
    ("only members make a group", lambda: Group.of(device, [(me + 1) % n])),
    ("different ranks", lambda: Group.of(device, [me, me])),
    ("ranks are 0 to", lambda: Group.of(device, [me, n])),
    ("no root 0.0", lambda: coll.broadcast(world, out, 0.0)),
    ("no root None", lambda: coll.broadcast(world, out, None)),
    ("charge_bytes is 1.5", lambda: coll.barrier(world, charge_bytes=1.5)),
    ("whole numbers", lambda: coll.all_gather_v(world, out, np.zeros(n, np.int64), [1.5] * n)),
    ("whole numbers", lambda: coll.all_to_all_v(world, out, [0.5] * n, out, [0] * n)),
    ("different ranks", lambda: Group.of(device, [me + 0.5])),
    ("different ranks", lambda: Group.of(device, ["a"])),
    ("no root 9", lambda: coll.broadcast(world, out, 9)),
    ("not 6 equal blocks", lambda: coll.all_to_all(world, np.zeros(5), np.zeros(5))),
    ("no keyword 'colour'", lambda: coll.barrier(world, colour=1)),
    ("nearest: ring", lambda: coll.all_gather(world, out, np.zeros(n, np.int64), algorithm="rings")),
    ("cannot be sent", lambda: coll.broadcast(world, np.zeros(2, object))),
    ("a numpy array is needed", lambda: coll.broadcast(world, [1, 2])),
    ("recv cannot be written", lambda: coll.all_reduce(world, out, np.frombuffer(b"12345678", np.int64))),
    ("charge_bytes is -1", lambda: coll.barrier(world, charge_bytes=-1)),
    ("two-level needs several nodes", lambda: coll.all_gather(world, out, np.zeros(n, np.int64),
                                                              algorithm="two-level")),
    ("numbers of at least 0", lambda: coll.all_to_all_v(world, out, [-1] * n, out, [0] * n)),
    ("are not within the 1 of the buffer", lambda: coll.all_to_all_v(world, out, [1] * n, out, [0] * n)),
):
    with pytest.raises(UsageError, match=text):
        call()
# point to point in a group
other = (row.rank + 1) % row.size
sent = coll.send(row, np.arange(3) + me, other, 5, async_op=True)
got = np.zeros(3, np.int64)
came = coll.recv(row, got, None, 5)
sent.wait()
assert row.members[came.source] == row.members[(row.rank - 1) % row.size]
assert np.array_equal(got, np.arange(3) + row.members[came.source])
coll.barrier(world)
report(now=device.now_ps)
"""


@pytest.mark.parametrize("transport", ["shared", "rma"])
def test_groups(transport):
    """Mutation: groups of one slot share words also where they overlap."""
    ran = run_ranks(6, GROUPS, transport=transport)
    assert len(ran.reports) == 6


SAME = """
import numpy as np, emulator
from collectives import coll
from collectives.groups import Group
device = emulator.init()
world, n, me = Group.world(device), device.num_ranks, device.rank
sums = []
for count in (1, 700, 60_000):                              # the last is more than a window's room under rma
    x = ((np.arange(count * n) * 7 + me) % 1000).astype(np.float32) / 7
    y = np.zeros_like(x)
    coll.all_to_all(world, x, y)
    z = np.zeros(count, np.float32)
    coll.reduce_scatter(world, y, z)
    coll.all_gather(world, z, y)
    for name in ("full-mesh", "ring", "recursive-doubling"):
        coll.all_reduce(world, x, y, algorithm=name)
        sums.append(float(y.astype(np.float64).sum()))
    counts = [count + r for r in range(n)]
    wide, back = np.resize(x, sum(counts)), np.zeros(n * (count + me), np.float32)
    coll.all_to_all_v(world, wide, counts, back, [count + me] * n)
    coll.broadcast(world, back[:count], n - 1)
    sums.append(float(back.astype(np.float64).sum()))
report(sums=sums, now=device.now_ps)
"""


def test_transports_and_engines_give_the_same():
    """Bytes, times and trace, with what does not fit a window's room too."""
    config = {"managed_bytes": 1 << 20}
    runs = [
        run_ranks(3, SAME, transport=transport, engine=engine, **config)
        for transport, engine in (("shared", "c"), ("rma", "c"), ("shared", "python"))
    ]
    assert runs[0].reports == runs[1].reports == runs[2].reports
    assert runs[0].sha == runs[2].sha
    wild = run_ranks(3, SAME, delivery="adversarial", seed=5, **config)
    assert [r["sums"] for r in wild.reports.values()] == [r["sums"] for r in runs[0].reports.values()]


LARGE = """
import mmap, tempfile
import numpy as np, emulator
from collectives import coll
from collectives.groups import Group
device = emulator.init()
world, n, me = Group.world(device), device.num_ranks, device.rank
far = 5 * (1 << 31)                                         # most elements are never touched
def hollow():
    with tempfile.TemporaryFile() as file:                  # takes room only where it is touched
        file.truncate(far + 64)
        return np.frombuffer(mmap.mmap(file.fileno(), far + 64), np.uint8)
sparse = hollow()
sparse[far : far + 8] = 10 + me
out = np.zeros(8 * n, np.uint8)
coll.all_to_all_v(world, sparse, [8] * n, out, [8] * n, [far] * n)
assert np.array_equal(out, np.repeat(10 + np.arange(n), 8).astype(np.uint8))
back = hollow()
coll.all_gather_v(world, out[:4], back, [4] * n, [far + 8 * r for r in range(n)])
assert back[far : far + 4].tolist() == [10] * 4 and back[far + 8 : far + 12].tolist() == [10] * 4
start = device.now_ps
coll.all_to_all(world, out, out.copy(), charge_bytes=3 << 31)      # priced as 6.4 GB to each
config = device.engine.config
took = device.now_ps - start
rate = config.write_bytes_per_s[1]
assert took == config.call_price_ps + config.put_latency_ps[1] + -(-(3 << 31) * 10**12 // rate), took
one = np.zeros(1, np.int64)
coll.reduce_scatter(world, np.ones(n, np.int64), one, charge_bytes=1 << 33, algorithm="ring")
report(now=device.now_ps)
"""


def test_counts_past_two_to_the_31():
    run_ranks(2, LARGE)
