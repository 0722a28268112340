"""Order of posts in closed form: units, planes, order bits, streams, reads before writes; both engines."""

import pytest
from harness import KINDS, play, run
from posting import ACK, PUT, REQUEST, RESPONSE, SLOW, idle, machine, post, poster, records, times, until

from emulator.engine.api import LOG_PUT, LOG_RMW, LOG_SNAPSHOT
from emulator.engine.posts import (
    DONE_ALWAYS,
    IN_DONE,
    IN_NOTE,
    K_GET,
    K_LOCAL,
    K_PUT,
    K_WORD,
    ORD_FENCE,
    ORD_STREAM,
    ORD_STRONG,
    ORD_TRACK,
    ST_OK,
)

pytestmark = pytest.mark.parametrize("kind", KINDS)
NOTED = {"kind": K_PUT, "peer": 1, "nbytes": 8, "note": 1, "done": DONE_ALWAYS}
FIRST = 1 + PUT + 8
"""When NOTED, posted at 1, is placed: it leaves from 1 to 9, comes in from 101 to 109."""
SLOWLY = NOTED | {"tail_ps": 1000}


def noted(kind, *rows, **more):
    """When each put was placed, by sequence number (from 1)."""
    (_, there), _ = play(machine(**more), kind, poster(*rows), idle())
    return {r.seq: r.time_ps for r in records(there) if r.kind == IN_NOTE}


def test_put_of_eight_bytes(kind):
    (here, there), _ = play(machine(), kind, poster(NOTED | {"value": 7, "user_a": 3}), idle())
    assert times(there, kind=IN_NOTE, rank=0, value=7, user_a=3) == [FIRST] == [109]
    assert times(here, kind=IN_DONE, rank=1, status=ST_OK, user_a=3) == [109 + ACK]


def test_tail_and_done(kind):
    (here, there), _ = play(machine(), kind, poster(NOTED | {"tail_ps": 50, "done_ps": 5}), idle())
    assert times(there) == [159] and times(here) == [159 + ACK + 5]


def test_get_and_word(kind):
    get = {"kind": K_GET, "peer": 1, "nbytes": 20, "tail_ps": 7, "done_ps": 2, "done": DONE_ALWAYS}
    word = {"kind": K_WORD, "peer": 1, "op": 0, "word": 3, "value": 5, "done": DONE_ALWAYS, "done_ps": 4}
    (here, _), _ = play(machine(), kind, poster(get, word, word), idle())
    assert times(here, seq=1) == [1 + REQUEST + RESPONSE + 20 + 7 + 2]
    assert times(here, seq=2, value=0) == [2 + REQUEST + RESPONSE + 4]
    assert times(here, seq=3, value=5) == [3 + REQUEST + RESPONSE + 4]


@pytest.mark.parametrize("op, left", [(0, 14), (1, 4), (2, 10), (3, 10 & 4), (4, 10 | 4), (5, 10 ^ 4)])
def test_atomics(kind, op, left):
    """Add, swap, compare and swap (that misses), and, or, xor."""

    def owner():
        yield post({"kind": K_LOCAL, "op": 1, "word": 3, "value": 10})
        yield from until(5000)
        yield "read", {"word": 3}

    word = {"kind": K_WORD, "peer": 1, "op": op, "word": 3, "value": 4, "compare": 9, "done": DONE_ALWAYS}
    (here, there), _ = play(machine(), kind, poster(word), owner())
    assert [r.value for r in records(here)] == [10] and there[-1].value == left


def test_batch_equals_loop(kind):
    """Same times in one call as in three, with and without a step."""

    def loop(rows, step):
        for row in rows:
            yield post(row, step=step)
        yield from until(9000)

    def batch(rows, step):
        yield post(*rows, step=step)
        yield from until(9000)

    rows = [NOTED | {"nbytes": size, "word": 1, "op": 2, "value": 1} for size in (1, 30, 4)]
    for step in (0, 11):
        results = [play(machine(), kind, make(rows, step), idle(9000))[0] for make in (loop, batch)]
        (a, b), (c, d) = results
        assert records(a) == records(c) and records(b) == records(d)
        assert a[-1].now_ps == c[-1].now_ps == 3 * (1 + step) + 2 + 9000


