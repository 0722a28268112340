"""Six schemes over real processes: equal rows and bits, bytes as the closed forms, times as the fabric's."""

import numpy as np
import pytest
from ep_programs import SETUP
from ranks import run_ranks

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(200)]
SMALL_NODES = {"pod.chips_per_node": 1, "pod.nodes": 384}
"""Nodes of two dies: six ranks are three nodes."""

EVERY = (
    SETUP
    + """
out, back = EpCosts(700, 5_000_000, 400_000, 20_000, 48), EpCosts(1500, 3_000_000, 100, 7, 32)

def closed_form(scheme, x, ids, dispatch):
    '''Charged bytes of all ranks, from slow loops over tokens.'''
    b, m = (700, 48) if dispatch else (1500, 32)
    pairs = sum(int((i >= 0).sum()) for i in ids)
    ranks = sum(len({e // S for e in row if e >= 0}) for i in ids for row in i.tolist())
    far = sum(len({e // S // 2 for e in row if e >= 0} - {r // 2})
              for r, i in enumerate(ids) for row in i.tolist())
    tokens = sum(len(i) for i in ids)
    if scheme == "deepep":
        return n * n * (m if dispatch else 4) + (ranks + far) * b
    if scheme == "agrs":
        return n * n * (m if dispatch else 0) + n * tokens * b
    records = {"xccl": m, "cann": m, "deepep-ll": m * S, "all-to-all": m if dispatch else 0}[scheme]
    return n * n * records + pairs * b

barrier = my_bytes()
barrier = my_bytes() - barrier
ends, sums, mine, want = {}, {}, [], []
for scheme in SCHEMES:
    ep = ExpertParallel(device, E, H, T, K, scheme, dispatch_costs=out, combine_costs=back, kind=KIND)
    before, start = my_bytes(), device.now_ps
    for event in range(2):
        for route in ROUTES:
            x, ids, w = make(route, event)
            sent = [wire.decode(wire.encode(rows, KIND), KIND, H) for rows in x]
            handle = ep.dispatch(x[me], ids[me])
            after = my_bytes()
            mine.append(after - before - barrier)
            check(handle, sent, ids)
            result = ep.combine(handle, apply(handle.rows, handle.rows_per_expert), w[me])
            before = my_bytes()
            mine.append(before - after - barrier)
            want += [closed_form(scheme, x, ids, dispatch) for dispatch in (True, False)]
            same(result, want_sum(sent, ids, w))
            sums.setdefault(scheme, []).append(result.tobytes())
    ends[scheme] = device.now_ps - start
    ep.release()
assert all(value == sums["xccl"] for value in sums.values())
report(ends=ends, mine=mine, want=want)
"""
)


def test_every_scheme_gives_the_same_bits_and_its_closed_form_of_bytes():
    """A2, D1, D2, D4 (a): values equal to the loop over experts, on nodes of two dies, some ranks without
    tokens, some without rows, all rows to one expert, nothing selected. Zero-token ranks take part in every
    exchange: without their records (mutation: `begin` for T > 0 alone) the others end in a deadlock report.
    """
    ran = run_ranks(6, EVERY.replace("KIND", "'float32'"), set=SMALL_NODES, managed_bytes=8 << 20)
    assert len(ran.reports) == 6
    mine = np.array([r["mine"] for r in ran.reports.values()])
    assert mine.sum(axis=0).tolist() == ran.reports[0]["want"]


def test_int8_rows_and_the_rma_transport():
    program = EVERY.replace("KIND", "'int8'")
    shared, rma = (run_ranks(3, program, transport=t, set=SMALL_NODES) for t in ("shared", "rma"))
    assert shared.sha == rma.sha and shared.reports == rma.reports


