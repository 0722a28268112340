"""Random programs of exchanges with sizes of their own per target and among groups, with cross-traffic.

All ranks follow one plan of exchanges: of the whole machine and of groups, on channels that several groups
use at once, ranks in any order; groups are formed anew in between.
"""

import dataclasses
import random

from programs import call, config

from emulator.engine import EngineConfig

CALLS = ("compute", "put", "put_signal", "put_add", "get", "atomic", "wait", "test", "read", "quiet", "flush")
CHANNELS = 4  # 0 and 1 of the whole machine, 2 and 3 of groups
SIZES = (0, 1, 5, 32, 40, 300)


def group_config(seed: int) -> EngineConfig:
    """A small machine, up to 11 ranks, with a channel for every use."""
    rng = random.Random(seed + 17)
    return dataclasses.replace(config(seed), num_ranks=rng.randrange(2, 12), channels=CHANNELS)


def partition(rng: random.Random, n: int) -> list[tuple[int, ...]]:
    """All ranks in disjoint groups: one, a few, singles, neighbours or strided; in any order."""
    ranks = list(range(n))
    style = rng.randrange(4)
    if style == 0:
        rng.shuffle(ranks)
    parts = rng.randrange(1, 4)
    if style == 1:
        groups = [ranks[i::parts] for i in range(parts)]
    else:
        cuts = sorted(rng.randrange(n + 1) for _ in range(parts - 1))
        groups = [ranks[a:b] for a, b in zip([0, *cuts], [*cuts, n], strict=True)]
    return [tuple(group) for group in groups if group]


def plan_of(seed: int, n: int) -> list[tuple]:
    """Steps all ranks take: ("form", channel, groups), or ("exchange", first, second or None) of (channel,
    meta, pull_start, record). Groups are formed anew after an exchange of all: none of theirs is left."""
    rng = random.Random(seed + 2)
    plan: list[tuple] = [("form", channel, partition(rng, n)) for channel in (2, 3)]

    def one(channel):
        return channel, rng.choice((0, 4, 32)), rng.choice((0, 0, 1, 20)), rng.choice((0, 1, 5))

    for _ in range(7):
        if rng.random() < 0.15:
            plan.append(("exchange", one(0), None))
            channel = rng.choice((1, 2, 3))
            whole = [tuple(range(n))]
            plan.append(("form", channel, whole if rng.random() < 0.2 else partition(rng, n)))
        first, second = rng.sample(range(CHANNELS), 2)
        plan.append(("exchange", one(first), one(second) if rng.random() < 0.3 else None))
    return plan


def row_of(rng: random.Random, g: int, meta: int) -> tuple:
    """(counts, row_bytes, meta_bytes, offsets, tag, sizes) for a group of g."""
    counts = offsets = None
    if rng.random() < 0.4:
        counts, offsets = tuple(rng.choice((0, 0, 1, 3)) for _ in range(g)), tuple(range(g))
    style, sizes = rng.randrange(4), None
    if style == 1:
        sizes = tuple(rng.choice(SIZES) for _ in range(g))
    elif style == 2:
        sizes = (rng.choice(SIZES),) * g
    elif style == 3 and rng.random() < 0.5:
        sizes = tuple(300 * (i == rng.randrange(g)) for i in range(g))
    return counts, rng.choice((0, 1, 8)), meta, offsets, rng.randrange(9), sizes


def group_program(seed: int, rank: int, n: int, length: int):
    """The program of one rank; every choice depends on all values and times returned so far."""
    groups = {0: tuple(range(n)), 1: tuple(range(n))}
    state, handles = (seed * 1000003 + rank) & 0xFFFFFFFF, []
    calls = random.Random(seed).sample(CALLS, 4)
    for step in plan_of(seed, n):
        rng, got = random.Random(state), []
        if step[0] == "form":
            groups[step[1]] = next(group for group in step[2] if rank in group)
            yield "open_group", {"channel": step[1], "members": groups[step[1]]}
            continue
        for _ in range(rng.randrange(3)):
            got.append((yield from call(rng, rng.choice(calls), n, False, handles)))
        got.append((yield from exchange(rng, groups, *step[1:])))
        state = hash((state, tuple(got))) & 0xFFFFFFFF


def exchange(rng: random.Random, groups: dict, first: tuple, second: tuple | None):
    """One exchange, or two in flight, or the second slept through after the first."""

    def row(which):
        return row_of(rng, len(groups[which[0]]), which[1])

    def how(which):
        return {"channel": which[0], "pull_start": which[2], "record": which[3]}

    if second is None:
        return (yield "exchange", {**how(first), "row": row(first), "chain": ()})
    if rng.random() < 0.3:
        channel, meta, start, record = second
        chain = ((channel, rng.choice((0, 3, 50)), meta, start, record),)
        got = yield "exchange", {**how(first), "row": row(first), "chain": chain}
        if got[0][0] == 1:
            return got
        return got, (yield "exchange", {**how(second), "row": row(second), "chain": ()})
    yield "exchange_post", {"channel": first[0], "row": row(first)}
    yield "exchange_post", {"channel": second[0], "row": row(second)}
    if rng.random() < 0.5:
        yield "compute", {"ps": rng.choice((0, 5, 100))}
    one = yield "exchange_wait", how(first)
    return one, (yield "exchange_wait", how(second))
