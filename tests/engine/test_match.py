"""Sends and receives in closed form: fit, order, wildcards, length, unexpected, rendezvous; both engines."""

import pytest
from harness import KINDS, play
from posting import ACK, PUT, REQUEST, RESPONSE, idle, machine, post, poster, records, sleep, times, until

from emulator.engine.api import LOG_DROP, LOG_PUT
from emulator.engine.posts import (
    DONE_ALWAYS,
    DONE_NEVER,
    IN_DONE,
    IN_MATCH,
    IN_UNEXPECTED,
    K_CLOSE,
    K_RECV,
    K_SEND,
    ORD_STREAM,
    ST_FLUSH,
    ST_LENGTH,
    ST_OK,
)

pytestmark = pytest.mark.parametrize("kind", KINDS)
SEND = {"kind": K_SEND, "peer": 1, "nbytes": 8, "context": 9, "done": DONE_ALWAYS, "rnr_retries": -1}
QUEUED = SEND | {"stream": 1, "order": ORD_STREAM}
RECV = {"kind": K_RECV, "context": 9}
IN = 1 + PUT + 8
"""When SEND, posted at 1, is in."""


def receives(*rows, at=1, ps=20_000):
    """Post receives at `at`, one a ps; look at the end."""
    if at > 1:
        yield sleep(at - 2)
    yield post(*rows)
    yield from until(ps)


def matched(log):
    """(user_a of the receive, user_a of the send) in order."""
    return [(r.user_a, r.value) for r in records(log) if r.kind == IN_MATCH]


def test_expected(kind):
    """The receive was there: matched on arrival, the sender hears an ack later."""
    send = SEND | {"user_a": 5, "tag": 3, "file_id": 1, "file_offset": 64, "real_bytes": 8}
    (here, there), _ = play(machine(), kind, poster(send), receives(RECV | {"user_a": 6, "tag": 3}))
    (got,) = records(there)
    assert (got.time_ps, got.kind, got.rank, got.status, got.seq) == (IN, IN_MATCH, 0, ST_OK, 1)
    assert (got.user_a, got.value, got.tag, got.context, got.nbytes) == (6, 5, 3, 9, 8)
    assert (got.file_id, got.file_offset, got.real_bytes) == (1, 64, 8)
    assert times(here, kind=IN_DONE, user_a=5) == [IN + ACK]


def test_unexpected(kind):
    """The message waits for its receive; the sender does not."""
    send = SEND | {"user_a": 5}
    (here, there), _ = play(machine(), kind, poster(send), receives(RECV, at=900))
    assert [(r.kind, r.time_ps, r.value) for r in records(there)] == [
        (IN_UNEXPECTED, IN, 5),
        (IN_MATCH, 900, 5),
    ]
    assert times(here) == [IN + ACK]


def test_first_fit_in_order(kind):
    """Receives are taken in the order posted, messages in the order of arrival (fails: MATCH_ANY_ORDER)."""
    sends = [SEND | {"user_a": 10 + k} for k in range(3)]
    rows = [RECV | {"user_a": k} for k in range(3)]
    for at in (1, 900):
        (_, there), _ = play(machine(), kind, poster(*sends), receives(*rows, at=at))
        assert matched(there) == [(0, 10), (1, 11), (2, 12)]


def test_tags_and_masks(kind):
    """Exact, any, some bits of the tag; another context never fits."""
    rows = (
        RECV | {"user_a": 1, "tag": 7},
        RECV | {"user_a": 2, "tag": 8 + 1, "mask": 8},
        RECV | {"user_a": 3, "context": 8, "mask": 0},
        RECV | {"user_a": 4, "mask": 0},
    )
    sends = [SEND | {"tag": tag, "user_a": tag} for tag in (5, 8, 7)]
    (_, there), _ = play(machine(), kind, poster(*sends), receives(*rows))
    assert matched(there) == [(4, 5), (2, 8), (1, 7)]


