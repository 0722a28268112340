"""Guards, refusals, retries and failed streams in closed form; both engines."""

import pytest
from harness import KINDS, play
from posting import ACK, PUT, REQUEST, idle, machine, post, poster, records, sleep, times, until

from emulator.engine.api import LOG_DROP, LOG_PUT, LOG_SNAPSHOT
from emulator.engine.posts import (
    DONE_ALWAYS,
    DONE_NEVER,
    DONE_ON_ERROR,
    DONE_SENT,
    FOR_EVER,
    IN_NOTE,
    K_CLOSE,
    K_GET,
    K_LOCAL,
    K_PUT,
    K_RECV,
    K_SEND,
    K_WORD,
    ORD_FENCE,
    ORD_STREAM,
    ST_FLUSH,
    ST_LOST,
    ST_OK,
    ST_REGION,
    ST_RNR,
)

pytestmark = pytest.mark.parametrize("kind", KINDS)
STATE = {"state_word": 8, "state_mask": 0b10, "lost_ps": 500}
REGION = {"region_word": 4, "region_tag": 7, "region_offset": 100, "region_bytes": 8, "region_need": 2}
MR = (7, 96, 16, 3)  # tag, base, length, access
WRITE = {"kind": K_PUT, "peer": 1, "nbytes": 8, "done": DONE_ALWAYS, "stream": 1, "order": ORD_STREAM}
IN = 1 + PUT + 8
"""When WRITE, posted at 1, is in."""


def local(word, value):
    return {"kind": K_LOCAL, "op": 1, "word": word, "value": value}


def owner(*words, at=()):
    """A rank with words set at once, and later some again: (ps after the start, word, value)."""
    yield post(*(local(word, value) for word, value in words))
    now = len(words)
    for when, word, value in at:
        yield sleep(when - now - 2)
        yield post(local(word, value))
        now = when
    yield from until(20_000)


def ended(log):
    """(sequence number, status, time) of every record of mine."""
    return [(r.seq, r.status, r.time_ps) for r in records(log)]


def test_lost_until_there(kind):
    """Nobody answers until the state changes at 800: the third try, each 500 ps after the arrival before."""
    write = WRITE | STATE | {"lost_retries": 3, "note": 1}
    (here, there), _ = play(machine(), kind, poster(write), owner((8, 0), at=[(800, 8, 1)]))
    third = IN + 2 * (500 + PUT + 8)
    assert times(there, kind=IN_NOTE) == [third]
    assert ended(here) == [(1, ST_OK, third + ACK)]


def test_lost_for_good(kind):
    """Retries used up; what came behind in the queue is flushed at the same instant, in order."""
    write = WRITE | STATE | {"lost_retries": 1}
    (here, there), _ = play(machine(), kind, poster(write, WRITE | {"note": 1}), owner((8, 0)))
    failed = IN + (500 + PUT + 8) + 500
    assert ended(here) == [(1, ST_LOST, failed), (2, ST_FLUSH, failed)] and not records(there)


def test_an_answer_is_not_awaited_less_than_the_ack(kind):
    (here, _), _ = play(machine(), kind, poster(WRITE | STATE | {"lost_ps": 1}), owner((8, 0)))
    assert ended(here) == [(1, ST_LOST, IN + ACK)]


@pytest.mark.parametrize(
    "fields, words, status",
    [
        ({}, MR, ST_OK),
        ({"region_offset": 104}, MR, ST_OK),
        ({"region_offset": 105}, MR, ST_REGION),
        ({"region_offset": 95}, MR, ST_REGION),
        ({"region_bytes": 13}, MR, ST_REGION),
        ({"region_tag": 6}, MR, ST_REGION),
        ({"region_need": 4}, MR, ST_REGION),
        ({}, (0, 96, 16, 3), ST_REGION),
        ({"region_word": 13}, MR, ST_REGION),
        ({"deny_mask": 0b10, "state_word": 8, "state_mask": -1}, MR, ST_REGION),
    ],
)
@pytest.mark.parametrize("operation", [K_PUT, K_GET, K_WORD])
def test_region(kind, operation, fields, words, status):
    """Key, bounds, access, a closed region, a state that denies (fails: GUARD_OPEN)."""
    op = {"kind": operation, "peer": 1, "nbytes": 0, "done": DONE_ALWAYS, **REGION, **fields}
    there = owner(*enumerate(words, 4), (8, 1))
    (here, _), _ = play(machine(), kind, poster(op, before=50), there)
    assert [r.status for r in records(here)] == [status]
    if status:
        arrival = 52 + (PUT if operation == K_PUT else REQUEST)
        assert times(here) == [arrival + ACK]


