"""Scenarios of public bug reports on dispatch and combine, and ranks that do not do the same."""

import pytest
from ep_programs import SETUP
from ranks import run_ranks

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(200)]

MANY = (
    SETUP
    + """
# sgl-kernel-npu 801: the second dispatch crashed; 1,000 in a row, half of them without a combine
T, H, K = 2, 4, 2
ep = ExpertParallel(device, E, H, T, K, WAY)
weights = np.ones((T, K), np.float32)
for event in range(1000):
    x = np.full((T, H), event + 10_000 * me, np.float32)
    ids = np.array([[(event + me + t) % E, (event + me + t + S) % E] for t in range(T)])
    handle = ep.dispatch(x, ids)
    sources = [r for slot in range(S) for r in range(n) for t in range(T) for k in range(K)
               if (event + r + t + k * S) % E == me * S + slot]
    assert handle.rows[:, 0].tolist() == [event + 10_000 * r for r in sources], event
    if event % 2:
        out = ep.combine(handle, handle.rows, weights)
        assert np.array_equal(out, 2 * x)
report(now=device.now_ps)
"""
)


@pytest.mark.parametrize("scheme", ["deepep-ll", "deepep"])
def test_a_thousand_dispatches_while_ranks_sleep_at_random(scheme):
    """Also sglang PR 30756: ranks that run ahead must not overwrite blocks a slow one still reads; random
    sleeps on the host in every engine call move ranks apart. Mutation that fails: one block instead of two
    (`event % 2` to 0 in `pack` and `rows`) reads rows of the next dispatch."""
    calm = run_ranks(3, MANY.replace("WAY", repr(scheme)))
    jitter = {"SUPERPOD_JITTER": "0.02,400,7"}
    shaken = run_ranks(3, MANY.replace("WAY", repr(scheme)), env=jitter)
    assert calm.sha == shaken.sha and calm.reports == shaken.reports


WRONG = (
    SETUP
    + """
from collectives.agreement import CollectiveMismatchError
def refused(kind, text, call):
    try:
        call()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"nothing was raised: {text}")
UsageError = emulator.errors.UsageError
x, ids, w = make(Full(), 3)
for scheme in SCHEMES:
    ep = ExpertParallel(device, E, H, T, K, scheme, max_rows=40)
    def good():
        handle = ep.dispatch(x[me], ids[me])
        check(handle, x, ids)
        same(ep.combine(handle, apply(handle.rows, handle.rows_per_expert), w[me]), want_sum(x, ids, w))
    long = T + 1 if me == 1 else 2
    refused(UsageError, f"rank 1: dispatch: {T + 1} tokens, the buffer takes max_tokens={T}",
            lambda: ep.dispatch(np.zeros((long, H), np.float32), np.zeros((long, K), np.int64)))
    good()
    refused(UsageError, "rank 2: dispatch: topk_idx names expert", lambda: ep.dispatch(
        np.zeros((1, H), np.float32), np.full((1, K), E if me == 2 else 0)))
    refused(UsageError, "rank 0: dispatch: x must be float32", lambda: ep.dispatch(
        np.zeros((1, H), np.float64 if me == 0 else np.float32), np.zeros((1, K), np.int64)))
    good()
    handle = ep.dispatch(x[me], ids[me])
    refused(UsageError, "rank 2: combine: y must be float32", lambda: ep.combine(
        handle, handle.rows[: -1 if me == 2 else None], w[me]))
    good()
    # more rows to one rank than it holds is an error on all of them, at the dispatch; as many are not
    def send(tokens):
        ids = np.full((tokens, K), -1)
        ids.ravel()[: (14, 13, 13 + tokens - 5)[me]] = E - 1
        return ep.dispatch(np.full((tokens, H), me + 1, np.float32), ids)
    refused(UsageError, f"rank {n - 1}: dispatch: 41 rows come to it, it takes max_rows=40;", lambda: send(6))
    good()
    handle = send(5)
    assert len(handle.rows) == (40 if me == n - 1 else 0)
    out = ep.combine(handle, handle.rows, np.ones((5, K), np.float32))
    assert out.sum() == H * (me + 1) * (14, 13, 13)[me]
    ticket = ep.post_dispatch(np.zeros((T, H), np.float32), np.zeros((T, K), np.int64))
    refused(UsageError, f"rank 0: dispatch: {n * T * K} rows come to it, it takes max_rows=40",
            lambda: ep.finish_dispatch(ticket))
    good()
    ep.release()
refused(UsageError, "must be alike on all ranks", lambda: ExpertParallel(device, E, H, T + me, K))

# what the ranks have made otherwise, where the sizes are the same: 128 values as int8 or fp8 are 33 words
last = me == n - 1
Mismatch = CollectiveMismatchError
for differ, text in (
    (dict(kind="int8" if last else "fp8"), "kind of rows: rank 2: int8, ranks 0-1: fp8"),
    (dict(back_kind="int8" if last else "fp8"), "kind of rows back: rank 2: int8, ranks 0-1: fp8"),
    (dict(max_rows=9 + last), "most rows a rank holds: ranks 0-1: 9, rank 2: 10"),
    (dict(scheme="xccl" if last else "cann"), "scheme: rank 2: xccl, ranks 0-1: cann"),
):
    ep = ExpertParallel(device, E, 128, T, K, **differ)
    one = np.ones((1, 128), np.float32)
    refused(Mismatch, text, lambda: ep.dispatch(one, np.zeros((1, K), np.int64)))
    ep.release()
ep = ExpertParallel(device, E, 128, T, K, "cann", kind="fp8", max_rows=9)
handle = ep.dispatch(one, np.zeros((1, K), np.int64))
assert np.allclose(handle.rows, 1) and len(handle.rows) == (0 if me else 9)
ep.release()
report(now=device.now_ps)
"""
)