def test_sources(kind):
    """A receive for one sender lets others pass; one for any sender takes the earliest."""

    def receiver():
        yield post(RECV | {"user_a": 1, "source": 2}, RECV | {"user_a": 2}, RECV | {"user_a": 3})
        yield from until(20_000)

    first = poster(SEND | {"user_a": 10}, SEND | {"user_a": 11})
    (_, there, _), _ = play(machine(3), kind, first, receiver(), poster(SEND | {"user_a": 12}, before=500))
    assert matched(there) == [(2, 10), (3, 11), (1, 12)]


def test_wildcard_takes_the_earliest(kind):
    """Two senders, receives posted later."""
    late = receives(RECV, RECV, at=900)
    (_, there, _), _ = play(
        machine(3), kind, poster(SEND | {"user_a": 1}, before=300), late, poster(SEND | {"user_a": 2})
    )
    assert [value for _, value in matched(there)] == [2, 1]


def test_non_overtaking(kind):
    """A slow message before a fast one of the same queue: still matched first (fails: SIGNAL_FREE)."""
    rows = (QUEUED | {"user_a": 1, "tail_ps": 5000}, QUEUED | {"user_a": 2})
    (_, there), _ = play(machine(), kind, poster(*rows), receives(RECV, RECV))
    assert [(r.value, r.time_ps) for r in records(there)] == [(1, IN + 5000), (2, IN + 5000)]


@pytest.mark.parametrize("rnr, status, kept", [(-1, ST_OK, ST_OK), (3, ST_LENGTH, ST_FLUSH)])
def test_too_long(kind, rnr, status, kept):
    """MPI: the receiver's error. Verbs: both sides', and the sender's queue has failed."""
    rows = (QUEUED | {"rnr_retries": rnr, "real_bytes": 8}, QUEUED | {"rnr_retries": rnr})
    receive = RECV | {"capacity": 7}
    (here, there), logs = play(machine(), kind, poster(*rows), receives(receive, RECV))
    first = records(there)[0]
    assert (first.status, first.time_ps, first.real_bytes) == (ST_LENGTH, IN, 0)
    assert [r.status for r in records(here)] == [status, kept]
    assert [row[1] for row in logs[1]] == [LOG_DROP]


def test_rendezvous(kind):
    """The envelope matches, the payload is pulled, both hear of it; whoever computes or sleeps."""
    send = SEND | {"nbytes": 64, "pull_bytes": 1000, "user_a": 5}
    matched_at = 1 + PUT + 64
    done = matched_at + REQUEST + RESPONSE + 1000
    (here, there), _ = play(machine(), kind, poster(send), receives(RECV | {"user_a": 6}))
    assert [(r.kind, r.time_ps, r.user_a, r.value) for r in records(there)] == [
        (IN_MATCH, matched_at, 6, 5),
        (IN_DONE, done, 6, 5),
    ]
    assert times(here, kind=IN_DONE, user_a=5) == [done + ACK]


def test_rendezvous_unexpected(kind):
    """Nothing is pulled, and the sender hears nothing, before the receive."""
    send = SEND | {"nbytes": 64, "pull_bytes": 1000}
    (here, there), _ = play(machine(), kind, poster(send), receives(RECV, at=900))
    done = 900 + REQUEST + RESPONSE + 1000
    assert [(r.kind, r.time_ps) for r in records(there)] == [
        (IN_UNEXPECTED, 1 + PUT + 64),
        (IN_MATCH, 900),
        (IN_DONE, done),
    ]
    assert times(here) == [done + ACK]


def test_rendezvous_holds_back_nobody(kind):
    """A rendezvous without a receive: records of later messages of its queue come all the same."""
    rows = (QUEUED | {"pull_bytes": 1000}, QUEUED)
    (here, _), _ = play(machine(), kind, poster(*rows), idle())
    assert [(r.seq, r.time_ps) for r in records(here)] == [(2, IN + 8 + ACK)]


