"""Blocked means asleep: no CPU, few wake-ups, exact poll ticks; and a run that cannot go on says why."""

import dataclasses
import mmap
import os
import resource
import signal
import time

import numpy as np
import pytest
from harness import KINDS, Shared, fork_ranks
from test_closed_form import PUT, WRITE, machine, ps

from emulator.engine import ADD, GE, LogRef, engine_attach, engine_bytes, engine_create
from emulator.errors import DeadlockError, InternalError, RankLostError, UsageError, WallDeadlineError

pytestmark = [pytest.mark.multirank, pytest.mark.parametrize("kind", KINDS)]


def run(cfg, kind, body):
    shared = Shared(cfg, kind)
    return fork_ranks(shared, body), shared


def raised(engine, error, call):
    """What a call raises; the process then ends without a trace."""
    with pytest.raises(error) as info:
        call()
    assert info.type is error
    return info.value


def test_blocked_ranks_use_no_cpu(kind):
    """Eight ranks wait while one sleeps on the host for two seconds: under 0.05 s of CPU in all meanwhile."""

    def body(engine, row):
        if engine.rank == 0:
            time.sleep(2)
            for dst in range(1, 8):
                engine.put(dst, 8, word=0, op=ADD, value=1)
            return
        engine.observe()
        before = resource.getrusage(resource.RUSAGE_SELF)
        engine.wait([(0, GE, 1)])
        after = resource.getrusage(resource.RUSAGE_SELF)
        row[0] = int(1e6 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))

    codes, shared = run(machine(8), kind, body)
    assert codes == [0] * 8
    assert shared.table[:, 0].sum() < 50_000


