"""Both engines equal the sequential oracle on random programs of posts: values, times, ports, logs."""

import dataclasses
import os
from collections import Counter

import numpy as np
import oracle_poster
import oracle_posts
import pytest
from harness import KINDS, number, port_hash, run, run_oracle
from programs_posts import config, program

from emulator.engine.api import RECORD_DTYPE

COUNT = int(os.environ.get("SUPERPOD_ENGINE_PROGRAMS", "40"))
FIRST = int(os.environ.get("SUPERPOD_ENGINE_FIRST", "0"))
VARIANTS = ({}, {"jitter": 0.2}, {"jitter": 0.1, "one_core": True})
SLOTS, PORTS = 400, 16


def length(seed: int) -> int:
    return (10, 20, 35)[seed % 3]


def expected(seed, cfg):
    """(results, blocked, hashes, apply logs) by the oracle, in the engine's form."""
    programs = [program(seed, r, cfg, length(seed)) for r in range(cfg.num_ranks)]
    logs, blocked, records, applied = run_oracle(cfg, programs)
    hashes = []
    for r in range(cfg.num_ranks if records is not None else 0):
        first = [x for p in range(3) for x in port_hash(records[r, p])]
        further = [x for p in range(3, PORTS) if (r, p) in records for x in (p, *port_hash(records[r, p]))]
        hashes.append((first, further))
    return [[(number(v), t) for v, t in log] for log in logs], blocked, hashes, applied


def mismatch(got, want):
    """(index, [got], [wanted]) where two lists begin to differ."""
    pairs = zip(got, want, strict=False)
    k = next((k for k, (a, b) in enumerate(pairs) if a != b), min(len(got), len(want)))
    return k, got[k : k + 1], want[k : k + 1]


def first_difference(got, want):
    logs, blocked, hashes, _, applied = got
    for r, log in enumerate(want[0]):
        if logs[r] != log:
            k, a, b = mismatch(logs[r], log)
            return f"rank {r}: call {k}: {a}, oracle {b}"
        if blocked[r] != want[1][r]:
            return f"rank {r}: deadlocked {blocked[r]}, oracle {want[1][r]}"
        if want[2] and (hashes[r][:6], hashes[r][8:]) != want[2][r]:
            return f"rank {r}: reservations differ"
        if applied[r] != want[3][r]:
            k, a, b = mismatch(applied[r], want[3][r])
            return f"rank {r}: apply log {k}: {a}, oracle {b}"
    return None


def differences(seed, kinds=("python",), variants=({},), machine=None, **extra):
    """First difference between the oracle and the engines on one program, or None; and the digests."""
    cfg = machine or config(seed)
    want, digests = expected(seed, cfg), []
    for kind in kinds:
        for variant in variants:
            got = run(cfg, kind, lambda r: program(seed, r, cfg, length(seed)), SLOTS, **variant, **extra)
            digests.append(
                got[3] if want[2] else None
            )  # how often a send was retried in vain is nobody's rule
            found = first_difference(got, want)
            if found:
                return f"seed {seed}, {kind} {variant}, {cfg.num_ranks} ranks: {found}", digests
    return None, digests


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.sweep)])
def test_random_posts_in_threads(kind, part):
    """A thread per rank, so that many programs are cheap."""
    for seed in range(FIRST + part, FIRST + COUNT, 2):
        found, _ = differences(seed, (kind,), threads=True)
        assert found is None, found


def test_programs_reach_everything():
    """The random programs are worth something: every kind of record and status, every way an operation
    ends."""
    seen = Counter()

    class Spy(oracle_posts.PostsOracle):
        def drop_in(self, p, t, kind, rank, status, *rest):
            seen["record", kind, status] += 1
            super().drop_in(p, t, kind, rank, status, *rest)

        def reach(self, t, key, o):
            failed = (o.rank, o.stream) in self.failed
            how = "void" if o.void else "dropped" if failed else "held" if self.must_wait(o) else "acts"
            seen[how, o.kind] += 1
            super().reach(t, key, o)

        def retry(self, t, key, o):
            seen["again", o.kind] += 1
            super().retry(t, key, o)

        def pair(self, t, receive, o, late=False):
            seen["match", late, bool(o.pull_bytes), bool(o.log_kind)] += 1
            return super().pair(t, receive, o, late)

    for seed in range(60):
        cfg = config(seed)
        programs = [program(seed, r, cfg, length(seed)) for r in range(cfg.num_ranks)]
        blocked = Spy(cfg, programs).run()[1]
        seen["blocked"] += any(blocked)
    wanted = [("record", oracle_poster.DONE, status) for status in range(6)]
    wanted += [("record", kind, oracle_poster.OK) for kind in range(1, 5)]
    wanted += [("match", late, pull, False) for late in (False, True) for pull in (False, True)]
    wanted += [(how, kind) for how in ("acts", "held", "void", "dropped", "again") for kind in range(4)]
    assert not [what for what in (*wanted, ("match", False, False, True)) if not seen[what]], seen
    assert 3 <= seen["blocked"] <= 30


@pytest.mark.parametrize("kind", KINDS)
def test_nodes_of_sixteen_dies(kind):
    """The real shape of a node, the last one incomplete."""
    for seed in range(3):
        shape = dataclasses.replace(config(seed), num_ranks=19, dies_per_node=16)
        found, _ = differences(seed, (kind,), machine=shape, threads=True)
        assert found is None, found


@pytest.mark.parametrize("kind", KINDS)
def test_trace_of_posts(kind, tmp_path):
    """The trace has every reservation of every port and unit, as the oracle made them."""
    seed, path = 4, tmp_path / "trace"
    cfg = dataclasses.replace(config(seed), trace_records=64)
    programs = [program(seed, r, cfg, length(seed)) for r in range(cfg.num_ranks)]
    expected_records = run_oracle(cfg, programs)[2]
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    run(cfg, kind, lambda r: program(seed, r, cfg, length(seed)), SLOTS, threads=True, trace=fd)
    rows = np.fromfile(path, RECORD_DTYPE)
    fields = ("time_ps", "key", "start_ps", "end_ps", "nbytes")
    found = {}
    for row in rows:
        record = (*(int(row[name]) for name in fields), int(row["kind"] + 8 * (row["peer"] + 1)))
        found.setdefault((int(row["rank"]), int(row["port"])), []).append(record)
    assert found == {name: records for name, records in expected_records.items() if records}
    assert {port for _, port in found} > {0, 1, 2, 3}


@pytest.mark.multirank
@pytest.mark.parametrize("part", [0, 1, *(pytest.param(part, marks=pytest.mark.sweep) for part in (2, 3))])
def test_random_posts(part):
    """A process per rank, disturbed by the host, in both engines: equal digests too."""
    for seed in range(FIRST + part, FIRST + COUNT // 2, 4):
        found, digests = differences(seed, KINDS, VARIANTS)
        assert found is None, found
        assert all(d == digests[0] for d in digests), f"seed {seed}: digests differ between runs or engines"
