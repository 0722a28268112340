"""Send and receive queue accounting, and the completion rule, without an engine."""

import numpy as np
import pytest

from emulator.engine.posts import ST_FLUSH, ST_LENGTH, ST_LOST, ST_OK, ST_REGION, ST_RNR
from emulator.errors import InternalError
from memsem.verbs.completion import RecvEntry, RecvQueue, SendEntry, SendQueue, Tally
from memsem.verbs.enums import (
    IBV_WC_LOC_PROT_ERR,
    IBV_WC_REM_ACCESS_ERR,
    IBV_WC_REM_INV_REQ_ERR,
    IBV_WC_RETRY_EXC_ERR,
    IBV_WC_RNR_RETRY_EXC_ERR,
    IBV_WC_SUCCESS,
    IBV_WC_WR_FLUSH_ERR,
)


def posted(queue, signalled):
    entry = SendEntry(queue.take_number(), 100 + len(signalled), 2, False)
    entries = []
    for flag in signalled:
        entry = SendEntry(queue.take_number(), 0, 2, flag)
        queue.push(entry)
        entries.append(entry)
    return entries


def test_a_signalled_send_retires_the_unsignalled_before_it():
    tally = Tally()
    queue = SendQueue(4, tally)
    first, second, third, fourth = posted(queue, [False, False, True, True])
    assert queue.room == 0 and queue.outstanding == 4
    assert queue.finish(third, IBV_WC_SUCCESS)
    assert (tally.silent, tally.signalled, queue.outstanding) == (2, 1, 1)
    assert queue.room == 0  # nobody has polled
    queue.retire(third.number)
    assert queue.room == 3
    queue.retire(third.number)  # again: changes nothing
    assert queue.room == 3
    assert queue.finish(fourth, IBV_WC_SUCCESS) and queue.outstanding == 0


def test_an_unsignalled_send_that_fails_has_a_completion():
    tally = Tally()
    queue = SendQueue(4, tally)
    (only,) = posted(queue, [False])
    assert queue.finish(only, IBV_WC_REM_ACCESS_ERR)
    assert tally.failed_sends == 1 and tally.silent == 0


def test_no_send_ends_twice_or_out_of_order():
    queue = SendQueue(4, Tally())
    first, second = posted(queue, [True, True])
    with pytest.raises(InternalError, match="before"):
        queue.finish(second, IBV_WC_SUCCESS)
    queue = SendQueue(4, Tally())
    (only,) = posted(queue, [True])
    queue.finish(only, IBV_WC_SUCCESS)
    with pytest.raises(InternalError, match="twice"):
        queue.finish(only, IBV_WC_SUCCESS)


@pytest.mark.parametrize("engine, status", [
    (ST_OK, IBV_WC_SUCCESS), (ST_REGION, IBV_WC_REM_ACCESS_ERR), (ST_LOST, IBV_WC_RETRY_EXC_ERR),
    (ST_RNR, IBV_WC_RNR_RETRY_EXC_ERR), (ST_FLUSH, IBV_WC_WR_FLUSH_ERR), (ST_LENGTH, IBV_WC_REM_INV_REQ_ERR),
])  # fmt: skip
def test_statuses(engine, status):
    assert SendEntry(0, 0, 2, True).status(engine) == status
    unreliable = SendEntry(0, 0, 2, True, reliable=False)
    assert unreliable.status(engine) == (IBV_WC_WR_FLUSH_ERR if engine == ST_FLUSH else IBV_WC_SUCCESS)


def test_a_verdict_of_this_side_stands_for_the_refusal_but_not_for_a_flush():
    entry = SendEntry(0, 0, 2, True, verdict=IBV_WC_LOC_PROT_ERR)
    assert entry.status(ST_REGION) == entry.status(ST_OK) == IBV_WC_LOC_PROT_ERR
    assert entry.status(ST_FLUSH) == IBV_WC_WR_FLUSH_ERR
    assert entry.status(ST_LOST) == IBV_WC_RETRY_EXC_ERR


def test_receive_slots_are_free_when_polled():
    tally = Tally()
    queue = RecvQueue(2, tally)
    for i in range(2):
        queue.push(RecvEntry(queue.take_number(), i, ()))
    assert queue.room == 0
    assert queue.pop(1).wr_id == 1 and queue.pop(1) is None
    assert queue.room == 0
    queue.count(IBV_WC_SUCCESS)
    queue.retire()
    assert queue.room == 1 and tally.received == 1


@pytest.mark.parametrize("seed", range(20))
def test_random_lives_keep_the_rule(seed):
    """Whatever ends how, posted = ended + outstanding. A queue that forgets one is found out."""
    rng = np.random.default_rng(seed)
    tally = Tally()
    queue = SendQueue(1000, tally)
    open_ = []
    for _ in range(200):
        if rng.random() < 0.5:
            open_ += posted(queue, [bool(rng.integers(2))])
        elif open_ and rng.random() < 0.05:
            queue.discard()
            open_ = []
        elif open_:
            at = next((i for i, e in enumerate(open_) if e.signalled), 0)
            status = IBV_WC_SUCCESS if rng.random() < 0.7 else IBV_WC_WR_FLUSH_ERR
            tally.completions += queue.finish(open_[at], status)
            del open_[: at + 1]
        assert tally.violations(queue.outstanding) == [], f"seed {seed}"
    assert tally.violations(queue.outstanding + 1) != []
    tally.completions += 1
    assert "completions" in tally.violations(queue.outstanding)[0]
