"""Every collective by every algorithm over real processes, against slow references; overlapping groups."""

import pytest
from ranks import run_ranks

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(200)]

SETUP = """
import numpy as np, emulator
from collectives import coll, refs_coll as refs
from collectives.algorithms import ALGORITHMS, applicable
from collectives.calls import nodes_of
from collectives.groups import Group
device = emulator.init()
world = Group.world(device)

def payload(rank, count, dtype, salt):
    '''Elements from the source's number; never the same from two ranks or places.'''
    x = (np.arange(count, dtype=np.int64) * 7 + rank * 131 + salt * 17) % 251 - 100
    if dtype == "bfloat16":
        return ((x.astype(np.float32) / 3).view(np.uint32) >> 16).astype(np.uint16)
    if dtype == "float32":
        return (x / np.float32(7)).astype(np.float32)
    return x.astype(dtype)

def empty(count, dtype, strided):
    kind = np.uint16 if dtype == "bfloat16" else np.dtype(dtype)
    if strided:
        return np.full((count, 3), 9, kind)[:, 1]
    return np.full(count, 9, kind)

def laid(values, strided):
    if not strided:
        return values
    wide = np.zeros((values.size, 2), values.dtype)
    wide[:, 1] = values
    return wide[:, 1]

def names(group, kind):
    return [name for name in ALGORITHMS[kind] if applicable(kind, name, nodes_of(group))]

def same(got, want, *what):
    got = np.ascontiguousarray(got)
    assert got.dtype == want.dtype and got.tobytes() == want.tobytes(), (device.rank, what, got, want)

def ops_of(dtype):
    return ["sum", "max", "avg"] if dtype in ("bfloat16", "float32") else ["sum", "min", "bxor"]
"""

