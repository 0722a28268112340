"""Dispatch and combine over real processes: bits against the reference, times against closed forms."""

import pytest
from ranks import run_ranks

from emulator.engine import core_available

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(300)]
SIZES = [1, 2, 4, 8]
TRANSPORTS = ["shared", "rma"]

SETUP = """
import numpy as np, emulator
from collectives import EpCosts, ExpertExchange, IdleStep, refs
device = emulator.init()
me, n = device.rank, device.num_ranks
T, K, H, S = 4, 3, 20, 2

def make(route, event):
    '''Every rank's rows, slots and weights for one event; each rank computes all of them.'''
    x, ids, w = [], [], []
    for rank in range(n):
        rng = np.random.default_rng([event, rank])
        tokens = route.tokens(rank, rng)
        x.append(rng.standard_normal((tokens, H)).astype(np.float32) * (rank + 1))
        ids.append(route.slots(rank, rng, tokens).astype(np.int64).reshape(tokens, K))
        w.append(rng.random((tokens, K)).astype(np.float32))
    return x, ids, w

class Random:
    def tokens(self, rank, rng): return int(rng.integers(0, T + 1))
    def slots(self, rank, rng, tokens): return rng.integers(0, n * S, (tokens, K))

class OneSource(Random):
    '''Only the last rank has tokens; it keeps them: every other rank receives nothing.'''
    def tokens(self, rank, rng): return T if rank == n - 1 else 0
    def slots(self, rank, rng, tokens): return rng.integers((n - 1) * S, n * S, (tokens, K))

class OneTarget(Random):
    '''All tokens of all ranks go to one slot of rank 0.'''
    def tokens(self, rank, rng): return T
    def slots(self, rank, rng, tokens): return np.full((tokens, K), 1)

def expert(slot, row):
    return row * np.float32(1 + slot % 3)

def check(handle, x, ids, int8=False):
    want = refs.dispatch(x, ids, S, int8)[me]
    assert handle.rows_per_slot.tolist() == [len(rows) for rows in want]
    flat = [row for rows in want for (_, _, _, row) in rows]
    assert np.array_equal(handle.rows, np.array(flat, np.float32).reshape(-1, H))

def apply(handle):
    slots = np.repeat(np.arange(S), handle.rows_per_slot)
    factors = (1 + (me * S + slots) % 3).astype(np.float32)
    return handle.rows * factors[:, None]

def same(out, x, ids, w, int8=False):
    want = refs.combine(x, ids, w, expert, int8)[me]
    assert np.array_equal(out.view(np.uint32), want.view(np.uint32))
"""

ROUTES = (
    SETUP
    + """
quant = QUANT
exchange = ExpertExchange(device, S, H, T, K, quant=quant, max_rows=n * T * K)
for event in range(6):
    for route in (Random(), OneSource(), OneTarget()):
        x, ids, w = make(route, event)
        handle = exchange.dispatch(x[me], ids[me])
        check(handle, x, ids, quant is not None)
        out = exchange.combine(handle, apply(handle), w[me])
        same(out, x, ids, w, quant is not None)
report(now=device.now_ps)
"""
)


@pytest.mark.parametrize("quant", ["None", "'int8'"])
@pytest.mark.parametrize("n", SIZES)
def test_every_route_equals_the_reference_bit_for_bit(n, quant):
    """Random counts; all but one receive nothing; all tokens to one slot. Own rows are as remote ones."""
    program = ROUTES.replace("QUANT", quant)
    shared, rma = (run_ranks(n, program, transport=transport) for transport in TRANSPORTS)
    assert len(shared.reports) == len(rma.reports) == n
    assert shared.sha == rma.sha


def test_numpy_rows_and_python_engine_give_the_same_run():
    program = ROUTES.replace("QUANT", "'int8'")
    assert run_ranks(4, program).sha == run_ranks(4, program, engine="python").sha


