"""Schedules in closed form: wake-ups, reports, what is refused, what is left over."""

import ctypes

import numpy as np
import pytest
from harness import KINDS, Shared, thread_ranks
from posting import ACK, PUT, machine

from emulator.engine import ADD, GE, new_sends, new_steps
from emulator.errors import DeadlockError, RankLostError, UsageError


def pair(kind, *bodies, **more):
    """Run a function of the engine on each rank (a thread each); returns what they returned."""
    shared, told = Shared(machine(len(bodies), **more), kind), [None] * len(bodies)

    def body(engine, row):
        told[engine.rank] = bodies[engine.rank](engine)

    assert not any(thread_ranks(shared, body))
    return told


def ping(rounds, me):
    """Each step sends to the other and waits for it."""
    k = np.arange(rounds)
    steps = new_steps(rounds, first=k, count=1, word=0, cmp=GE, value=k + 1)
    return steps, new_sends(rounds, peer=1 - me, word=0, op=ADD, value=1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("room, wakes", [(65536, 1), (2 * 72 + 48, 4), (0, 10)])
def test_one_wake_up_for_each_piece(kind, room, wakes):
    """Ten rounds: each costs the put's call price and latency (the wait's price passes meanwhile)."""

    def body(engine):
        done = engine.schedule(*ping(10, engine.rank))
        engine.quiet()
        return done, engine.now_ps, int(engine.statistics().wake_ups[engine.rank])

    got = pair(kind, body, body, schedule_bytes=room)
    assert got == [(10, 10 * (1 + PUT) + ACK, wakes + 1)] * 2  # and one of quiet


@pytest.mark.parametrize("kind", KINDS)
def test_quiet_waits_for_the_last_acknowledgement(kind):
    """Also of puts that were delivered while the schedule went on. (Mutation: BREAK_SCHEDULE_ACK.)"""

    def here(engine):
        steps = new_steps(1, count=1, word=0, cmp=GE, value=1)
        engine.schedule(steps, new_sends(1, nbytes=50, peer=1, word=0, op=ADD, value=1))
        engine.quiet()
        return engine.now_ps

    def there(engine):
        engine.wait([(0, GE, 1)])
        engine.put(0, 0, None, 0, ADD, 1)
        engine.quiet()

    # the signal comes back after the ACK did, so quiet costs its call alone
    assert pair(kind, here, there)[0] == (1 + 50 + PUT) + (1 + PUT) + 1
    slow = new_sends(1, nbytes=500, peer=1, word=0, op=ADD, value=1)

    def alone(engine):
        engine.schedule(new_steps(1, count=1), slow)
        engine.quiet()
        return engine.now_ps

    assert pair(kind, alone, lambda engine: None)[0] == 1 + 500 + PUT + ACK


@pytest.mark.parametrize("kind", KINDS)
def test_a_deadlock_names_step_and_word(kind):
    def stuck(engine):
        steps, sends = ping(6, engine.rank)
        if engine.rank:
            steps["value"][4] += 10
        with pytest.raises(DeadlockError) as found:
            engine.schedule(steps, sends)
        return str(found.value)

    for text in pair(kind, stuck, stuck):
        assert "rank 1 in schedule(step 4: word 0 >= 15)" in text
        assert "rank 0 in schedule(step 5: word 0 >= 6)" in text


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_that_dies_ends_it(kind):
    """The sleeper hears of it at once, and of the step it was in."""

    def waits(engine):
        with pytest.raises(
            RankLostError, match=r"lost: ranks \[1\].*rank 0 in schedule\(step 0: word 0 >= 1\)"
        ):
            engine.schedule(*ping(2, 0))

    def dies(engine):
        engine.wait([(0, GE, 1)])  # what the other posted as it fell asleep
        engine.mark_dead(1)

    pair(kind, waits, dies)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "steps, sends, says",
    [
        ({"compute_ps": -1}, {}, "compute_ps of step 0 is -1, must be 0 to"),
        ({"word": 17}, {}, "word of step 0 is 17, must be -1 to 16"),
        ({"cmp": 6}, {}, "cmp of step 0 is 6, must be 0 to 5"),
        ({"count": 3}, {}, "count of step 0 is 3, must be 0 to 2"),
        ({"first": 2, "count": 1}, {}, "count of step 0 is 1, must be 0 to 0"),
        ({}, {"peer": 2}, "peer of send 0 is 2, must be 0 to 1"),
        ({}, {"nbytes": -1}, "nbytes of send 0 is -1"),
        ({}, {"op": 3}, "op of send 0 is 3, must be 0 to 2"),
        ({}, {"word": 16}, "word of send 0 is 16, must be 0 to 15"),
        ({}, {"plane": 1}, "plane of send 0 is 1, must be 0 to 0"),
    ],
)
def test_bad_rows_are_named_and_nothing_happens(kind, steps, sends, says):
    shared = Shared(machine(2), kind)
    engine = shared.attach(0)
    with pytest.raises(UsageError, match=says):
        engine.schedule(new_steps(1, **steps), new_sends(2, **sends))
    with pytest.raises(UsageError, match="timeout_ps is -1"):
        engine.schedule(new_steps(1), new_sends(0), 0, -1)
    with pytest.raises(UsageError, match="STEP_DTYPE, got list"):
        engine.schedule([1], new_sends(0))
    assert engine.now_ps == 0 and engine.last_seq == 0


@pytest.mark.skipif("c" not in KINDS, reason="needs the compiled core")
def test_nothing_is_left_over():
    """All operations go back. (Mutation: sp_acknowledge keeps its operation.)"""

    def body(engine):
        for _ in range(3):
            engine.schedule(*ping(40, engine.rank), timeout_ps=10**9)
        engine.quiet()
        engine.wait([(1, GE, 1)], timeout_ps=10**6)
        counts = (ctypes.c_int64 * 2)()
        engine._lib.sp_in_use(engine._me, counts)
        return tuple(counts)

    assert pair("c", body, body) == [(0, 0)] * 2