def test_rows_equal_calls(kind):
    """A put and a get as rows and as calls: same times, same digests."""

    def calls():
        yield "put", {"dst": 1, "nbytes": 30, "word": 2, "op": 2, "value": 5}
        yield "put", {"dst": 1, "nbytes": 3, "word": None, "op": 1, "value": 0}
        yield "get", {"src": 1, "nbytes": 9}
        yield "quiet", {}

    def rows():
        put = {"kind": K_PUT, "peer": 1, "nbytes": 30, "word": 2, "op": 2, "value": 5}
        yield post(put, {"kind": K_PUT, "peer": 1, "nbytes": 3}, {"kind": K_GET, "peer": 1, "nbytes": 9})
        yield "quiet", {}

    def result(program):
        make = (program, idle)
        logs, _, hashes, digests, _ = run(machine(), kind, lambda r: make[r](), 40, threads=True)
        return logs[0][-1], logs[1], hashes, digests

    assert result(calls) == result(rows)


def test_unit_serves_in_order(kind):
    """A unit takes one post every 50 ps, whatever the port needs; another unit is free."""
    rows = [NOTED | {"unit": unit, "unit_ps": 50} for unit in (0, 0, 0, 1)]
    placed = noted(kind, *rows)
    assert [placed[k] for k in (1, 2, 3)] == [FIRST, FIRST + 50, FIRST + 100]
    assert placed[4] == 9 + 8 + PUT + 0  # leaves at 4, waits for the port of the first until 9


def test_planes_have_their_own_ports(kind):
    fast = NOTED | {"nbytes": 1000}
    assert noted(kind, fast, NOTED)[2] == 1 + 1000 + PUT + 8
    placed = noted(kind, fast, NOTED | {"plane": 1}, planes=[SLOW])
    assert placed == {1: 1 + 1000 + PUT, 2: 2 + 80 + 700}


ORDERED = [
    ("none", {}, {}, False),
    ("track is not waited for without strong", {"order": ORD_TRACK}, {"order": ORD_TRACK}, False),
    ("strong waits for tracked", {"order": ORD_TRACK}, {"order": ORD_STRONG}, True),
    ("strong does not wait for none", {}, {"order": ORD_STRONG | ORD_TRACK}, False),
    ("fence", {}, {"order": ORD_FENCE, "fence": 2}, True),
    ("a fence before it", {}, {"order": ORD_FENCE, "fence": 1}, False),
    ("stream", {"stream": 4}, {"stream": 4, "order": ORD_STREAM}, True),
    ("stream without the bit", {"stream": 4}, {"stream": 4}, False),
    ("another stream", {"stream": 4}, {"stream": 5, "order": ORD_STREAM}, False),
]


@pytest.mark.parametrize("first, second, waits", [row[1:] for row in ORDERED], ids=[r[0] for r in ORDERED])
def test_order_bits(kind, first, second, waits):
    """The second put is placed when it arrives, or when the first is (NO_FENCE, NO_STRONG, SIGNAL_FREE)."""
    placed = noted(kind, SLOWLY | first, NOTED | second)
    assert placed[1] == FIRST + 1000
    assert placed[2] == (placed[1] if waits else FIRST + 8)


def test_order_is_per_target(kind):
    """A fence orders what goes to one rank only."""
    second = NOTED | {"peer": 2, "order": ORD_FENCE, "fence": 2}
    (_, _, there), _ = play(machine(3), kind, poster(SLOWLY, second), idle(), idle())
    assert times(there) == [FIRST + 8]


def test_fence_holds_a_get_that_changes_memory(kind):
    """A read-modify-write behind a fence samples after the put; a plain get does not wait."""
    put = {"kind": K_PUT, "peer": 1, "nbytes": 8, "log_kind": LOG_PUT, "tail_ps": 500, "op_id": 1}
    get = {"kind": K_GET, "peer": 1, "nbytes": 8, "log_kind": LOG_SNAPSHOT, "op_id": 2}
    change = get | {"log_kind": LOG_RMW, "order": ORD_FENCE, "fence": 2, "op_id": 3}
    _, logs = play(machine(), kind, poster(put, change, get), idle())
    placed = FIRST + 500
    assert [(row[0], row[7]) for row in logs[1]] == [(3 + REQUEST, 2), (placed, 1), (placed, 3)]


