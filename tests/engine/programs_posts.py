"""Random programs of posts: batches of every kind, guarded, ordered, refused, matched, and what came of them.

As in `programs`, every choice depends on all values and times returned so far. A rank's words: 0 to 3 for
anybody, 4 to 7 its memory region {tag, base, length, access}, 8 its state; the owner changes 4 to 8.
"""

import random

from programs import BANDWIDTHS, LATENCIES, exchange, timetable

from emulator.engine import EngineConfig
from emulator.engine.api import LOG_PUT, LOG_RMW, LOG_SNAPSHOT, PlaneConfig
from emulator.engine.posts import (
    K_CLOSE,
    K_GET,
    K_LOCAL,
    K_PUT,
    K_RECV,
    K_SEND,
    K_WORD,
    ORD_FENCE,
    ORD_STREAM,
    ORD_STRONG,
    ORD_TRACK,
)

CALLS = ["post", "inbox", "compute", "wait", "wait_any", "test", "read", "observe", "quiet", "wait_get"]
CALLS += ["fence", "flush", "put", "get", "atomic", "reopen"]
WORDS, REGION, STATE = 9, 4, 8
KINDS = (K_PUT, K_GET, K_WORD, K_SEND, K_LOCAL, K_RECV, K_CLOSE)
SIZES = (0, 1, 2, 9, 40)


def config(seed: int) -> EngineConfig:
    """A small machine of one to four planes, latencies from nothing to long."""
    rng = random.Random(seed)
    values = rng.choice(LATENCIES)

    def four(choices):
        return tuple(rng.choice(choices) for _ in range(4))

    def plane(values):
        return PlaneConfig(*(four(values) for _ in range(4)), *(four(BANDWIDTHS) for _ in range(2)))

    others = [rng.choice((values, (0, 2), (50, 300))) for _ in range(rng.choice((0, 1, 1, 3)))]
    return EngineConfig(
        num_ranks=rng.randrange(2, 6),
        dies_per_chip=2,
        dies_per_node=4,
        **plane(values)._asdict(),
        planes=tuple(plane(other) for other in others),
        call_price_ps=rng.choice((1, 1, 3)),
        poll_price_ps=7,
        poll_max_polls=10,
        words_per_rank=WORDS,
        channels=2,
        chain_steps=8,
        conditions=4,
        log_entries=1024,
        inbox_entries=1024,
        lookahead=rng.random() < 0.8,
        wall_deadline_s=60,
    )


class Style:
    """What the programs of one seed like to do."""

    def __init__(self, seed: int, cfg: EngineConfig) -> None:
        rng = random.Random(seed)
        self.cfg = cfg
        self.kinds = [rng.choice((0, 1, 1, 4)) for _ in KINDS]
        self.kinds[K_LOCAL], self.kinds[K_CLOSE] = 0.8, 0.15
        self.kinds[rng.choice((K_PUT, K_SEND))] += 2
        if self.kinds[K_SEND]:
            self.kinds[K_RECV] += self.kinds[K_SEND]
        self.ordered, self.streamed, self.guarded, self.shaped, self.matched = (
            rng.choice((0.0, 0.4, 0.9)) for _ in range(5)
        )
        self.calls = [rng.choice((0, 1, 2)) for _ in CALLS]
        self.calls[0], self.calls[1], self.calls[-1] = 10, 2, 0.4 if self.streamed else 0
        self.sloppy = rng.random() < 0.1
        self.mpi = rng.random() < 0.5
        self.every = rng.choice((0, 0, 0, 4, 7))  # which calls are exchanges
        self.exits = 0 if self.every else 0.004


def program(seed: int, rank: int, cfg: EngineConfig, length: int):
    """The program of one rank: yields (call, arguments), is sent (value, time)."""
    style = Style(seed, cfg)
    state = (seed * 1000003 + rank) & 0xFFFFFFFF
    memory = Memory(rank)
    opening = zip(range(REGION, STATE + 1), (7, 100, 50, 3, 1 + 64 * (seed % 3)), strict=True)
    got = yield "post", {"posts": tuple(local(word, value) for word, value in opening), "step": 0}
    plan, k = timetable(seed, 3 * length), 0
    for i in range(length):
        state = hash((state, got, i)) & 0xFFFFFFFF
        rng = random.Random(state)
        if style.every and i % style.every == style.every - 1:
            got, k = yield from exchange(rng, cfg.num_ranks, plan, k)
        elif rng.random() < style.exits:
            return
        else:
            got = yield from call(rng, style, memory, rng.choices(CALLS, style.calls)[0])
    while style.every and k < length // style.every:  # every rank serves the whole timetable
        got, k = yield from exchange(random.Random(k), cfg.num_ranks, plan, k)
    yield "quiet", {}
    yield "inbox", {}


