"""Apply logs hold puts and snapshots in key order; the trace holds every reservation."""

import dataclasses
import os
import tempfile

import numpy as np
import pytest
from harness import KINDS, Shared, fork_ranks, port_hash
from test_closed_form import PUT, REQUEST, WRITE, machine, ps

from emulator.engine import ADD, GE, LogRef
from emulator.engine.api import LOG_PUT, LOG_SNAPSHOT, RECORD_DTYPE

pytestmark = [pytest.mark.multirank, pytest.mark.parametrize("kind", KINDS)]


def test_entries_in_key_order(kind):
    """Two puts and a get's snapshot between them, as the target sees them."""

    def body(engine, row):
        if engine.rank == 0:
            engine.put(4, 512, LogRef(1, 100, 200, 512, 7))
            engine.compute(20_000)
            engine.put(4, 256, LogRef(1, 1_000, 300, 256, 8), word=0, op=ADD, value=1)
        elif engine.rank == 1:
            engine.compute(10_000)
            engine.wait_get(engine.get(4, 64, LogRef(2, 0, 200, 64, 9)))
        elif engine.rank == 4:
            engine.wait([(0, GE, 1)])
            entries = engine.log_view(4)
            assert entries["kind"].tolist() == [LOG_PUT, LOG_SNAPSHOT, LOG_PUT]
            assert entries["op_id"].tolist() == [7, 9, 8]
            assert entries["rank"].tolist() == [0, 1, 0]
            assert entries["file_offset"].tolist() == [100, 0, 1_000]
            assert entries["offset"].tolist() == [200, 200, 300]
            assert entries["nbytes"].tolist() == [512, 64, 256]
            first = 1 + PUT[3] + ps(512, WRITE[3])
            assert entries["time_ps"].tolist() == [first, 10_002 + REQUEST[3], engine.now_ps]
            engine.log_lock(4)
            engine.log_advance(4, 2)
            assert engine.log_view(4)["op_id"].tolist() == [8]
            engine.log_unlock(4)

    assert fork_ranks(Shared(machine(6), kind), body) == [0] * 6


def test_ring_wraps(kind):
    cfg = dataclasses.replace(machine(2), log_entries=4)

    def body(engine, row):
        for i in range(50):
            if engine.rank == 0:
                engine.put(1, 8, LogRef(0, i, 0, 8, i), word=0, op=ADD, value=1)
                engine.wait([(1, GE, i + 1)])
            else:
                engine.wait([(0, GE, i + 1)])
                assert engine.log_view(1)["op_id"].tolist() == [i]
                engine.log_advance(1, 1)
                engine.put(0, 8, word=1, op=ADD, value=1)

    assert fork_ranks(Shared(cfg, kind), body) == [0, 0]


def test_a_killed_holder_of_an_apply_lock(kind):
    shared = Shared(machine(2), kind)
    pid = os.fork()
    if not pid:
        shared.attach(0).log_lock(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    engine = shared.attach(1)
    for _ in range(2):  # the second time it is an ordinary lock again
        engine.log_lock(1)
        assert len(engine.log_view(1)) == 0
        engine.log_unlock(1)


def workload(engine, row):
    rng = np.random.default_rng(engine.rank)
    for i in range(6):
        engine.compute(int(rng.integers(0, 5_000)))
        engine.put((engine.rank + 1) % engine.num_ranks, int(rng.integers(1, 9_000)), word=0, op=ADD, value=1)
        engine.exchange(i % 2, rng.integers(0, 3, engine.num_ranks).astype(np.int32), 100, 32, 7, 3)
        engine.wait_get(engine.get(0, 77))
    row[0] = engine.now_ps


def test_trace_holds_what_the_digest_covers(kind, tmp_path):
    """A small ring drained while running: per port, the records hash to its digest."""
    cfg = dataclasses.replace(machine(5), trace_records=16)
    traced, plain = Shared(cfg, kind), Shared(machine(5), kind)
    path = tmp_path / "records"
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def body(engine, row):
        engine.set_trace(fd)
        workload(engine, row)

    assert fork_ranks(traced, body) == [0] * 5
    assert fork_ranks(plain, workload) == [0] * 5
    viewer, other = traced.attach(0), plain.attach(0)
    viewer.set_trace(fd)
    viewer.drain()
    records = np.fromfile(path, RECORD_DTYPE)
    fields = ("time_ps", "key", "start_ps", "end_ps", "nbytes")
    for rank in range(5):
        hashes = viewer._hashes(rank).tolist()
        for port in range(3):
            mine = records[(records["rank"] == rank) & (records["port"] == port)]
            rows = zip(
                *(mine[f].tolist() for f in fields),
                (mine["kind"] + 8 * (mine["peer"] + 1)).tolist(),
                strict=True,
            )
            assert port_hash(rows) == tuple(hashes[2 * port : 2 * port + 2])
            assert (mine["end_ps"] - mine["start_ps"]).sum() == viewer.statistics().busy_ps[rank, port]
        assert viewer.digest(rank) == other.digest(rank)
    assert len(records) > 150


def test_bytes_are_counted_once(kind):
    shared = Shared(machine(5), kind)
    assert fork_ranks(shared, workload) == [0] * 5
    sent = shared.attach(0).statistics().bytes_by_class
    with tempfile.TemporaryFile() as file:
        again = Shared(dataclasses.replace(machine(5), trace_records=10_000), kind)
        assert fork_ranks(again, workload) == [0] * 5
        viewer = again.attach(0)
        viewer.set_trace(file.fileno())
        viewer.drain()
        file.seek(0)
        records = np.frombuffer(file.read(), RECORD_DTYPE)
    out = records[records["port"] != 1]
    assert sent.sum() == out["nbytes"].sum()
    assert sent[:, 0].sum() == out["nbytes"][out["port"] == 2].sum()


def test_same_digest_under_load_and_jitter(kind):
    digests = []
    for jitter in (0.0, 0.5, 0.5):
        shared = Shared(machine(8), kind)

        def body(engine, row, jitter=jitter):
            if jitter:
                engine.set_jitter(jitter, 300, os.getpid())
            workload(engine, row)

        assert fork_ranks(shared, body) == [0] * 8
        digests.append([shared.attach(0).digest(r) for r in range(8)])
    assert digests[0] == digests[1] == digests[2]
    assert len(set(digests[0])) == 8


def test_a_wait_returns_with_everything_of_its_instant(kind):
    """Two puts land at one picosecond: the lower rank's decides the wait, the other is in the log as well."""

    def body(engine, row):
        if engine.rank >= 4:
            engine.put(0, 0, LogRef(0, 0, 0, 0, engine.rank), word=0, op=ADD, value=1)
        elif engine.rank == 0:
            engine.wait([(0, GE, 1)])
            assert engine.now_ps == 1 + PUT[3]
            assert engine.log_view(0)["op_id"].tolist() == [4, 5, 6, 7]

    assert fork_ranks(Shared(machine(8), kind), body) == [0] * 8