EVERY = (
    SETUP
    + """
def equal_blocks(group, count, dtype, strided, salt):
    n, me, how = group.size, group.rank, {"dtype": dtype}
    big = [payload(r, count * n, dtype, salt) for r in range(n)]
    small = [payload(r, count, dtype, salt) for r in range(n)]
    for name in names(group, "all_to_all"):
        out = empty(count * n, dtype, strided)
        coll.all_to_all(group, laid(big[me], strided), out, algorithm=name, **how)
        same(out, refs.all_to_all(big)[me], "all_to_all", name, count, dtype)
    for name in names(group, "all_gather"):
        out = empty(count * n, dtype, strided)
        coll.all_gather(group, laid(small[me], strided), out, algorithm=name, **how)
        same(out, np.concatenate(small), "all_gather", name, count, dtype)
    for op in ops_of(dtype):
        for name in names(group, "reduce_scatter"):
            out = empty(count, dtype, strided)
            coll.reduce_scatter(group, laid(big[me], strided), out, op, algorithm=name, **how)
            same(out, refs.reduce_scatter(big, [count] * n, op, dtype)[me], "reduce_scatter", name, op)
        for name in names(group, "all_reduce"):
            out = empty(count, dtype, strided)
            coll.all_reduce(group, laid(small[me], strided), out, op, algorithm=name, **how)
            same(out, refs.reduced(small, op, dtype), "all_reduce", name, op, count, dtype)

def rooted(group, count, dtype, strided, salt):
    n, me, how, root = group.size, group.rank, {"dtype": dtype}, salt % group.size
    big = [payload(r, count * n, dtype, salt) for r in range(n)]
    small = [payload(r, count, dtype, salt) for r in range(n)]
    for name in names(group, "broadcast"):
        out = empty(count, dtype, strided)
        if me == root:
            out[...] = small[root]
        coll.broadcast(group, out, root, algorithm=name, **how)
        same(out, small[root], "broadcast", name)
        out = empty(count, dtype, strided)
        coll.reduce(group, laid(small[me], strided), out, "sum", root, algorithm=name, **how)
        want = refs.reduced(small, "sum", dtype) if me == root else empty(count, dtype, False)
        same(out, want, "reduce", name)
        out = empty(count * n, dtype, strided)
        coll.gather(group, laid(small[me], strided), out if me == root else None, root, algorithm=name, **how)
        same(out, np.concatenate(small) if me == root else empty(count * n, dtype, False), "gather", name)
        out = empty(count, dtype, strided)
        given = laid(big[root], strided) if me == root else None
        coll.scatter(group, given, out, root, algorithm=name, **how)
        same(out, np.split(big[root], n)[me], "scatter", name)

def unequal(group, most, dtype, strided, salt):
    n, me, how, root = group.size, group.rank, {"dtype": dtype}, salt % group.size
    counts = [(r * 5 + salt) % (most + 1) for r in range(n)]              # some are 0
    parts = [payload(r, counts[r], dtype, salt) for r in range(n)]
    starts = np.array([sum(counts[:r]) + 2 * r for r in range(n)])        # gaps of two
    gapped = empty(sum(counts) + 2 * n, dtype, False)
    for r in range(n):
        gapped[starts[r] : starts[r] + counts[r]] = parts[r]
    for name in names(group, "all_gather_v"):
        out = empty(sum(counts), dtype, strided)
        coll.all_gather_v(group, laid(parts[me], strided), out, counts, algorithm=name, **how)
        same(out, np.concatenate(parts), "all_gather_v", name)
        out = empty(gapped.size, dtype, strided)
        coll.all_gather_v(group, laid(parts[me], strided), out, counts, starts, algorithm=name, **how)
        same(out, gapped, "all_gather_v with gaps", name)
    big = [payload(r, sum(counts), dtype, salt) for r in range(n)]
    for name in names(group, "reduce_scatter_v"):
        out = empty(counts[me], dtype, strided)
        coll.reduce_scatter_v(group, laid(big[me], strided), out, counts, "sum", algorithm=name, **how)
        same(out, refs.reduce_scatter(big, counts, "sum", dtype)[me], "reduce_scatter_v", name)
    for name in names(group, "gather_v"):
        out = empty(gapped.size, dtype, strided)
        coll.gather_v(group, laid(parts[me], strided), out, counts, starts, root, algorithm=name, **how)
        same(out, gapped if me == root else empty(gapped.size, dtype, False), "gather_v", name)
        out = empty(counts[me], dtype, strided)
        coll.scatter_v(group, laid(gapped, strided), counts, out, starts, root, algorithm=name, **how)
        same(out, parts[me], "scatter_v", name)
    table = [[(3 * s + 5 * t + salt) % (most + 1) for t in range(n)] for s in range(n)]
    sends = [payload(s, sum(table[s]), dtype, salt) for s in range(n)]
    cut = [np.split(sends[s], np.cumsum(table[s])[:-1]) for s in range(n)]
    back = [table[s][me] for s in range(n)]
    for name in names(group, "all_to_all_v"):
        out = empty(sum(back), dtype, strided)
        coll.all_to_all_v(group, laid(sends[me], strided), table[me], out, back, algorithm=name, **how)
        same(out, np.concatenate([cut[s][me] for s in range(n)]), "all_to_all_v", name)
        wide = empty(3 * (most + 1) * n, dtype, strided)
        at = np.arange(n)[::-1] * 2 * (most + 1)                          # backwards
        spread = empty(wide.size, dtype, False)
        for s in range(n):
            spread[at[s] : at[s] + back[s]] = cut[s][me]
        given = laid(sends[me], strided)
        coll.all_to_all_v(group, given, table[me], wide, back, None, at, algorithm=name, **how)
        same(wide, spread, "all_to_all_v with places", name)

for name in names(world, "barrier"):
    coll.barrier(world, algorithm=name)
salt = 0
for dtype in ("float32", "bfloat16", "int8", "int64"):
    for count, strided in ((0, False), (1, True), (2, False), (3, False), (37, True)):
        salt += 1
        equal_blocks(world, count, dtype, strided, salt)
        rooted(world, count, dtype, strided, salt)
        unequal(world, count, dtype, strided, salt)
report(now=device.now_ps, calls=world.calls)
"""
)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_every_operation_by_every_algorithm(n):
    """Two nodes of four dies at 8 ranks. Mutations: padded() to 4 bytes, a column read one rank off, the
    pieces of all_to_all_v from the table of another rank."""
    ran = run_ranks(n, EVERY, set={"pod.nodes": 96, "pod.chips_per_node": 2})
    assert len({r["calls"] for r in ran.reports.values()}) == 1 and len(ran.reports) == n
