"""The compiled core's side of posts: what it refuses, what it keeps, and that nothing is left over."""

import ctypes
import random

import numpy as np
import pytest
from harness import KINDS, Shared, fork_ranks, thread_ranks
from posting import ACK, PUT, SLOW, machine

from emulator.engine import api, native, native_library
from emulator.engine.checks import post_limits
from emulator.engine.posts import (
    DONE_ALWAYS,
    DONE_SENT,
    INBOX_DTYPE,
    K_CLOSE,
    K_GET,
    K_LOCAL,
    K_PUT,
    K_RECV,
    K_SEND,
    K_WORD,
    NUM_PORTS,
    ORD_FENCE,
    ORD_STREAM,
    ORD_STRONG,
    ORD_TRACK,
    PORT_UNIT,
    POST_DTYPE,
    new_posts,
)
from emulator.errors import DeadlockError, InternalError, UsageError

needs_core = pytest.mark.skipif("c" not in KINDS, reason="the core is not built")
LATER = 10**6


def alone(kind="c", **more) -> api.Engine:
    """The only rank of a machine, in this process."""
    return Shared(machine(1, **more), kind).attach(0)


def pair(kind, first, second=None, **more):
    """Two ranks as threads; returns what `first` returned."""
    out = []

    def body(engine, row):
        out.append(first(engine)) if engine.rank == 0 else second and second(engine)

    codes = thread_ranks(Shared(machine(2, **more), kind), body)
    assert codes == [0, 0] and out
    return out[0]


def blank() -> np.ndarray:
    return new_posts(1, kind=K_PUT, nbytes=8)


# ---- arguments
def python_refuses(engine, posts) -> bool:
    try:
        engine._explain_posts(posts)
    except UsageError:
        return True
    return False