def test_polling_sleeps_and_keeps_exact_time(kind):
    """`while not test()` costs few wake-ups and ends at the first tick that sees the word."""
    cfg = dataclasses.replace(machine(8), poll_price_ps=100, poll_max_polls=10**9)

    def body(engine, row):
        if engine.rank == 0:
            engine.compute(10**9 + 12_345)
            for dst in range(1, 8):
                engine.put(dst, 8, word=0, op=ADD, value=1)
            return
        while not engine.test(0, GE, 1):
            row[2] += 1
        row[0], row[1] = engine.now_ps, engine.statistics().wake_ups[engine.rank]

    codes, shared = run(cfg, kind, body)
    assert codes == [0] * 8
    egress_free = 10**9 + 12_345 + 1
    for dst in range(1, 8):
        k = 1 if dst == 1 else 2 if dst < 4 else 3
        start = max(egress_free, 10**9 + 12_345 + 1 + dst)
        egress_free = start + ps(8, WRITE[k])
        delivered = start + PUT[k] + ps(8, WRITE[k])
        tick = 1 + -(-(delivered - 1) // 100) * 100
        assert shared.table[dst, 0] == tick + 1
        assert shared.table[dst, 1] < 10


def test_a_poll_sees_other_words_too(kind):
    """A rank that polls two words in turn is not put to sleep past the second one."""
    cfg = dataclasses.replace(machine(2), poll_price_ps=100, poll_max_polls=10**9)

    def body(engine, row):
        if engine.rank == 0:
            engine.compute(5_000)
            engine.put(1, 8, word=1, op=ADD, value=1)
            return
        while not (engine.test(0, GE, 1) or engine.test(1, GE, 1)):
            pass
        row[0] = engine.now_ps

    codes, shared = run(cfg, kind, body)
    assert codes == [0, 0]
    assert shared.table[1, 0] < 5_002 + PUT[1] + ps(8, WRITE[1]) + 300


def test_poll_limit(kind):
    """An unsuccessful test ends `poll_max_polls` ticks later at the latest."""
    cfg = dataclasses.replace(machine(1), poll_price_ps=100, poll_max_polls=7)

    def body(engine, row):
        assert engine.test(0, GE, 1) is False
        row[0], row[1] = engine.now_ps, engine.statistics().polls_skipped[0]

    codes, shared = run(cfg, kind, body)
    assert codes == [0] and shared.table[0, :2].tolist() == [1 + 700, 7]


def test_deadlock_names_the_waiters(kind):
    def body(engine, row):
        if engine.rank == 2:
            return
        if engine.rank == 3:
            engine.compute(500)
            error = raised(engine, DeadlockError, lambda: engine.exchange(1, None, 0, 32))
        else:
            error = raised(engine, DeadlockError, lambda: engine.wait([(3, GE, 7)]))
        text = str(error)
        assert "ranks 0-1 in wait(word 3 >= 7) since 1 ps" in text
        assert "rank 3 in exchange(channel 1) since 502 ps, not come: ranks 0-2" in text
        assert [w["rank"] for w in error.waiters] == [0, 1, 3]

    assert run(machine(4), kind, body)[0] == [0] * 4


def test_all_polling_in_vain(kind):
    """Everybody polls and nothing is under way: reported, though polls are pending for ever."""
    cfg = dataclasses.replace(machine(3), poll_price_ps=100, poll_max_polls=10, livelock_polls=20)

    def body(engine, row):
        def poll():
            while not engine.test(engine.rank, GE, 1):
                row[0] += 1

        error = raised(engine, DeadlockError, poll)
        assert error.livelock and "polls in vain" in str(error)

    codes, shared = run(cfg, kind, body)
    assert codes == [0] * 3 and shared.table[:, 0].min() >= 19


def test_wall_deadline_reports_and_never_times_out(kind):
    """A rank that hangs on the host: the others end with a report that names it."""
    cfg = dataclasses.replace(machine(2), wall_deadline_s=0.4)

    def body(engine, row):
        if engine.rank == 0:
            time.sleep(2)
            return
        error = raised(engine, WallDeadlineError, lambda: engine.wait([(0, GE, 1)], timeout_ps=10**12))
        assert "still running: [0]" in str(error) and "word 0 >= 1" in str(error)

    assert run(cfg, kind, body)[0][1] == 0


def test_a_slow_host_is_not_a_deadline(kind):
    """As long as somebody enters the engine the deadline does not run."""
    cfg = dataclasses.replace(machine(2), wall_deadline_s=0.5)

    def body(engine, row):
        if engine.rank == 0:
            for _ in range(12):
                time.sleep(0.15)
                engine.compute(10)
            engine.put(1, 8, word=0, op=ADD, value=1)
            return
        engine.wait([(0, GE, 1)])

    assert run(cfg, kind, body)[0] == [0, 0]


def test_every_process_maps_the_buffer_elsewhere(kind):
    """Nothing in the buffer is an address: ranks that mapped one file at different places work together."""
    cfg = machine(3)
    size = engine_bytes(cfg, kind)
    fd = os.memfd_create("engine")
    os.ftruncate(fd, size)
    engine_create(mmap.mmap(fd, size), cfg, kind)
    places = mmap.mmap(-1, 8 * cfg.num_ranks)

    def rank_program(rank):
        padding = [mmap.mmap(-1, size) for _ in range(rank)]  # what is free first is taken
        buf = mmap.mmap(fd, size)
        where = np.frombuffer(buf, np.uint8).ctypes.data
        engine = engine_attach(buf, cfg, kind, rank)
        for i in range(20):
            engine.put((rank + 1) % 3, 64, word=0, op=ADD, value=1)
            engine.wait([(0, GE, i + 1)])
            assert engine.exchange(0, np.ones(3, np.int32), 64, 32, 10).counts.tolist() == [1, 1, 1]
        engine.finish()
        np.frombuffer(places, np.int64)[rank] = where
        del padding

    pids = []
    for rank in range(3):
        pid = os.fork()
        if not pid:
            code = 1
            try:
                rank_program(rank)
                code = 0
            finally:
                os._exit(code)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 3
    assert len(set(np.frombuffer(places, np.int64).tolist())) > 1


def kill_while(shared, body, doomed, moment):
    """Fork ranks, kill the doomed one when moment() holds; exit codes."""
    pids = []
    for rank in range(shared.cfg.num_ranks):
        pid = os.fork()
        if not pid:
            code = 1
            try:
                engine = shared.attach(rank)
                body(engine, shared.table[rank])
                engine.finish()
                code = 0
            finally:
                os._exit(code)
        pids.append(pid)
    limit = time.monotonic() + 20
    while not moment() and time.monotonic() < limit:
        time.sleep(0.01)
    os.kill(pids[doomed], signal.SIGKILL)
    os.waitpid(pids[doomed], 0)
    shared.attach(0).mark_dead(doomed)
    return [os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]) for i, p in enumerate(pids) if i != doomed]