COSTLY = (
    SETUP
    + """
exchange = ExpertExchange(device, S, H, T, K, max_rows=n * T * K)
out, back = EpCosts(7680, 5_000_000, 400_000, 20_000), EpCosts(14336, 3_000_000, 100, 7, 64)
for event in range(4):
    x, ids, w = make(Random(), event)
    charge = np.random.default_rng([event, me]).integers(1, 60, len(x[me])).astype(np.int32)
    handle = exchange.dispatch(x[me], ids[me], out, charge)
    check(handle, x, ids)
    same(exchange.combine(handle, apply(handle), w[me], back), x, ids, w)
    sums = handle.sent.counts.sum(), handle.received.sum(), handle.received_charge.sum(), handle.place.size
    assert sums == (ids[me].size, len(handle.rows), handle.charged_per_slot.sum(), len(handle.rows))
    assert handle.tokens == len(x[me]) and sorted(handle.sent.order) == list(range(ids[me].size))
    assert handle.sent.charged.sum() == charge.sum() * K
report(compiled=handle.kept is not None)
"""
)


def test_compiled_operations_equal_their_steps_with_charges_and_costs():
    """Under `shared` each operation is one compiled call, under `rma` the steps one by one."""
    shared, rma = (run_ranks(3, COSTLY, transport=transport) for transport in TRANSPORTS)
    assert {r["compiled"] for r in rma.reports.values()} == {False}
    assert shared.sha == rma.sha
    if core_available():
        assert {r["compiled"] for r in shared.reports.values()} == {True}


IDENTITY = """
import numpy as np, emulator
from collectives import ExpertExchange, refs
device = emulator.init()
me, n = device.rank, device.num_ranks
total, K, H, slots = 8, 4, 32, 16 // n
rng = np.random.default_rng(7)
x = rng.standard_normal((total, H)).astype(np.float32)
ids = np.stack([rng.permutation(16)[:K] for _ in range(total)])
w = rng.random((total, K)).astype(np.float32)
mine = slice(me * total // n, (me + 1) * total // n)
exchange = ExpertExchange(device, slots, H, total, K)
handle = exchange.dispatch(x[mine], ids[mine])
out = exchange.combine(handle, handle.rows, w[mine])
assert np.array_equal(out, refs.combine([x[mine]], [ids[mine]], [w[mine]], lambda s, r: r)[0])
report(bits=out.view(np.uint32).ravel().tolist())
"""


def test_identity_experts_give_sum_of_weights_times_x_in_every_layout():
    runs = [run_ranks(n, IDENTITY).reports for n in (1, 2, 4, 8)]
    bits = [[value for report in run.values() for value in report["bits"]] for run in runs]
    assert len(bits[0]) == 8 * 32 and all(b == bits[0] for b in bits)


CHARGE = (
    SETUP
    + """
exchange = ExpertExchange(device, S, H, T, K, max_rows=n * T * K)
rng = np.random.default_rng(me)
charge = rng.integers(1, 60, T).astype(np.int32)
ids = rng.integers(0, n * S, (T, K))
before = device.engine.statistics().bytes_by_class.sum()
handle = exchange.dispatch(np.ones((T, H), np.float32), ids, EpCosts(7680), charge)
exchange.combine(handle, handle.rows, np.ones((T, K), np.float32), EpCosts(14336))
want = np.zeros(S, np.int64)
for rank in range(n):
    rng = np.random.default_rng(rank)
    their = rng.integers(1, 60, T), rng.integers(0, n * S, (T, K))
    for c, row in zip(*their):
        for slot in row:
            if slot // S == me:
                want[slot % S] += c
assert handle.charged_per_slot.tolist() == want.tolist()
report(priced=int(handle.charged_per_slot.sum()), sent=int(charge.sum()) * K)
"""
)


@pytest.mark.parametrize("n", [1, 4])
def test_a_row_is_charged_for_the_priced_rows_it_stands_for(n):
    ran = run_ranks(n, CHARGE)
    priced = sum(r["priced"] for r in ran.reports.values())
    assert priced == sum(r["sent"] for r in ran.reports.values())
    records = 2 * n * n * 32 + n * n * 32  # dispatch, combine and the barrier of the allocation
    assert sum(ran.result["bytes_by_class"]) == priced * (7680 + 14336) + records


