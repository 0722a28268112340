"""Exchanges with sizes per target and among groups: equal to the oracle, closed forms, refusals, reports."""

import os

import numpy as np
import pytest
from harness import KINDS, Shared, fork_ranks, play
from programs_groups import group_config, group_program
from test_against_oracle import VARIANTS, differences
from test_closed_form import PUT, WRITE, machine, ps

from emulator.errors import DeadlockError, UsageError

COUNT = int(os.environ.get("SUPERPOD_ENGINE_PROGRAMS", "32"))
FIRST = int(os.environ.get("SUPERPOD_ENGINE_FIRST", "0"))
pytestmark = pytest.mark.multirank


SAMPLE = [(FIRST, min(COUNT, 6)), pytest.param((FIRST + 6, COUNT - 6), marks=pytest.mark.sweep)]


@pytest.mark.parametrize("seeds", SAMPLE, ids=lambda seeds: f"{seeds[1]} from {seeds[0]}")
def test_random_programs(seeds):
    """Fails with any rule of `test_broken_groups` in place."""
    for seed in range(seeds[0], seeds[0] + seeds[1]):
        found, digests = differences(seed, KINDS, VARIANTS, machine=group_config(seed), program=group_program)
        assert found is None, found
        assert all(d == digests[0] for d in digests), f"seed {seed}: digests differ between runs or engines"


def exchange(channel, sizes=None, meta=0, counts=None):
    row = counts, 0, meta, None, 0, sizes
    return "exchange", {"channel": channel, "row": row, "pull_start": 0, "record": 0, "chain": ()}


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_by_hand(kind):
    """Record t leaves when those before it, me+1 on, have left, and is cut through to t: the sizes of the
    others do not matter to the first. A record of 0 bytes is one all the same."""
    sizes = {0: (50, 3000, 0, 700), 1: (0,) * 4, 2: (0,) * 4, 3: (0,) * 4}

    def program(rank):
        return (yield exchange(0, sizes[rank]))

    told, _ = play(machine(4), kind, *(program(r) for r in range(4)))
    one, two, three = (ps(sizes[0][t], WRITE[k]) for t, k in ((1, 1), (2, 2), (3, 2)))
    assert told[1][0].value[1] == 1 + max(PUT[1] + one, PUT[2])
    assert told[2][0].value[1] == 1 + max(one + PUT[2], PUT[2])
    assert told[3][0].value[1] == 1 + one + two + PUT[2] + three
    assert told[0][0].value[1] == 1 + max(PUT[2], PUT[0] + ps(50, WRITE[0]))


@pytest.mark.parametrize("kind", KINDS)
def test_group_by_hand(kind):
    """A group goes by its own order, and nobody else takes part: ranks 0, 2 and 5 as (5, 0, 2), and at the
    same time 1 and 3 on the same channel. What each gets is by place."""
    groups = {0: (5, 0, 2), 2: (5, 0, 2), 5: (5, 0, 2), 1: (1, 3), 3: (1, 3)}

    def program(rank):
        if rank == 4:
            return
        group = groups[rank]
        yield "open_group", {"channel": 3, "members": group}
        sizes = tuple(1000 * (rank + 1) + place for place in range(len(group)))
        counts = tuple(10 * rank + place for place in range(len(group)))
        yield exchange(3, sizes, counts=counts)

    told, _ = play(machine(6), kind, *(program(r) for r in range(6)))
    got = {rank: told[rank][1].value for rank in groups}
    assert {rank: value[2] for rank, value in got.items()} == {
        5: (50, 0, 20), 0: (51, 1, 21), 2: (52, 2, 22), 1: (10, 30), 3: (11, 31)
    }  # fmt: skip
    assert got[3][1] == 1 + PUT[2] + ps(2001, WRITE[2])
    # rank 5 sends to 0 first, then to 2; rank 0 to 2, then to 5, both at 1 ps
    at_2 = sorted([1 + ps(6001, WRITE[3]) + PUT[3], 1 + PUT[2]])  # from 5, from 0: node class, at once
    end = at_2[0] + ps(1002, WRITE[2])
    assert got[2][1] == max(end, at_2[1]) + ps(6002, WRITE[3])


@pytest.mark.parametrize("kind", KINDS)
def test_refusals_and_reports(kind):
    """One clear line, before any time passes; and who waits for whom in which exchange of which group."""

    def body(engine, row):
        bad = {
            "members must be a row of ranks": lambda: engine.open_group(2, np.zeros(2)),
            "rank 7 does not exist": lambda: engine.open_group(2, np.array([engine.rank, 7])),
            "rank 0 is there 2 times": lambda: engine.open_group(2, np.array([0, 0, 1, 2, 3])),
            "opens a group it is not of": lambda: engine.open_group(2, np.array([(engine.rank + 1) % 4])),
            "channel is 99": lambda: engine.open_group(99, np.array([engine.rank])),
            "record_bytes must be int64 [4]": lambda: engine.exchange(1, None, 0, 0, record_bytes=[1] * 4),
            "record_bytes[2] is -1": lambda: engine.exchange(
                1, None, 0, 0, record_bytes=np.array([0, 0, -1, 0])
            ),
        }
        for text, call in bad.items():
            with pytest.raises(UsageError) as info:
                call()
            assert text in str(info.value)
        assert engine.now_ps == 0
        if engine.rank < 3:
            engine.open_group(2, np.array([2, 1, 0]))
            engine.exchange(2, None, 0, 32)
        engine.exchange(1, None, 0, 0)
        if engine.rank == 3:
            with pytest.raises(UsageError) as info:
                engine.exchange(2, None, 0, 32)
            assert "the channel is one of groups, and rank 3 opened none there" in str(info.value)
        elif engine.rank:
            with pytest.raises(DeadlockError) as stuck:
                engine.exchange(2, None, 0, 32)
            assert "ranks 1-2 in exchange 2 of channel 2 of 3 ranks since" in str(stuck.value)
            assert "not come: rank 0" in str(stuck.value)
        row[0] = 1

    shared = Shared(machine(4), kind)
    assert fork_ranks(shared, body) == [0] * 4
    assert shared.table[:, 0].tolist() == [1] * 4


@pytest.mark.parametrize("kind", KINDS)
def test_lists_that_differ(kind):
    """Members that name different groups are all told so, and do not hang."""

    def body(engine, row):
        engine.open_group(1, np.array([0, 1, 2] if engine.rank else [0, 2, 1]))
        with pytest.raises(UsageError, match="gave other members for a channel"):
            engine.exchange(1, None, 0, 32)

    assert fork_ranks(Shared(machine(3), kind), body) == [0] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_group_of_one_and_of_all(kind):
    """A group of one waits for nobody; all ranks in order are the whole machine, to the picosecond."""

    def program(rank, channel):
        yield "open_group", {"channel": 1, "members": (rank,)}
        yield exchange(1, (77,))
        yield exchange(2, meta=32)
        yield "open_group", {"channel": 1, "members": tuple(range(5))}
        yield exchange(channel, meta=32)
        yield exchange(channel, (5, 10, 0, 30, 300))

    told, _ = play(machine(5), kind, *(program(r, 1) for r in range(5)))
    never_opened, _ = play(machine(5), kind, *(program(r, 0) for r in range(5)))
    assert told == never_opened
    for log in told:
        assert log[1].value[1] == 1 + PUT[0] + ps(77, WRITE[0])