def test_what_one_rank_does_wrong_is_an_error_on_all_and_the_next_call_works():
    """DeepEP 165 (assert on the rank that overflows, hang of the others), vllm-ascend PR 710 (capacities
    that differ). Mutation that fails: raise at the call instead of in the exchange's tag."""
    run_ranks(3, WRONG, managed_bytes=16 << 20)


@pytest.mark.parametrize(
    "broken, text",
    [
        ("moves.check_rows = lambda *a: None", "nothing was raised: rank 2: dispatch: 41 rows"),
        (
            "all_of = moves.check_rows\n"
            "moves.check_rows = lambda rows, *a: all_of(rows * (np.arange(n) == me), *a)",
            "nothing was raised: rank 2: dispatch: 41 rows",
        ),
        (
            "facts = scheme.facts\nscheme.facts = lambda *a, kind, back_kind, max_rows: "
            "facts(*a, max_rows=max_rows)",
            "nothing was raised: kind of rows",
        ),
        (
            "facts = scheme.facts\nscheme.facts = lambda *a, kind, back_kind, max_rows: "
            "facts(*a, kind=kind, back_kind=back_kind)",
            "nothing was raised: most rows",
        ),
    ],
    ids=["rows are not counted", "each counts its own rows", "kinds not compared", "limits not compared"],
)
def test_builds_that_take_too_many_rows_or_other_kinds_are_found(broken, text):
    """Without the kinds in the facts int8 rows are read as fp8: 3.0 came as 0.84 and 10.58, and no error."""
    begin = "from collectives.agreement"
    program = WRONG.replace(begin, f"from collectives.ep import moves, scheme\n{broken}\n{begin}", 1)
    ran = run_ranks(3, program, check=False, managed_bytes=16 << 20)
    assert ran.code and text in ran.stderr, ran.stderr


ORDER = (
    SETUP
    + """
from collectives.agreement import CollectiveMismatchError
ep = ExpertParallel(device, E, H, T, K, "cann")
x, ids, w = make(Full(), 3)
handle = ep.dispatch(x[me], ids[me])
try:
    if me == 1:
        ep.dispatch(x[me], ids[me])
    else:
        ep.combine(handle, handle.rows, w[me])
except CollectiveMismatchError as error:
    report(text=str(error))
else:
    raise AssertionError("nothing was raised")
"""
)