TWO_IN_FLIGHT = (
    SETUP
    + """
import time
freeze = {"rank": FROZEN_RANK, "step": "FROZEN_STEP", "left": 3}
def hook(step):
    if me == freeze["rank"] and step == freeze["step"] and freeze["left"]:
        freeze["left"] -= 1
        time.sleep(0.25)
exchange = ExpertExchange(device, S, H, T, K, max_rows=n * T * K, micro_batches=BATCHES, host_hook=hook)
for event in range(5):
    cases = [make(Random(), event * 10 + b) for b in range(BATCHES)]
    if event % 2:                                         # both dispatches, then both combines
        handles = [exchange.dispatch(x[me], ids[me], micro_batch=b) for b, (x, ids, w) in enumerate(cases)]
        outs = [exchange.combine(h, apply(h), c[2][me]) for h, c in zip(handles, cases)]
    else:                                                 # both in flight at once
        posted = [exchange.post_dispatch(c[0][me], c[1][me], micro_batch=b) for b, c in enumerate(cases)]
        handles = [exchange.finish_dispatch(p) for p in posted]
        posted = [exchange.post_combine(h, apply(h), c[2][me]) for h, c in zip(handles, cases)]
        outs = [exchange.finish_combine(p) for p in posted]
    for handle, out, (x, ids, w) in zip(handles, outs, cases):
        check(handle, x, ids)
        same(out, x, ids, w)
freeze["left"] += 2
for event in range(3):                                    # one writes the next event while one still pulls
    cases = [make(Random(), 100 + 10 * event + i) for i in range(4)]
    handles = [exchange.dispatch(x[me], ids[me], micro_batch=BATCHES - 1) for x, ids, w in cases]
    outs = [exchange.combine(h, apply(h), c[2][me]) for h, c in zip(handles, cases)]
    for handle, out, (x, ids, w) in zip(handles, outs, cases):
        check(handle, x, ids)
        same(out, x, ids, w)
report(left=freeze["left"])
"""
)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("batches", [1, 2])
def test_a_frozen_rank_loses_neither_records_nor_blocks(batches, transport):
    """One rank stands still on the host before its poll, then in its pull: the hash stays the same."""
    hashes = set()
    for rank, step in ((-1, "none"), (1, "poll"), (2, "pull")):
        program = TWO_IN_FLIGHT.replace("BATCHES", str(batches))
        program = program.replace("FROZEN_RANK", str(rank)).replace("FROZEN_STEP", step)
        ran = run_ranks(4, program, transport=transport)
        assert rank < 0 or ran.reports[rank]["left"] == 0
        hashes.add(ran.sha)
    assert len(hashes) == 1


IDLE = (
    SETUP
    + """
exchange = ExpertExchange(device, S, H, T, K)
costs, back = EpCosts(7680, 3_000_000, 700_000, 20_000), EpCosts(14336, 1_500_000, 800_000, 30_000)
busy = me == 0
rng = np.random.default_rng(3)
layers = [rng.integers(0, n * S, (1, K)) for _ in range(5)]
steps = [step for _ in layers for step in (IdleStep(False, costs, 1_000_000), IdleStep(True, back))]
device.barrier()
if busy or not ASLEEP:
    for ids in layers:
        device.compute(1_000_000)
        mine = ids if busy else np.empty((0, K), np.int64)
        handle = exchange.dispatch(np.ones((len(mine), H), np.float32), mine, costs)
        exchange.combine(handle, handle.rows, np.ones((len(mine), K), np.float32), back)
else:
    index, handle = exchange.idle(steps)
    done = index + 1
    while len(handle.rows):
        if TOGETHER and done + 1 < len(steps):
            y, following = handle.rows, steps[done + 1 :]
            index, handle = exchange.combine_then_idle(handle, y, following, steps[done].costs)
            done += index + 2
            continue
        exchange.combine(handle, handle.rows, np.empty((0, K), np.float32), steps[done].costs)
        done += 1
        if done == len(steps):
            break
        index, handle = exchange.idle(steps[done:])
        done += index + 1
    assert done == len(steps)
counters = device.engine.statistics()
report(now=device.now_ps, wakes=int(counters.wake_ups[me]), waited=int(counters.wait_ps[me]))
"""
)