def test_rendezvous_with_myself(kind):
    """Over the local port."""
    send = SEND | {"peer": 0, "nbytes": 0, "pull_bytes": 50}
    (here, _), _ = play(machine(), kind, poster(RECV, send), idle())
    matched_at = 2 + PUT
    pulled = matched_at + REQUEST + 50 + RESPONSE
    assert [(r.kind, r.time_ps) for r in records(here)] == [
        (IN_MATCH, matched_at),
        (IN_DONE, pulled),
        (IN_DONE, pulled + ACK),
    ]


def test_write_with_immediate(kind):
    """Takes a receive and is placed by the log, not handed over; the capacity does not matter."""
    send = SEND | {"log_kind": LOG_PUT, "file_id": 1, "file_offset": 64, "offset": 32}
    send |= {"real_bytes": 8, "op_id": 4}
    (_, there), logs = play(machine(), kind, poster(send), receives(RECV | {"capacity": 0}))
    assert [(r.kind, r.status, r.file_id, r.real_bytes) for r in records(there)] == [(IN_MATCH, ST_OK, -1, 0)]
    assert [row[:8] for row in logs[1]] == [(IN, LOG_PUT, 0, 1, 64, 32, 8, 4)]


def test_a_send_may_signal(kind):
    """Its word operation happens at delivery, matched or not."""

    def receiver():
        yield "wait", {"conditions": ((3, 0, 2),), "any_": False, "timeout": None}
        yield post(RECV)
        yield from until(20_000)

    send = SEND | {"op": 2, "word": 3, "value": 1}
    (_, there), _ = play(machine(), kind, poster(send, send), receiver())
    assert there[0].now_ps == IN + 8


def test_close_ends_receives_in_order(kind):
    """FLUSH for each; silent when destroyed; other contexts stay; waiting messages are dropped."""
    rows = (RECV | {"user_a": 1}, RECV | {"user_a": 2, "context": 8}, RECV | {"user_a": 3})
    for done, flushed in ((DONE_ALWAYS, [1, 3]), (DONE_NEVER, [])):
        close = {"kind": K_CLOSE, "context": 9, "done": done}
        (_, there), _ = play(machine(), kind, idle(), receives(*rows, close))
        assert [(r.user_a, r.status, r.rank, r.time_ps) for r in records(there)] == [
            (user, ST_FLUSH, -1, 4) for user in flushed
        ]


def test_close_drops_messages(kind):
    """An eager one is given back, a rendezvous sender hears FLUSH; a receive afterwards finds nothing."""
    rows = (SEND | {"real_bytes": 8}, SEND | {"pull_bytes": 10})
    close = {"kind": K_CLOSE, "context": 9, "done": DONE_ALWAYS}
    (here, there), logs = play(machine(), kind, poster(*rows), receives(close, RECV, at=900))
    assert [(r.seq, r.status, r.time_ps) for r in records(here)] == [
        (1, ST_OK, IN + ACK),
        (2, ST_FLUSH, 900 + ACK),
    ]
    assert [row[:2] for row in logs[1]] == [(900, LOG_DROP)] and not matched(there)


def test_cancel_one_receive(kind):
    """K_CLOSE with `compare`: that one, if it is still waiting; nothing if it was matched."""
    rows = (RECV | {"user_a": 1}, RECV | {"user_a": 2}, RECV | {"user_a": 3})
    closes = [{"kind": K_CLOSE, "context": 9, "done": DONE_ALWAYS, "compare": seq} for seq in (2, 99)]
    (_, there), _ = play(machine(), kind, poster(SEND, SEND), receives(*rows, *closes))
    assert [(r.user_a, r.status) for r in records(there)] == [(2, ST_FLUSH), (1, ST_OK), (3, ST_OK)]
    late = {"kind": K_CLOSE, "context": 9, "done": DONE_ALWAYS, "compare": 1}
    (_, there), _ = play(machine(), kind, poster(SEND), receives(RECV, late | {"start_ps": 500}))
    assert [r.kind for r in records(there)] == [IN_MATCH]
