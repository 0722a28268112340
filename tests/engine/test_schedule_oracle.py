"""A schedule equals its loop, in both engines: values, times, ports, all digests, whoever else runs which."""

import os
import random
from collections import Counter

import pytest
from harness import KINDS, number, port_hash, run
from oracle_posts import PostsOracle
from programs_schedule import config, expand, program

COUNT = int(os.environ.get("SUPERPOD_ENGINE_PROGRAMS", "40"))
FIRST = int(os.environ.get("SUPERPOD_ENGINE_FIRST", "0"))
SLOTS, PORTS, LENGTH = 60, 16, 14


def expected(seed, cfg):
    """(results, blocked, port hashes) of the loops, by the oracle."""
    sinks = [[] for _ in range(cfg.num_ranks)]
    loops = [expand(program(seed, r, cfg, LENGTH), cfg, sinks[r]) for r in range(cfg.num_ranks)]
    _, blocked, records = PostsOracle(cfg, loops).run()
    hashes = []
    for r in range(cfg.num_ranks):
        first = [x for p in range(3) for x in port_hash(records[r, p])]
        further = [x for p in range(3, PORTS) if (r, p) in records for x in (p, *port_hash(records[r, p]))]
        hashes.append((first, further))
    return [[(number(v), t) for v, t in sink] for sink in sinks], blocked, hashes


def mixed(seed, rank, cfg, loops, how):
    """The program with some of its schedules, or all, done by their loop on the engine."""
    chance, steps, sent = random.Random(seed * 64 + rank + how), program(seed, rank, cfg, LENGTH), None
    while True:
        try:
            call, args = steps.send(sent)
        except StopIteration:
            return
        if call == "schedule" and chance.random() < loops:
            call = "schedule_by_loop"
        sent = yield call, args


def differences(seed, kinds=("python",), loops=(0.0, 0.5, 1.0), **extra):
    """First difference between the oracle and an engine on one program, or None; and the digests."""
    cfg = config(seed)
    want, digests = expected(seed, cfg), []
    for kind in kinds:
        for how, share in enumerate(loops):
            got = run(cfg, kind, lambda r, s=share, h=how: mixed(seed, r, cfg, s, h), SLOTS, **extra)
            digests.append(got[3])
            for r in range(cfg.num_ranks):
                where = f"seed {seed}, {kind}, {share:.0%} loops, rank {r} of {cfg.num_ranks}"
                pairs = enumerate(zip(got[0][r], want[0][r], strict=False))
                k = next((k for k, (a, b) in pairs if a != b), min(len(got[0][r]), len(want[0][r])))
                if got[0][r] != want[0][r]:
                    return f"{where}: call {k}: {got[0][r][k : k + 1]}, {want[0][r][k : k + 1]}", digests
                if got[1][r] != want[1][r]:
                    return f"{where}: deadlocked {got[1][r]}, oracle {want[1][r]}", digests
                if (got[2][r][:6], got[2][r][8:]) != want[2][r]:
                    return f"{where}: reservations differ", digests
    return None, digests


@pytest.mark.parametrize("kind", KINDS)
def test_random_schedules_in_threads(kind):
    """A thread per rank, so that many programs are cheap."""
    for seed in range(FIRST, FIRST + COUNT):
        found, digests = differences(seed, (kind,), threads=True)
        assert found is None, found
        assert all(d == digests[0] for d in digests), f"seed {seed}: digests differ between loop and schedule"


@pytest.mark.multirank
def test_random_schedules():
    """A process per rank, disturbed by the host, in both engines: equal digests too."""
    for seed in range(FIRST, FIRST + COUNT // 6):
        found, digests = differences(seed, KINDS, (0.0, 0.5), jitter=0.2)
        assert found is None, found
        assert all(d == digests[0] for d in digests), f"seed {seed}: digests differ between engines"


def test_programs_reach_everything():
    """The random programs are worth something: time-outs, deadlocks, waits that end at once and later."""
    seen = Counter()
    for seed in range(COUNT):
        cfg = config(seed)
        sinks = [[] for _ in range(cfg.num_ranks)]

        def spied(r, cfg=cfg, seed=seed):
            steps, sent = program(seed, r, cfg, LENGTH), None
            while True:
                try:
                    call, args = steps.send(sent)
                except StopIteration:
                    return
                sent = yield call, args
                if call == "schedule":
                    whole = sent[0] == len(args["steps"])
                    seen["whole" if whole else "timed out", args["timeout"] is None] += 1
                    seen["tail"] += bool(args["steps"] and args["steps"][-1]["word"] < 0)

        loops = [expand(spied(r), cfg, sinks[r]) for r in range(cfg.num_ranks)]
        seen["deadlock"] += any(PostsOracle(cfg, loops).run()[1])
        seen["room", cfg.schedule_bytes] += 1
    wanted = [("whole", True), ("whole", False), ("timed out", False), "tail"]
    assert all(seen[what] > 20 for what in wanted), seen
    assert seen["deadlock"] > 2 and min(seen["room", x] for x in (65536, 256, 128, 0)) > 2, seen