def _idle(asleep, together, **config):
    program = IDLE.replace("ASLEEP", str(asleep)).replace("TOGETHER", str(together))
    return run_ranks(8, program, **config)


def test_sleeping_through_exchanges_equals_taking_part_in_them():
    asleep, awake = _idle(True, False).reports, _idle(False, False).reports
    assert [r["now"] for r in asleep.values()] == [r["now"] for r in awake.values()]
    idle = [rank for rank in asleep if asleep[rank]["wakes"] < awake[rank]["wakes"]]
    assert len(idle) >= 4


def test_a_combine_and_what_follows_in_one_sleep_equals_them_apart():
    together, apart = _idle(True, True), _idle(True, False)
    for what in ("virtual_ps", "bytes_by_class", "busy_ps"):
        assert together.result[what] == apart.result[what]
    mine, theirs = together.reports.values(), apart.reports.values()
    assert [r["now"] for r in mine] == [r["now"] for r in theirs]
    saved = [b["wakes"] - a["wakes"] for a, b in zip(mine, theirs, strict=True)]
    assert min(saved) >= 0 and sum(saved) >= 8


def test_a_combine_and_what_follows_are_alike_in_both_engines_and_transports():
    runs = [_idle(True, True), _idle(True, True, engine="python"), _idle(True, True, transport="rma")]
    assert len({run.sha for run in runs}) == 1


EXACT = """
import numpy as np, emulator
from collectives import EpCosts, ExpertExchange
device = emulator.init()
me, n = device.rank, device.num_ranks
H, T = 8, n
exchange = ExpertExchange(device, 1, H, T, 1, max_rows=n * T)
costs = EpCosts(7680, START, PULL, RECORD)
device.barrier()
device.sleep_ps(10**9 - device.now_ps)                   # all start at one instant
start = device.now_ps
ids = np.zeros((T, 1), np.int64) if ONE_HOT else np.arange(n)[:, None]
handle = exchange.dispatch(np.zeros((T, H), np.float32), ids, costs)
c = device.engine.config
report(ps=device.now_ps - start, records=exchange.timing.records_ps - start, price=c.call_price_ps,
       put=c.put_latency_ps, request=c.request_latency_ps, response=c.response_latency_ps,
       write=c.write_bytes_per_s, read=c.read_bytes_per_s)
"""
FLAT = {f"ub.latency_{c}_us": 2 for c in ("chip", "intra", "inter")}
FLAT |= {f"ub.{rw}_{c}_gb_per_s": 100 for rw in ("read", "write") for c in ("chip", "intra", "inter")}