@needs_core
def test_core_and_python_refuse_the_same():
    """Rows with random fields at and beside their limits. (Mutation: any limit of posts.c.)"""
    seed = random.SystemRandom().randrange(1 << 30)
    print(f"seed {seed}")
    rng, engine, refused = random.Random(seed), alone(planes=(SLOW,)), 0
    for _ in range(3000):
        posts = new_posts(1, kind=rng.randrange(7))
        for _ in range(rng.randrange(1, 4)):
            field, low, high = rng.choice(list(post_limits(engine.config, posts)))
            edges = [int(np.min(low)) - 1, int(np.min(low)), int(np.max(high)), int(np.max(high)) + 1]
            info = np.iinfo(POST_DTYPE[field])
            posts[field] = min(max(rng.choice(edges), info.min), info.max)
        row = posts.copy()
        core = engine._post_all(posts, 0) < 0
        assert core == python_refuses(engine, row), row
        refused += core
    assert 1000 < refused < 2990


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "field, value", [("peer", 1), ("nbytes", -1), ("word", 16), ("plane", 1), ("unit", 4), ("done", 4)]
)
def test_refusal_names_row_and_field_and_posts_nothing(kind, field, value):
    engine, posts = alone(kind), new_posts(3, kind=K_PUT)
    posts[field][1] = value
    with pytest.raises(UsageError, match=f"{field} of row 1 is {value}"):
        engine.post(posts)
    assert (engine.now_ps, engine.last_seq) == (0, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_only_whole_rows_of_the_dtype(kind):
    engine = alone(kind)
    for wrong in (new_posts(4)[::2], new_posts(4).reshape(2, 2), np.zeros(3), [1]):
        with pytest.raises(UsageError, match="contiguous row of POST_DTYPE"):
            engine.post(wrong)
    with pytest.raises(UsageError, match="step_ps is -1"):
        engine.post(new_posts(1), step_ps=-1)
    engine.finish()
    with pytest.raises(UsageError, match="has finished"):
        engine.post(new_posts(1))


# ---- the library
@needs_core
@pytest.mark.parametrize("what", ["VERSION", "POST_DTYPE"])
def test_library_of_other_sources_is_refused(what, monkeypatch):
    wrong = -1 if what == "VERSION" else INBOX_DTYPE
    monkeypatch.setattr(native_library, what, wrong)
    with pytest.raises(UsageError, match="built from other sources"):
        native_library.load.__wrapped__()


# ---- batches
def digest_of(kind, post):
    def here(engine):
        post(engine)
        engine.quiet()
        return engine.digest(0), engine.digest(1), engine.now_ps

    return pair(kind, here)


@pytest.mark.parametrize("kind", KINDS)
def test_batch_equals_loop(kind):
    """To the bit, and a row of a put or get equals the call it stands for."""
    rows = new_posts(50, kind=K_PUT, peer=1, nbytes=range(50), word=range(50, 0, -1), op=0)
    rows["word"] %= 16
    rows["op"][::3], rows["kind"][::7] = 2, K_GET
    rows["op"][::7] = 0

    def loop(engine):
        for row in rows:
            engine.post(row.reshape(1))

    def calls(engine):
        for row in rows:
            if row["kind"] == K_GET:
                engine.get(1, int(row["nbytes"]))
            else:
                word = int(row["word"]) if row["op"] else None
                engine.put(1, int(row["nbytes"]), None, word, int(row["op"]) or 1, 0)

    assert digest_of(kind, lambda e: e.post(rows)) == digest_of(kind, loop) == digest_of(kind, calls)


@pytest.mark.parametrize("kind", KINDS)
def test_step_is_charged_for_each(kind):
    engine = alone(kind)
    first = engine.post(new_posts(10), step_ps=6)
    assert (first, engine.last_seq, engine.now_ps) == (1, 10, 70)


# ---- ports
@pytest.mark.parametrize("kind", KINDS)
def test_planes_and_units_have_ports_of_their_own(kind):
    def here(engine):
        engine.post(new_posts(3, kind=K_PUT, peer=1, nbytes=8, plane=1, unit=2, unit_ps=[5, 6, 7]))
        engine.quiet()
        return engine.statistics().all_busy_ps, engine.statistics().busy_ps

    every, first = pair(kind, here, planes=(SLOW,))
    busy = {(0, PORT_UNIT + 2): 18, (0, 3 + api.PORT_EGRESS): 240, (1, 3 + api.PORT_INGRESS): 240}
    assert every.shape == (2, NUM_PORTS) and first.shape == (2, 3) and not first.any()
    assert {(int(r), int(p)): int(every[r, p]) for r, p in np.argwhere(every)} == busy


# ---- inbox
@pytest.mark.parametrize("kind", KINDS)
def test_inbox_wraps_and_keeps_order(kind):
    engine = alone(kind, inbox_entries=8)
    seen = []
    for _ in range(5):
        engine.post(new_posts(7, kind=K_LOCAL, done=DONE_ALWAYS))
        engine.observe()
        seen += engine.inbox()["seq"].tolist()
    assert len(seen) == 35 and seen == sorted(seen)
    assert engine.read(engine.inbox_word) == 35


@pytest.mark.parametrize("kind", KINDS)
def test_full_inbox_names_its_rank(kind):
    engine = alone(kind, inbox_entries=4)
    engine.post(new_posts(5, kind=K_LOCAL, done=DONE_ALWAYS))
    with pytest.raises(InternalError, match="inbox of rank 0 is full"):
        engine.observe()


@pytest.mark.parametrize("kind", KINDS)
def test_inbox_ends_at_the_last_observation(kind):
    """What came since, and may or may not be there on the host, is not given out."""

    def here(engine):
        engine.observe()
        engine.compute(LATER)
        before = len(engine.inbox())
        engine.observe()
        return before, len(engine.inbox())

    def there(engine):
        engine.post(new_posts(3, kind=K_PUT, peer=0, note=1))

    assert pair(kind, here, there) == (0, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_wait_for_the_inbox(kind):
    def here(engine):
        engine.wait([(engine.inbox_word, api.GE, 2)])
        return engine.now_ps, len(engine.inbox())

    def there(engine):
        engine.post(new_posts(2, kind=K_PUT, peer=0, note=1))

    assert pair(kind, here, there) == (2 + PUT, 2)


def test_nobody_writes_the_inbox_word():
    engine = alone(KINDS[-1])
    for call in (
        lambda w: engine.put(0, 0, None, w),
        lambda w: engine.atomic(0, w, api.ATOMIC_ADD, 1),
        lambda w: engine.post(new_posts(1, kind=K_LOCAL, word=w)),
    ):
        with pytest.raises(UsageError):
            call(engine.inbox_word)


# ---- streams
@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_goes_to_one_rank(kind):
    def here(engine):
        engine.post(new_posts(2, kind=K_PUT, peer=[0, 1], stream=3))
        with pytest.raises(InternalError, match="rank 0 used one stream towards two ranks"):
            engine.quiet()
        return True

    assert pair(kind, here)


@pytest.mark.parametrize("kind", KINDS)
def test_endless_retries_are_a_deadlock(kind):
    """Nobody ever posts the receive: a report, not a hang. (It also ends when all ranks have finished.)"""
    shared = Shared(machine(2), kind)

    def body(engine, row):
        engine.post(new_posts(1, kind=K_SEND, peer=1, rnr_retries=7, done=DONE_ALWAYS))
        if engine.rank == 0:
            with pytest.raises(DeadlockError, match="in wait.(inbox records|word 16) >= 1. since 2 ps"):
                engine.wait([(engine.inbox_word, api.GE, 1)])

    assert thread_ranks(shared, body) == [0, 0]


# ---- nothing is left over
def in_use(engine) -> tuple[int, int]:
    """Operations and streams that the core still keeps."""
    counts = (ctypes.c_int64 * 2)()
    engine._lib.sp_in_use(engine._me, counts)
    return tuple(counts)


def random_rows(rng, count, base):
    rows = new_posts(count)
    for row in rows:
        row["kind"] = rng.choice((K_PUT, K_PUT, K_GET, K_WORD, K_SEND, K_LOCAL))
        row["peer"], row["nbytes"] = rng.randrange(2), rng.choice((0, 8, 100))
        row["order"] = rng.choice((0, 0, ORD_TRACK, ORD_TRACK | ORD_STRONG, ORD_STREAM, ORD_FENCE))
        row["stream"] = 2 * base + row["peer"] + 1 if rng.random() < 0.6 else 0
        row["fence"], row["rd_below"], row["unit"] = base * count, rng.randrange(3), rng.randrange(-1, 4)
        row["done"] = rng.choice((0, DONE_ALWAYS, DONE_SENT if row["kind"] in (K_PUT, K_SEND) else 0))
        row["rnr_retries"], row["context"] = rng.choice((0, 2)), 9
        row["state_word"], row["state_mask"], row["lost_retries"] = rng.choice((-1, 1)), 1, 1
        row["tail_ps"], row["done_ps"], row["start_ps"] = (rng.choice((0, 50, 900)) for _ in range(3))
    return rows


@needs_core
def test_nothing_is_left_over():
    """Hundreds of operations, many refused or flushed: all go back. (Mutation: finish.c keeps streams.)"""
    seed = random.SystemRandom().randrange(1 << 30)
    print(f"seed {seed}")

    def here(engine):
        rng = random.Random(seed + engine.rank)
        for base in range(6):
            engine.post(new_posts(1, kind=K_LOCAL, op=1, word=1, value=rng.choice((0, 0, 5))))  # 5: lost
            engine.post(new_posts(10, kind=K_RECV, context=9, mask=0))
            engine.post(random_rows(rng, 60, base))
            engine.compute(LATER)
            closing = new_posts(3, kind=K_CLOSE, stream=[2 * base + 1, 2 * base + 2, 0], context=[0, 0, 9])
            engine.post(closing)
            engine.compute(LATER)
            engine.observe()
            engine.inbox()
            engine.retire(2 * base + 1)
            engine.retire(2 * base + 2)
        engine.wait([(0, api.EQ, 1)], timeout_ps=LATER)
        return in_use(engine)

    assert pair("c", here, here) == (0, 0)


@needs_core
@pytest.mark.multirank
def test_a_batch_among_processes():
    """1,000 streamed puts with a record each, in one call; times in closed form."""

    def body(engine, row):
        if engine.rank:
            return
        engine.post(new_posts(1000, kind=K_PUT, peer=1, stream=1, order=ORD_STREAM, done=DONE_ALWAYS))
        engine.quiet()
        records = engine.inbox()
        assert records["seq"].tolist() == list(range(1, 1001))
        assert records["time_ps"].tolist() == [k + PUT + ACK for k in range(1, 1001)]

    assert fork_ranks(Shared(machine(2), "c"), body) == [0, 0]
    assert native.available()