class Memory:
    """What a rank remembers: its generation of streams towards each peer, handles, its last number."""

    def __init__(self, rank: int) -> None:
        self.rank, self.handles, self.seq, self.receives = rank, [], 1, []
        self.generation: dict[int, int] = {}

    def stream(self, peer: int) -> int:
        return 1 + peer + 16 * self.generation.get(peer, 0)


def local(word: int, value: int) -> dict:
    return {"kind": K_LOCAL, "op": 1, "word": word, "value": value}


def call(rng: random.Random, style: Style, memory: Memory, name: str):
    n = style.cfg.num_ranks
    if name == "post":
        count = rng.choice((1, 1, 2, 3, 6))
        posts = tuple(post(rng, style, memory) for _ in range(count))
        got = yield name, {"posts": posts, "step": rng.choice((0, 0, 4))}
        for i, x in enumerate(posts):
            if x["kind"] in (K_GET, K_WORD):
                memory.handles.append(got[0] + i)
            elif x["kind"] == K_RECV:
                memory.receives.append(got[0] + i)
        memory.seq = got[0] + count
        return got
    if name == "reopen":
        return (yield from reopen(rng, memory, rng.randrange(n)))
    return (yield from plain_call(rng, style, memory, name))


def reopen(rng: random.Random, memory: Memory, peer: int):
    """End a stream with whatever is under way, forget it, and go on with a new number."""
    close = {"kind": K_CLOSE, "stream": memory.stream(peer), "done": rng.choice((0, 1)), "peer": memory.rank}
    yield "post", {"posts": (close,), "step": 0}
    got = yield "quiet", {}
    yield "retire", {"stream": memory.stream(peer)}
    memory.generation[peer] = memory.generation.get(peer, 0) + 1
    return got


def plain_call(rng: random.Random, style: Style, memory: Memory, name: str):
    """A call that is no post."""
    peer, word = rng.randrange(style.cfg.num_ranks), rng.randrange(4)
    timeout = None if style.sloppy and rng.random() < 0.3 else rng.choice((0, 1, 3, 8, 60, 200))
    watched = rng.choice((word, word, WORDS))
    condition = (watched, rng.choice((0, 1, 2, 3)), rng.randrange(6))
    if name == "compute":
        return (yield name, {"ps": rng.choice((0, 1, 2, 5, 40, 300))})
    if name in ("wait", "wait_any"):
        other = (rng.choice((word, WORDS)), rng.randrange(6), rng.randrange(3))
        conditions = (condition, other) if rng.random() < 0.5 else (condition,)
        return (yield "wait", {"conditions": conditions, "any_": name == "wait_any", "timeout": timeout})
    if name == "test":
        return (yield name, {"word": watched, "cmp": condition[1], "value": condition[2]})
    if name == "read":
        return (yield name, {"word": rng.choice((watched, STATE))})
    if name == "wait_get":
        handles = memory.handles
        return (yield name, {"handle": handles.pop(rng.randrange(len(handles))) if handles else 0})
    size = rng.choice(SIZES)
    if name == "put":
        return (yield name, {"dst": peer, "nbytes": size, "word": word, "op": rng.choice((1, 2)), "value": 1})
    if name == "get":
        got = yield name, {"src": peer, "nbytes": size}
        memory.handles.append(got[0])
        return got
    if name == "atomic":
        facts = {"dst": peer, "word": word, "op": rng.randrange(3), "value": rng.randrange(4), "compare": 1}
        return (yield name, facts)
    return (yield name, {})


def post(rng: random.Random, style: Style, memory: Memory) -> dict:
    """One row."""
    kind = rng.choices(KINDS, style.kinds)[0]
    facts = {"kind": kind, "user_a": rng.randrange(1 << 20), "user_b": rng.randrange(1 << 20)}
    if rng.random() < style.shaped:
        facts["start_ps"] = rng.choice((0, 3, 60))
    if kind == K_LOCAL:
        return facts | change(rng, memory.rank)
    if kind in (K_RECV, K_CLOSE):
        return facts | {"peer": memory.rank} | (receive if kind == K_RECV else close)(rng, style, memory)
    facts |= {
        "peer": rng.randrange(min(3, style.cfg.num_ranks)),
        "plane": rng.randrange(1 + len(style.cfg.planes)),
    }
    facts |= {"nbytes": 8 if kind == K_WORD else rng.choice(SIZES), "done": rng.choice((0, 1, 1, 2))}
    for add, wanted in (
        (shape, style.shaped),
        (order, style.ordered),
        (stream, style.streamed),
        (guards, style.guarded),
    ):
        if rng.random() < wanted:
            add(rng, memory, facts)
    if kind == K_WORD:
        facts |= {"op": rng.randrange(6), "word": rng.randrange(4), "value": rng.randrange(5), "compare": 1}
    elif kind == K_GET:
        facts |= logged(rng, (0, LOG_SNAPSHOT, LOG_RMW, LOG_RMW + 24))
    else:
        facts |= {"op": rng.choice((0, 1, 2)), "word": rng.randrange(4), "value": rng.randrange(1, 4)}
        facts |= logged(rng, (0, 0, LOG_PUT)) | {"done": rng.choice((facts["done"], facts["done"], 3))}
        if kind == K_SEND:
            facts |= send(rng, style, facts["done"])
    if rng.random() < 0.3:
        facts["note"] = rng.randrange(4)
    return facts