def test_the_state_is_asked_first(kind):
    """A queue that is not there cannot answer about a key."""
    op = WRITE | REGION | STATE | {"region_tag": 1}
    (here, _), _ = play(machine(), kind, poster(op), owner((8, 0)))
    assert ended(here) == [(1, ST_LOST, IN + 500)]


def test_region_closed_while_under_way(kind):
    """Deregistered at 60, before the write arrives: judged at arrival."""
    there = owner(*enumerate(MR, 4), at=[(60, 4, 0)])
    (here, _), _ = play(machine(), kind, poster(WRITE | REGION, before=4), there)
    assert [r.status for r in records(here)] == [ST_REGION]


def test_notice_of_a_refusal(kind):
    """note 1 tells of a delivery, note 2 of a refusal."""
    for note, expected in ((1, []), (2, [ST_REGION]), (3, [ST_REGION])):
        (_, there), _ = play(machine(), kind, poster(WRITE | REGION | {"note": note, "user_a": 5}), idle())
        assert [r.status for r in records(there)] == expected
        assert times(there, user_a=5) == [IN] * len(expected)


def test_what_was_staged_is_given_back(kind):
    """A refused put and a flushed one: one entry each that frees the slot, none that writes."""
    put = WRITE | {"log_kind": LOG_PUT, "file_id": 1, "file_offset": 64, "offset": 32, "real_bytes": 8}
    rows = (put | REGION | {"op_id": 1}, put | {"op_id": 2})
    _, logs = play(machine(), kind, poster(*rows), idle())
    assert [(row[0], row[1], row[7], row[9:]) for row in logs[1]] == [
        (IN, LOG_DROP, 1, (K_PUT, LOG_PUT)),
        (IN + 8, LOG_DROP, 2, (K_PUT, LOG_PUT)),
    ]


def test_posts_to_a_failed_stream(kind):
    """Flushed at once, without touching the port; a fence behind them is not stuck."""

    def program():
        yield post(WRITE | REGION)
        yield from until(1000)
        fenced = {"kind": K_PUT, "peer": 1, "order": ORD_FENCE, "fence": 99, "note": 1}
        yield post(WRITE, WRITE | {"kind": K_GET, "log_kind": LOG_SNAPSHOT}, fenced)
        yield from until(5000)

    (here, there), logs = play(machine(), kind, program(), idle())
    now = here[2].now_ps
    assert ended(here) == [(1, ST_REGION, IN + ACK), (4, ST_FLUSH, now + 1), (5, ST_FLUSH, now + 2)]
    assert times(there) == [now + 3 + PUT]
    assert [(row[0], row[1]) for row in logs[1]] == [(now + 2 + PUT, LOG_DROP)]


def test_which_failures_are_reported(kind):
    """DONE_NEVER, DONE_ON_ERROR and DONE_ALWAYS, failed and flushed (fails: FLUSH_LOST)."""
    rows = [WRITE | {"done": done} for done in (DONE_NEVER, DONE_ON_ERROR, DONE_ALWAYS)]
    (here, _), _ = play(machine(), kind, poster(rows[1] | REGION, *rows), idle())
    failed = IN + ACK
    assert ended(here) == [(1, ST_REGION, failed), (3, ST_FLUSH, failed), (4, ST_FLUSH, failed)]


SEND = {"kind": K_SEND, "peer": 1, "nbytes": 8, "context": 9, "done": DONE_ALWAYS}
SEND |= {"rnr_retries": 2, "rnr_ps": 200}


def receiver(at):
    """Posts a receive at `at` (its post time)."""
    yield sleep(at - 2)
    yield post({"kind": K_RECV, "context": 9})
    yield from until(20_000)


def test_receiver_not_ready(kind):
    """The receive comes at 700, the tries at 109 + k * 338: the third succeeds (fails: RNR_DELIVERS)."""
    again = ACK + 200 + PUT + 8
    (here, there), _ = play(machine(), kind, poster(SEND), receiver(700))
    assert times(there) == [IN + 2 * again] and ended(here) == [(1, ST_OK, IN + 2 * again + ACK)]
    (here, there), _ = play(machine(), kind, poster(SEND), receiver(IN + 2 * again + 1))
    assert not records(there) and ended(here) == [(1, ST_RNR, IN + 2 * again + ACK)]