@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize("record_ps", [20_000, 300_000])
def test_dispatch_is_exact_under_uniform_and_one_hot_routing(one_hot, record_ps):
    """n ranks at one distance, all starting at once; L, R, P latencies of put, request and response.

    records   start + two calls, then n - 1 records leave an egress back to back, each w = ser(32):
              all in at  M = two calls + start + (n - 1) w + L   (my own: through the local port)
    uniform   one row (s = ser(7680)) from every rank, requests d apart. The source I ask i-th is asked by me
              i-th: its egress serves me at max(d, s) * i, so the last remote row is in at
              M + pull + R + P + s + (n - 2) max(d, s); my own row, asked last, at M + pull + (n - 1) d + own
    one-hot   n rows from every rank to rank 0: blocks of ser(7680 n) meet at one ingress, one after the other
    """
    n, start, pull = 8, 5_000_000, 400_000
    program = EXACT.replace("ONE_HOT", str(one_hot)).replace("START", str(start))
    reports = run_ranks(
        n, program.replace("PULL", str(pull)).replace("RECORD", str(record_ps)), set=FLAT
    ).reports
    for rank, got in reports.items():

        def ser(nbytes, link, way, got=got):
            return -(-nbytes * 10**12 // got[way][link])

        w, far = ser(32, 3, "write"), got["request"][3] + got["response"][3]
        own = got["request"][0] + got["response"][0]
        records = 2 * got["price"] + start + (n - 1) * w + got["put"][3]
        assert got["records"] == records
        if not one_hot:
            s = ser(7680, 3, "read")
            remote = far + s + (n - 2) * max(record_ps, s)
            assert got["ps"] == records + pull + max(remote, (n - 1) * record_ps + own + ser(7680, 0, "read"))
        elif rank:
            assert got["ps"] == records + pull
        else:
            s = ser(7680 * n, 3, "read")
            remote = far + s + (n - 2) * max(record_ps, s)
            assert got["ps"] == records + pull + max(
                remote, (n - 1) * record_ps + own + ser(7680 * n, 0, "read")
            )


REFUSED = (
    SETUP
    + """
import pytest
from emulator.errors import UsageError
exchange = ExpertExchange(device, S, H, T, K, max_rows=24)
narrow = ExpertExchange(device, S, H, T, K, max_rows=5)
x, ids = np.zeros((T, H), np.float32), np.zeros((T, K), np.int64)
def refused(match, call, *args, **kw):
    with pytest.raises(UsageError, match=match):
        call(*args, **kw)
refused("5 rows, the block takes max_tokens=4", exchange.dispatch, np.zeros((5, H), np.float32), ids)
refused("contiguous float32", exchange.dispatch, x.astype(np.float64), ids)
refused("contiguous float32", exchange.dispatch, np.zeros((T, 2 * H), np.float32)[:, ::2], ids)
refused("slot_ids must be int64", exchange.dispatch, x, ids[:2])
refused("pair 0 names slot", exchange.dispatch, x, ids + n * S)
refused("pair 0 names slot -1", exchange.dispatch, x, ids - 1)
refused("charge must be int32", exchange.dispatch, x, ids, charge=np.zeros(T, np.int32))
refused("no micro-batch 1; it was made for 1", exchange.dispatch, x, ids, micro_batch=1)
refused("quant 'fp8'", ExpertExchange, device, S, H, T, K, "fp8")
refused("topk must be at least 1", ExpertExchange, device, S, H, T, 0)
refused("raise managed_bytes", ExpertExchange, device, S, 1 << 20, T, K)
refused("raise channels", ExpertExchange, device, S, H, T, K, micro_batches=30)
handle = exchange.dispatch(x, ids)
refused("for a rank that dispatched no rows", exchange.combine_then_idle, handle, handle.rows, [])
refused("combine: weights", exchange.combine, handle, handle.rows, np.zeros((T, K + 1), np.float32))
refused("combine: y", exchange.combine, handle, handle.rows[:, :3].copy(), np.zeros((T, K), np.float32))
exchange.combine(handle, handle.rows, np.zeros((T, K), np.float32))
text = "rank 0: dispatch: rank 0 gets 24 rows, it takes max_rows=5"
if me == 0:
    refused(text, narrow.dispatch, x, ids)
else:
    handle = narrow.dispatch(x, ids)
    refused(text, narrow.combine, handle, handle.rows, np.ones((T, K), np.float32))
narrow.dispatch(x[:0], ids[:0])
report(ok=True)
"""
)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_misuse_and_overflow_are_named(transport):
    assert len(run_ranks(2, REFUSED, transport=transport).reports) == 2


STATUS = """
import numpy as np, emulator
from collectives import StatusWords
device = emulator.init()
status = StatusWords(device)
for round in range(3):
    words = status.exchange(device.rank * 2**40 - round)
    assert words.tolist() == [rank * 2**40 - round for rank in range(device.num_ranks)]
report(ok=True)
"""


@pytest.mark.parametrize("n", [1, 8])
def test_status_words_reach_everyone(n):
    assert len(run_ranks(n, STATUS).reports) == n
