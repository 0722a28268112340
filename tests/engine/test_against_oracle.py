"""Both engines equal the sequential oracle on random programs: values, times, deadlocks, reservations."""

import dataclasses
import os
import random

import pytest
from harness import KINDS, number, port_hash, run
from oracle import Oracle
from programs import config, program

COUNT = int(os.environ.get("SUPERPOD_ENGINE_PROGRAMS", "32"))
FIRST = int(os.environ.get("SUPERPOD_ENGINE_FIRST", "0"))
VARIANTS = ({}, {"jitter": 0.2}, {"jitter": 0.1, "one_core": True})
SLOTS = 400


def differences(seed, kinds=("python",), variants=({},), module=None, machine=None, program=program, **extra):
    """First difference between the oracle and the engines on one program, or None; and the digests."""
    cfg = machine or config(seed)
    n, length = cfg.num_ranks, (12, 20, 30)[seed % 3]
    logs, blocked, records = Oracle(cfg, [program(seed, r, n, length) for r in range(n)]).run()
    want = [[(number(v), t) for v, t in log] for log in logs]
    ports = [[x for p in range(3) for x in port_hash(records[r, p])] for r in range(n)]
    digests = []
    for kind in kinds:
        for variant in variants:
            got = run(
                cfg, kind, lambda r: program(seed, r, n, length), SLOTS, module=module, **variant, **extra
            )
            digests.append(got[3])
            for r in range(n):
                where = f"seed {seed}, {kind} {variant}, rank {r} of {n}"
                if got[0][r] != want[r]:
                    k = next(
                        (k for k, (a, b) in enumerate(zip(got[0][r], want[r], strict=False)) if a != b), "end"
                    )
                    return f"{where}: call {k}: {got[0][r][k:][:1] if k != 'end' else len(got[0][r])}, " + (
                        f"oracle {logs[r][k]}" if k != "end" else f"oracle {len(want[r])} calls"
                    ), digests
                if got[1][r] != blocked[r]:
                    return f"{where}: deadlocked {got[1][r]}, oracle {blocked[r]}", digests
                if got[2][r][:6] != ports[r]:
                    return f"{where}: reservations differ", digests
    return None, digests


SAMPLE = min(COUNT, 6)


@pytest.mark.multirank
@pytest.mark.parametrize(
    "seeds",
    [
        range(FIRST, FIRST + SAMPLE),
        *(
            pytest.param(range(FIRST + k, FIRST + COUNT, 4), marks=pytest.mark.sweep)
            for k in range(SAMPLE, SAMPLE + 4)
        ),
    ],
    ids=str,
)
def test_random_programs(seeds):
    for seed in seeds:
        difference, digests = differences(seed, KINDS, VARIANTS)
        assert difference is None, difference
        assert all(d == digests[0] for d in digests), f"seed {seed}: digests differ between runs or engines"


@pytest.mark.multirank
@pytest.mark.parametrize("num_ranks", [19, pytest.param(40, marks=pytest.mark.sweep)])
def test_nodes_of_sixteen_dies(num_ranks):
    """The real shape of a node, the last one incomplete; every second call is an exchange."""
    seed = next(s for s in range(1000) if random.Random(s).choice((0, 0, 1, 2, 5)) == 2 and s % 3 == 0)
    shape = dataclasses.replace(config(seed), num_ranks=num_ranks, dies_per_node=16)
    difference, digests = differences(seed, KINDS, ({}, {"jitter": 0.05}), machine=shape)
    assert difference is None, difference
    assert all(d == digests[0] for d in digests)


def test_programs_reach_everything():
    """The random programs are worth something: they deadlock, use every call and every class."""
    calls, classes, deadlocks, chained = set(), set(), 0, 0
    for seed in range(48):
        cfg = config(seed)
        n = cfg.num_ranks

        def spied(r, n=n, seed=seed):
            steps, sent = program(seed, r, n, (12, 20, 30)[seed % 3]), None
            while True:
                try:
                    call, args = steps.send(sent)
                except StopIteration:
                    return
                calls.add(call)
                sent = yield call, args

        oracle = Oracle(cfg, [spied(r) for r in range(n)])
        logs, blocked, records = oracle.run()
        deadlocks += any(blocked)
        chained += sum(v[0] > 0 for log in logs for v, _ in log if isinstance(v, tuple))
        classes |= {oracle.kind(r, record[5] // 8 - 1) for (r, _), some in records.items() for record in some}
    assert {
        "put",
        "get",
        "atomic",
        "wait",
        "test",
        "exchange",
        "exchange_post",
        "exchange_wait",
        "quiet",
    } <= calls
    assert classes == {0, 1, 2, 3}
    assert 3 <= deadlocks <= 40 and chained > 10