def test_reads_before_writes(kind):
    """`rd_below` 1 is the fence of a work request: no start before the earlier get is answered."""
    get = {"kind": K_GET, "peer": 1, "nbytes": 20}
    answered = 1 + REQUEST + RESPONSE + 20
    assert noted(kind, get, NOTED | {"rd_below": 1})[2] == answered + 8 + PUT
    assert noted(kind, get, NOTED | {"rd_below": 2})[2] == 2 + 8 + PUT
    assert noted(kind, get | {"stream": 1}, NOTED | {"rd_below": 1, "stream": 2})[2] == 2 + 8 + PUT


def test_reads_under_way_are_limited(kind):
    """Four gets, two at a time, in one queue; a later put of the queue keeps behind them."""
    get = {"kind": K_GET, "peer": 1, "nbytes": 0, "done": DONE_ALWAYS, "rd_below": 2, "stream": 1}
    put = {"kind": K_PUT, "peer": 1, "stream": 1, "note": 1}
    (here, there), _ = play(machine(), kind, poster(get, get, get, get, put), idle())
    trip = REQUEST + RESPONSE
    assert times(here) == [1 + trip, 2 + trip, 1 + 2 * trip, 2 + 2 * trip]
    assert times(there) == [2 + trip + PUT]


def test_records_of_a_queue_come_in_order(kind):
    """The first is acknowledged late: the second's record waits, what is not of the queue does not."""
    slow = NOTED | {"stream": 3, "done_ps": 400}
    (here, _), _ = play(machine(), kind, poster(slow, NOTED | {"stream": 3}, NOTED), idle())
    late = FIRST + ACK + 400
    assert [(r.seq, r.time_ps) for r in records(here)] == [(3, FIRST + 16 + ACK), (1, late), (2, late)]


def test_a_signal_behind_many(kind):
    """A hundred chunks of whatever speed, then the signal."""
    chunk = {"kind": K_PUT, "peer": 1, "nbytes": 1, "stream": 1}
    chunks = [chunk | {"tail_ps": 3 * (k % 37)} for k in range(100)]
    placed = max(101 + k + 1 + 3 * (k % 37) for k in range(100))
    assert noted(kind, *chunks, NOTED | {"nbytes": 0, "stream": 1, "order": ORD_STREAM}) == {101: placed}


def test_waiting_for_a_record(kind):
    """The inbox word counts records, wakes a wait, and is read like any other word."""

    def waits():
        yield "wait", {"conditions": ((16, 3, 2),), "any_": False, "timeout": None}
        yield "inbox", {}
        yield "read", {"word": 16}
        yield "test", {"word": 16, "cmp": 0, "value": 2}

    (_, there), _ = play(machine(), kind, poster(NOTED, NOTED), waits())
    assert there[0].now_ps == FIRST + 8
    assert [r.seq for r in records(there)] == [1, 2] and [x.value for x in there[2:]] == [2, 1]


def test_report_of_a_wait_for_records(kind):
    """A deadlock says that it is the inbox that is waited for."""

    def waits():
        yield "wait", {"conditions": ((16, 3, 1),), "any_": False, "timeout": None}

    (here, _), _ = play(machine(), kind, waits(), idle())
    assert here[-1].call == "deadlock" and "inbox records >= 1" in here[-1].value


def test_records_up_to_the_last_observation(kind):
    """A record that came after the last blocking call is not shown yet."""

    def looks():
        yield "observe", {}
        yield ("compute", {"ps": 5000})
        yield "inbox", {}
        yield "observe", {}
        yield "inbox", {}

    (_, there), _ = play(machine(), kind, poster(NOTED), looks())
    assert [len(x.value) for x in there if x.call == "inbox"] == [0, 1]