def test_ranks_in_different_calls_end_with_their_names():
    """vLLM PR 51984: a busy rank waits for ever for one that skipped the call."""
    ran = run_ranks(3, ORDER, check=False)
    texts = {r["text"] for r in ran.reports.values()}
    assert len(ran.reports) == 3 and len(texts) == 1
    assert "ranks 0, 2: in combine 0" in texts.pop().replace("ranks 0 and 2", "ranks 0, 2")


def test_a_counter_does_not_stand_for_data():
    """TensorRT-LLM PR 19425: counts known before the rows are there. The rows of all-to-all take what their
    bytes take after the counts are in: 36 rows of 1 MB into one die at 210 GB/s (the fastest link).
    Mutation that fails: leave `side.again` out of `finish_dispatch`."""
    program = (
        SETUP
        + """
costs = EpCosts(1_000_000)
for scheme in ("all-to-all", "deepep", "cann", "xccl"):
    ep = ExpertParallel(device, E, H, T, K, scheme, dispatch_costs=costs)
    x, ids, w = make(OneTarget(), 0)
    device.barrier()
    start = device.now_ps
    handle = ep.dispatch(x[me], ids[me])
    rows = (n - 1) * T * (1 if scheme == "deepep" else K)
    if me == 0:
        assert device.now_ps - start > rows * 1e6 / 210e9 * 1e12, scheme
    check(handle, x, ids)
"""
    )
    run_ranks(3, program)


FROZEN = (
    SETUP
    + """
import time
from collectives.ep import moves, scheme, side
if me == 1:  # slow on the host between the exchange and the reading of rows
    read = side.Side.rows
    def slowly(self, blocks):
        time.sleep(0.15)
        return read(self, blocks)
    side.Side.rows = slowly
BROKEN
ep = ExpertParallel(device, E, H, T, K, WAY, dispatch_costs=EpCosts(1_000_000))
for event in range(4):
    x, ids, w = make(Full() if event % 2 else OneTarget(), event)
    if SKIP and not len(x[me]): continue
    start = device.now_ps
    handle = ep.dispatch(x[me], ids[me])
    if not event and me == 0:
        assert device.now_ps - start > (n - 1) * T * K * 1e6 / 210e9 * 1e12
    check(handle, x, ids)
    if event == 3:
        same(ep.combine(handle, apply(handle.rows, handle.rows_per_expert), w[me]), want_sum(x, ids, w))
"""
)
MUTANTS = {
    "one block instead of two": "cut = side.Side._cut\nside.Side._cut = lambda *a: cut(*a)._replace("
    "all=(cut(*a).all[0],) * 2, own=(cut(*a).own[0],) * 2)",
    "rows are not waited for": "side.Side.again = lambda *a: None",
    "pairs in the order of tokens": "group = moves.lay.by_pair\nmoves.lay.by_pair = lambda *a: "
    "group(*a)._replace(order=np.sort(group(*a).order))",
}


def frozen(broken="", skip=False, way="all-to-all"):
    program = FROZEN.replace("BROKEN", broken).replace("SKIP", str(skip)).replace("WAY", repr(way))
    return run_ranks(3, program, check=False)


def test_a_rank_frozen_while_it_reads_sees_the_rows_of_its_own_event():
    ran = frozen()
    assert ran.code == 0, ran.stderr


@pytest.mark.parametrize(
    "name", ["one block instead of two", "rows are not waited for", "pairs in the order of tokens"]
)
def test_broken_builds_are_found(name):
    """The same program on builds with one rule taken out: each ends with an error."""
    ran = frozen(MUTANTS[name])
    assert ran.code and "AssertionError" in ran.stderr, ran.stderr


def test_a_rank_without_tokens_that_skips_the_call_is_reported():
    """vLLM PR 51984 and 53578: the others must not hang. Its next call would count for the one it skipped,
    so here it makes none."""
    ran = frozen("OneTarget.tokens = Full.tokens = lambda self, rank, rng: 0 if rank == 2 else T", skip=True)
    assert ran.code and ("deadlock" in ran.stderr or "not in the same call" in ran.stderr), ran.stderr