def change(rng: random.Random, rank: int) -> dict:
    """A change of my own region or state, or of a common word."""
    word, value = rng.choice(
        (
            (REGION, rng.choice((7, 7, 8))),
            (REGION + 1, rng.choice((95, 100, 110))),
            (REGION + 3, rng.choice((1, 3, 3))),
            (STATE, rng.choice((0, 1, 1, 2)) + 64 * rng.choice((0, 9))),
            (STATE, rng.choice((1, 2))),
            (rng.randrange(4), rng.randrange(3)),
        )
    )
    facts = {"op": rng.choice((0, 1, 1, 1)), "word": word, "value": value}
    return facts | {"peer": rank, "done": rng.choice((0, 1))}


def shape(rng: random.Random, memory: Memory, facts: dict) -> None:
    """How long it takes where."""
    facts |= {"tail_ps": rng.choice((0, 0, 3, 80)), "done_ps": rng.choice((0, 0, 11))}
    if rng.random() < 0.5:
        facts |= {"unit": rng.randrange(4), "unit_ps": rng.choice((0, 5, 70))}


def order(rng: random.Random, memory: Memory, facts: dict) -> None:
    """What it must wait for."""
    bits = rng.choice((ORD_TRACK, ORD_TRACK | ORD_STRONG, ORD_STRONG, ORD_FENCE, ORD_FENCE | ORD_STRONG))
    facts["order"] = facts.get("order", 0) | bits
    if bits & ORD_FENCE:
        facts["fence"] = max(1, memory.seq - rng.choice((0, 0, 1, 4)))
    if rng.random() < 0.3:
        facts["rd_below"] = rng.choice((1, 1, 2))


def stream(rng: random.Random, memory: Memory, facts: dict) -> None:
    facts["stream"] = memory.stream(facts["peer"])
    if rng.random() < 0.8:
        facts["order"] = facts.get("order", 0) | ORD_STREAM


def guards(rng: random.Random, memory: Memory, facts: dict) -> None:
    """What the target must allow."""
    if rng.random() < 0.6:
        facts |= {"region_word": REGION, "region_tag": 7, "region_need": rng.choice((0, 1, 1, 2))}
        facts |= {"region_offset": rng.choice((100, 110, 120, 145)), "region_bytes": rng.choice((0, 5, 6))}
    if rng.random() < 0.6:
        facts |= {"state_word": STATE, "state_mask": rng.choice((-1, 0b0010, 0b0110, 0b0101, 0b0100))}
        facts |= {"deny_mask": rng.choice((0, 0b0001, 0b0100)), "lost_retries": rng.randrange(3)}
        facts["lost_ps"] = rng.choice((1, 30, 100))


def logged(rng: random.Random, kinds: tuple) -> dict:
    size = rng.choice((0, 8, 24))
    facts = {"log_kind": rng.choice(kinds), "op_id": rng.randrange(1 << 16), "real_bytes": size}
    facts |= {"file_id": rng.randrange(4), "file_offset": 64 * rng.randrange(4)}
    return facts | {"offset": size, "log_a": 5}


def send(rng: random.Random, style: Style, done: int) -> dict:
    """To a queue that refuses when empty, or to one that keeps what is not expected."""
    facts = {"context": rng.randrange(1, 3) + (1 << 33), "tag": rng.randrange(3)}
    keeps = rng.random() < (0.9 if style.mpi else 0.1)
    facts |= {
        "rnr_retries": -1 if keeps else rng.choice((0, 1, 2, 4, 4, rng.choice((4, 7)))),
        "rnr_ps": rng.choice((1, 5, 90)),
    }
    if done != 3 and rng.random() < style.matched / 2:
        facts["pull_bytes"] = rng.choice((1, 60))
    return facts


def receive(rng: random.Random, style: Style, memory: Memory) -> dict:
    source = rng.choice((-1, rng.randrange(style.cfg.num_ranks)))
    facts = {"context": rng.randrange(1, 3) + (1 << 33), "tag": rng.randrange(3)}
    facts |= {"mask": rng.choice((0, 1, -1)), "source": source}
    return facts | {"capacity": rng.choice((1 << 62, 1 << 62, 5))}


def close(rng: random.Random, style: Style, memory: Memory) -> dict:
    """A queue, a stream, one receive."""
    facts = {"done": rng.choice((0, 1, 1))}
    how = rng.randrange(3)
    if how == 0 or not memory.receives:
        return facts | {"stream": memory.stream(rng.randrange(style.cfg.num_ranks))}
    facts["context"] = rng.randrange(1, 3) + (1 << 33)
    if how == 1:
        facts["compare"] = rng.choice(memory.receives)
    return facts