@pytest.mark.parametrize("keep_going", [False, True])
def test_a_dead_rank_is_named(kind, keep_going):
    """Killed while it runs: who waits for it is told; the others go on or not."""
    shared = Shared(dataclasses.replace(machine(4), keep_going=keep_going), kind)

    def body(engine, row):
        row[0] = 1
        if engine.rank == 2:
            time.sleep(60)
        if engine.rank == 3 and keep_going:
            engine.put(0, 64, word=1, op=ADD, value=1)
            engine.quiet()
            return
        error = raised(engine, RankLostError, lambda: engine.exchange(0, None, 0, 32))
        assert error.ranks == (2,)

    assert kill_while(shared, body, 2, lambda: shared.table[:, 0].all()) == [0] * 3


def test_a_rank_that_dies_inside_the_engine(kind, monkeypatch):
    """Killed while it holds the lock, its entry half done: everybody ends with a report, nobody hangs."""
    shared = Shared(dataclasses.replace(machine(3), wall_deadline_s=15), kind)

    def body(engine, row):
        row[0] = 1
        if engine.rank == 1:
            engine.set_jitter(1.0, 900_000, 5)  # sleeps inside the lock, long enough to be hit there
            for _ in range(1000):
                engine.compute(5)
                row[1] += 1
        while shared.table[1, 1] < 1:
            time.sleep(0.01)
        while True:
            try:
                engine.observe()
            except RankLostError as error:
                assert 1 in error.ranks
                return
            time.sleep(0.01)

    started = time.monotonic()

    def moment():
        return shared.table[1, 1] >= 2 and time.monotonic() > started + 0.5

    assert kill_while(shared, body, 1, moment) == [0, 0]


def test_abort_reaches_sleepers(kind):
    def body(engine, row):
        if engine.rank == 0:
            time.sleep(0.2)
            engine.abort("the staging file is gone")
            return
        error = raised(engine, InternalError, lambda: engine.wait([(0, GE, 1)]))
        assert "rank 0 ended the run: the staging file is gone" in str(error)

    assert run(machine(3), kind, body)[0] == [0] * 3


def test_log_overflow_is_reported(kind):
    cfg = dataclasses.replace(machine(2), log_entries=4)

    def body(engine, row):
        for i in range(5):
            engine.put(1, 8, LogRef(0, 0, 0, 8, i))
        error = raised(engine, InternalError, engine.quiet)
        assert "apply log of rank 1 is full" in str(error)

    shared = Shared(cfg, kind)
    assert fork_ranks(shared, lambda engine, row: body(engine, row) if engine.rank == 0 else None)[0] == 0


BAD = {
    "rank 9 does not exist": lambda e: e.put(9, 1),
    "charged_bytes is -1": lambda e: e.put(1, -1),
    "word 256 does not exist": lambda e: e.put(1, 1, word=256),
    "op is 7": lambda e: e.put(1, 1, word=0, op=7),
    "ps is -3": lambda e: e.compute(-3),
    "comparison is 7": lambda e: e.wait([(0, 7, 0)]),
    "0 conditions": lambda e: e.wait([]),
    "timeout_ps is -1": lambda e: e.wait([(0, 0, 0)], timeout_ps=-1),
    "channel is 8": lambda e: e.exchange(8, None, 0, 0),
    "counts has shape (3,)": lambda e: e.exchange(0, [1, 2, 3], 0, 0),
    "counts[1] is negative": lambda e: e.exchange(0, [1, -2], 0, 0),
    "no exchange is open": lambda e: e.exchange_wait(0),
    "more than there is": lambda e: e.log_advance(0, 1),
    "does not hold the apply lock": lambda e: e.log_unlock(1),
    "has finished": lambda e: (e.finish(), e.compute(1)),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_arguments(kind, what):
    engine = Shared(machine(2), kind).attach(0)
    with pytest.raises((UsageError, InternalError)) as info:
        BAD[what](engine)
    assert what in str(info.value) and "\n" not in str(info.value)
    assert engine.now_ps == 0


def test_bad_configuration(kind):
    for change in ({"num_ranks": 0}, {"num_ranks": 5000}, {"call_price_ps": 0}, {"dies_per_node": 3}):
        with pytest.raises(UsageError):
            Shared(dataclasses.replace(machine(2), **change), kind)
