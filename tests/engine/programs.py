"""Random programs whose every choice depends on all values and times returned so far: one picosecond off,
and the rest of the program differs. A program yields (call, arguments) and is sent (value, time)."""

import random

from emulator.engine import EngineConfig

CALLS = ["compute", "put", "put_signal", "put_add", "get", "atomic", "wait", "wait_any", "test"] + [
    "read",
    "observe",
    "quiet",
    "wait_get",
    "fence",
    "flush",
]
WORDS = 4
LATENCIES = ((0,), (0, 0, 1, 3), (5, 9, 30), (0, 40), (200, 700))
BANDWIDTHS = (10**12, 3 * 10**11, 10**15, 7 * 10**11)


def config(seed: int) -> EngineConfig:
    """A small machine with all link classes; latencies and bandwidths per class, equal ones included."""
    rng = random.Random(seed)
    values = rng.choice(LATENCIES)

    def four(choices):
        return tuple(rng.choice(choices) for _ in range(4))

    return EngineConfig(
        num_ranks=rng.randrange(2, 9),
        dies_per_chip=2,
        dies_per_node=4,
        put_latency_ps=four(values),
        request_latency_ps=four(values),
        response_latency_ps=four(values),
        ack_latency_ps=four(values),
        write_bytes_per_s=four(BANDWIDTHS),
        read_bytes_per_s=four(BANDWIDTHS),
        call_price_ps=rng.choice((1, 1, 3)),
        poll_price_ps=7,
        poll_max_polls=10,
        words_per_rank=WORDS,
        channels=2,
        chain_steps=8,
        log_entries=8,
        lookahead=rng.random() < 0.8,
        wall_deadline_s=60,
    )


def timetable(seed: int, length: int) -> list[tuple[int, int, int, int]]:
    """The exchanges all ranks take part in, in order: (channel, meta_bytes, pull_start, record)."""
    rng = random.Random(seed + 1)
    meta = rng.choice((0, 1, 4, 32))
    mixed = rng.random() < 0.2
    return [
        (
            rng.randrange(2),
            rng.choice((0, 4, 32)) if mixed else meta,
            rng.choice((0, 0, 1, 20)),
            rng.choice((0, 1, 5)),
        )
        for _ in range(length)
    ]


def rows(rng: random.Random, n: int, meta: int):
    """(counts, row_bytes, meta_bytes, offsets, tag, None): nothing, sparse, one-hot or dense."""
    style = rng.randrange(5)
    if style == 0:
        return None, 0, meta, None, rng.randrange(9), None
    counts = [0] * n
    if style == 1:
        counts[rng.randrange(n)] = rng.randrange(1, 5)
    elif style == 2:
        counts = [rng.choice((0, 0, 1)) for _ in range(n)]
    elif style == 3:
        counts = [1 + rng.randrange(2) for _ in range(n)]
    return tuple(counts), rng.choice((0, 1, 8)), meta, tuple(range(n)), rng.randrange(9), None


def program(seed: int, rank: int, n: int, length: int):
    """The program of one rank."""
    base = random.Random(seed)
    every = base.choice((0, 0, 1, 2, 5))
    plan = timetable(seed, 3 * length)
    weights = [base.choice((0, 1, 3)) for _ in CALLS]
    weights[0] += not sum(weights)
    sloppy = base.random() < 0.15
    exits = 0.005 if every else 0.03
    state, k, handles = (seed * 1000003 + rank) & 0xFFFFFFFF, 0, []
    for i in range(length):
        rng = random.Random(state)
        got = None
        if every and i % every == every - 1:
            got, k = yield from exchange(rng, n, plan, k)
        elif rng.random() < exits:
            return
        else:
            got = yield from call(rng, rng.choices(CALLS, weights)[0], n, sloppy, handles)
        state = hash((state, got, i)) & 0xFFFFFFFF
    # every rank serves the whole timetable as far as the others may get
    while every and k < length // every:
        got, k = yield from exchange(random.Random(state), n, plan, k)
        state = hash((state, got, k)) & 0xFFFFFFFF


def exchange(rng: random.Random, n: int, plan, k: int):
    """The next exchange of the timetable: alone, asleep through several, or two in flight."""
    channel, meta, start, record = plan[k]
    style = rng.randrange(6)
    if style == 0:
        chain = tuple(
            (c, rng.choice((0, 3, 50)), m, s, r) for c, m, s, r in plan[k + 1 : k + rng.randrange(2, 5)]
        )
        row = (None, 0, meta, None, 0, None) if rng.random() < 0.7 else rows(rng, n, meta)
        facts = {"channel": channel, "row": row, "pull_start": start, "record": record, "chain": chain}
        got = yield "exchange", facts
        return got, k + 1 + got[0][0]
    if style == 1 and plan[k + 1][0] != channel:
        other = plan[k + 1]
        yield "exchange_post", {"channel": channel, "row": rows(rng, n, meta)}
        yield "exchange_post", {"channel": other[0], "row": rows(rng, n, other[1])}
        if rng.random() < 0.5:
            yield "compute", {"ps": rng.choice((0, 5, 100))}
        first = yield "exchange_wait", {"channel": channel, "pull_start": start, "record": record}
        second = yield "exchange_wait", {"channel": other[0], "pull_start": other[2], "record": other[3]}
        return (first, second), k + 2
    row = rows(rng, n, meta)
    facts = {"channel": channel, "row": row, "pull_start": start, "record": record, "chain": ()}
    got = yield "exchange", facts
    return got, k + 1


def call(rng: random.Random, name: str, n: int, sloppy: bool, handles: list):
    """One point-to-point call."""
    peer, word, size = rng.randrange(n), rng.randrange(WORDS), rng.choice((0, 1, 2, 9, 40))
    timeout = None if sloppy and rng.random() < 0.3 else rng.choice((0, 1, 2, 3, 8, 60))
    condition = (word, rng.randrange(6), rng.randrange(3))
    if name == "compute":
        return (yield name, {"ps": rng.choice((0, 1, 2, 5, 40, 300))})
    if name.startswith("put"):
        op = {"put": None, "put_signal": 1, "put_add": 2}[name]
        target = None if op is None else word
        facts = {"dst": peer, "nbytes": size, "word": target, "op": op or 1, "value": rng.randrange(1, 4)}
        return (yield "put", facts)
    if name == "get":
        got = yield name, {"src": peer, "nbytes": size}
        handles.append(got[0])
        return got
    if name == "wait_get":
        handle = handles.pop(rng.randrange(len(handles))) if handles else 0
        return (yield name, {"handle": handle})
    if name == "atomic":
        facts = {"dst": peer, "word": word, "op": rng.randrange(3), "value": rng.randrange(4), "compare": 1}
        return (yield name, facts)
    if name in ("wait", "wait_any"):
        other = (rng.randrange(WORDS), rng.randrange(6), rng.randrange(3))
        conditions = (condition, other) if rng.random() < 0.6 else (condition,)
        return (yield "wait", {"conditions": conditions, "any_": name == "wait_any", "timeout": timeout})
    if name == "test":
        return (yield name, {"word": word, "cmp": condition[1], "value": condition[2]})
    if name == "read":
        return (yield name, {"word": word})
    return (yield name, {})