def test_the_receiver_says_how_long(kind):
    """Bits 6 and up of its state word are added."""
    there = owner((8, 1 + 64 * 77))
    (here, _), _ = play(machine(), kind, poster(SEND | STATE | {"rnr_retries": 1}), there)
    assert ended(here) == [(1, ST_RNR, IN + ACK + 200 + 77 + PUT + 8 + ACK)]


def test_retried_for_ever(kind):
    """A receive after many tries is found; with none the run ends in a report instead of a hang."""
    (here, there), _ = play(machine(), kind, poster(SEND | {"rnr_retries": FOR_EVER}), receiver(9000))
    tries = -(-(9000 - IN) // (ACK + 200 + PUT + 8))
    assert times(there) == [IN + tries * (ACK + 200 + PUT + 8)] and len(records(here)) == 1

    def waits():
        yield "wait", {"conditions": ((0, 0, 1),), "any_": False, "timeout": None}

    def sends():
        yield post(SEND | {"rnr_retries": FOR_EVER})
        yield from waits()

    (here, there), _ = play(machine(), kind, sends(), waits())
    assert here[-1].call == there[-1].call == "deadlock"


def test_retried_for_ever_while_all_poll(kind):
    """Polls in vain and retries in vain are no progress either."""

    def polls(*rows):
        if rows:
            yield post(*rows)
        while True:
            yield "test", {"word": 0, "cmp": 0, "value": 1}

    cfg = machine(poll_price_ps=50, poll_max_polls=20, livelock_polls=10)
    (here, there), _ = play(cfg, kind, polls(SEND | {"rnr_retries": FOR_EVER}), polls())
    assert here[-1].call == there[-1].call == "deadlock"


def test_order_holds_across_retries(kind):
    """A later send of the queue waits at the target until the earlier one got its receive."""

    def two():
        yield sleep(300)
        yield post({"kind": K_RECV, "context": 9}, {"kind": K_RECV, "context": 9})
        yield from until(20_000)

    sends = [SEND | {"stream": 1, "order": ORD_STREAM, "user_a": k} for k in (1, 2)]
    (_, there), _ = play(machine(), kind, poster(*sends), two())
    accepted = IN + ACK + 200 + PUT + 8
    assert [(r.value, r.time_ps) for r in records(there)] == [(1, accepted), (2, accepted)]


def test_inbox_overflow(kind):
    """A rank that never takes its records ends the run with one line."""
    (here, _), _ = play(machine(inbox_entries=8), kind, poster(*[WRITE | {"note": 1, "done": 0}] * 9), idle())
    assert here[-1].call == "error" and "the inbox of rank 1 is full" in here[-1].value


def test_a_stream_has_one_peer(kind):
    (here, _), _ = play(machine(), kind, poster(WRITE, WRITE | {"peer": 0}), idle())
    assert here[-1].call == "error" and "stream" in here[-1].value


def closing(*rows, at=50, **fields):
    yield post(*rows)
    yield sleep(at - len(rows) - 2)
    yield post({"kind": K_CLOSE, "stream": 1, "done": DONE_ALWAYS, **fields})
    yield from until(5000)


def test_close_flushes(kind):
    """What is under way ends FLUSH now, though it still lands; what has not started does not land."""
    rows = (WRITE | {"note": 1}, WRITE | {"note": 1, "start_ps": 500})
    (here, there), _ = play(machine(), kind, closing(*rows), idle())
    assert ended(here) == [(1, ST_FLUSH, 50), (2, ST_FLUSH, 50)]
    assert times(there) == [IN]


def test_destroyed_silently(kind):
    (here, there), _ = play(machine(), kind, closing(WRITE, WRITE, done=DONE_NEVER), idle())
    assert not records(here) and not records(there)


def test_quiet_after_a_failure(kind):
    """Flushed operations are no longer waited for."""

    def program():
        yield post(WRITE | REGION, WRITE | {"start_ps": 4000}, WRITE | {"kind": K_GET, "rd_below": 1})
        yield "quiet", {}

    (here, _), _ = play(machine(), kind, program(), idle())
    assert here[-1].now_ps == IN + ACK


def test_sent_and_forgotten(kind):
    """DONE_SENT: done when it has left the port; a refusal at the other end is not heard of."""
    send = SEND | {"done": DONE_SENT, "real_bytes": 8, "done_ps": 3}
    (here, there), logs = play(machine(), kind, poster(send, send | STATE), owner((8, 0)))
    assert ended(here) == [(1, ST_OK, 1 + 8 + 3), (2, ST_OK, 9 + 8 + 3)]
    assert not records(there) and [row[1] for row in logs[1]] == [LOG_DROP] * 2