XCCL = (
    SETUP
    + """
from collectives import ExpertExchange
out, back = EpCosts(7680, 5_000_000, 400_000, 20_000), EpCosts(14336, 3_000_000, 100, 7, 64)
old = ExpertExchange(device, S, H, T, K, max_rows=n * T * K, dispatch_costs=out, combine_costs=back)
new = ExpertParallel(device, E, H, T, K, "xccl", dispatch_costs=out, combine_costs=back)
took = {}
for name in (WHICH,):
    times = took[name] = []
    for event in range(4):
        x, ids, w = make(Full(), event)
        device.barrier()
        start = device.now_ps
        if name == "old":
            handle = old.dispatch(x[me], ids[me])
            times.append(device.now_ps - start)
            result = old.combine(handle, apply(handle.rows, handle.rows_per_slot), w[me])
        else:
            handle = new.dispatch(x[me], ids[me])
            times.append(device.now_ps - start)
            result = new.combine(handle, apply(handle.rows, handle.rows_per_expert), w[me])
        times.append(device.now_ps - start)
        same(result, want_sum(x, ids, w))
times = {}
for scheme, planes in (("cann", (0, 0, 0, 0)), ("cann", (1, 1, 1, 1)), ("deepep-ll", (0, 0, 0, 1))):
    ep = ExpertParallel(device, E, H, T, K, scheme, dispatch_costs=EpCosts(1_000_000), planes=planes)
    x, ids, w = make(OneTarget(), 0)
    device.barrier()
    start = device.now_ps
    ep.dispatch(x[me], ids[me])
    times[f"{scheme} {planes[1]}{planes[3]}"] = device.now_ps - start
report(times=times, took=took[WHICH])
"""
)


def test_xccl_takes_the_time_of_the_expert_exchange_and_planes_their_own():
    """The pull scheme equals `collectives.moe` to the picosecond. 4 x 18 rows of 1 MB into one die take its
    ingress on UB, or its NIC's, which is slower, for all of them."""
    ran, old = (run_ranks(4, XCCL.replace("WHICH", repr(which))) for which in ("new", "old"))
    assert [r["took"] for r in ran.reports.values()] == [r["took"] for r in old.reports.values()]
    slow = {name: max(r["times"][name] for r in ran.reports.values()) for name in ran.reports[0]["times"]}
    assert slow["cann 11"] > 54 * 1e6 / 25e9 * 1e12 > slow["cann 00"] > 54 * 1e6 / 170e9 * 1e12


GROUPS = (
    SETUP
    + """
members = [r for r in range(n) if r % 2 == me % 2][:: -1 if me % 2 else 1]
from types import SimpleNamespace
group = SimpleNamespace(device=device, members=members)
size, place = len(members), members.index(me)
rng = np.random.default_rng(8)
for scheme in SCHEMES:
    ep = ExpertParallel(group, size * S, H, T, K, scheme, micro_batches=2)
    for event in range(3):
        x = [np.arange((2 + r % 2) * H, dtype=np.float32).reshape(-1, H) + 1000 * r + event for r in range(n)]
        ids = [np.random.default_rng([event, r]).integers(0, size * S, (2 + r % 2, K)) for r in range(n)]
        handle = ep.dispatch(x[me], ids[me], micro_batch=event % 2)
        want = [[x[r][t] for r in members for t in range(len(x[r])) for k in range(K)
                 if ids[r][t, k] == place * S + slot] for slot in range(S)]
        assert handle.rows_per_expert.tolist() == [len(rows) for rows in want]
        assert np.array_equal(handle.rows, np.array([row for rows in want for row in rows]).reshape(-1, H))
        out = ep.combine(handle, handle.rows, np.ones((len(x[me]), K), np.float32))
        assert np.array_equal(out, x[me] * K)
    ep.release()
report(now=device.now_ps)
"""
)


def test_two_groups_at_once_in_orders_of_their_own():
    """Every other rank, one group counted backwards; both use the same channels, words and blocks."""
    for transport in ("shared", "rma"):
        run_ranks(6, GROUPS, transport=transport, managed_bytes=8 << 20)
