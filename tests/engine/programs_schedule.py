"""Random programs of schedules: of one rank alone, with time-outs, and common ones that always come through.

As in `programs`, every choice depends on all values and times returned so far. Words 0 to 3 are anybody's,
4 and 5 count in common schedules only. A program yields ("schedule", {"steps", "sends", "step", "timeout"})
beside the calls of `programs`, and is sent (number of steps carried out, time). `expand` gives the program
that does the same by its loop.
"""

import dataclasses
import random

import programs_posts
from programs import call

CALLS = ["compute", "put_signal", "put_add", "get", "atomic", "wait", "wait_any", "test", "read"]
CALLS += ["quiet", "observe"]
RING, GOSSIP = 4, 5


def config(seed: int):
    """A small machine; room for whole schedules, for a few steps of one, or for none."""
    room = random.Random(seed).choice((65536, 65536, 256, 128, 0))
    return dataclasses.replace(programs_posts.config(seed), schedule_bytes=room, num_ranks=2 + seed % 5)


def program(seed: int, rank: int, cfg, length: int):
    """The program of one rank."""
    base = random.Random(seed)
    every, weights = base.choice((2, 3, 4)), [base.choice((0, 1, 3)) for _ in CALLS]
    weights[0] += 1
    sloppy = base.random() < 0.15
    state, handles, counts = (seed * 1000003 + rank) & 0xFFFFFFFF, [], [0, 0]
    for i in range(length):
        rng = random.Random(state)
        if i % every == every - 1:
            kind = random.Random(seed * 64 + i).choice((ring, gossip))
            got = yield "schedule", kind(rng, rank, cfg, counts)
        elif rng.random() < 0.5:
            got = yield "schedule", alone(rng, cfg, sloppy)
        else:
            got = yield from call(rng, rng.choices(CALLS, weights)[0], cfg.num_ranks, sloppy, handles)
        state = hash((state, got, i)) & 0xFFFFFFFF


def send(rng: random.Random, cfg, peer: int, word: int, op: int, value: int) -> dict:
    return {
        "nbytes": rng.choice((0, 1, 9, 40)), "value": value, "start_ps": rng.choice((0, 0, 0, 7)),
        "peer": peer, "word": word, "op": op, "plane": rng.randrange(1 + len(cfg.planes)),
    }  # fmt: skip


def schedule(steps, sends, rng: random.Random, timeout=None) -> dict:
    """steps: (compute, word, cmp, value, puts of the step)."""
    first = 0
    rows = []
    for compute, word, cmp, value, count in steps:
        wait = {"word": word, "cmp": cmp, "value": value}
        rows.append({"compute_ps": compute, "first": first, "count": count, **wait})
        first += count
    return {"steps": tuple(rows), "sends": tuple(sends), "step": rng.choice((0, 0, 4)), "timeout": timeout}


def alone(rng: random.Random, cfg, sloppy: bool) -> dict:
    """Anything: waits that hold already, that others end, that nobody ends (with a time-out); no wait."""
    steps, sends = [], []
    for _ in range(rng.choice((0, 1, 2, 4, 8))):
        count = rng.choice((0, 0, 1, 2))
        for _ in range(count):
            peer, word = rng.randrange(cfg.num_ranks), rng.randrange(4)
            sends.append(send(rng, cfg, peer, word, rng.randrange(3), rng.randrange(1, 4)))
        word = rng.choice((-1, rng.randrange(4), rng.randrange(4)))
        steps.append((rng.choice((0, 0, 2, 60)), word, rng.choice((0, 1, 3, 3, 4)), rng.randrange(3), count))
    timeout = None if sloppy and rng.random() < 0.3 else rng.choice((0, 1, 3, 8, 60, 400, 3000))
    return schedule(steps, sends, rng, timeout)


def ring(rng: random.Random, rank: int, cfg, counts: list) -> dict:
    """Twice around: each step sends to the next rank and waits for the one before."""
    n = cfg.num_ranks
    steps, sends = [], []
    for k in range(2 * (n - 1)):
        sends.append(send(rng, cfg, (rank + 1) % n, RING, 2, 1))
        steps.append((rng.choice((0, 3, 80)), RING, 3, counts[0] + k + 1, 1))
    counts[0] += 2 * (n - 1)
    return schedule(steps, sends, rng)


def gossip(rng: random.Random, rank: int, cfg, counts: list) -> dict:
    """Dissemination: in step k to rank + 2^k; sometimes with puts after the last wait."""
    n, k, steps, sends = cfg.num_ranks, 1, [], []
    while k < n:
        sends.append(send(rng, cfg, (rank + k) % n, GOSSIP, 2, 1))
        counts[1] += 1
        steps.append((0, GOSSIP, 3, counts[1], 1))
        k *= 2
    if rng.random() < 0.3:
        sends.append(send(rng, cfg, rng.randrange(n), 0, 2, 1))
        steps.append((rng.choice((0, 5)), -1, 0, 0, 1))
    return schedule(steps, sends, rng)


# ---- by the loop


def expand(program, cfg, sink: list):
    """The same program without schedules; `sink` gets what its own calls returned: (value, time)."""
    sent, now = None, 0
    while True:
        try:
            call, args = program.send(sent)
        except StopIteration:
            return
        sent = yield from looped(args, now, cfg.call_price_ps) if call == "schedule" else once(call, args)
        sink.append(sent)
        now = sent[1]


def once(call, args):
    return (yield call, args)


def looped(args: dict, now: int, price: int):
    """The loop a schedule stands for."""
    deadline = None if args["timeout"] is None else now + args["timeout"]
    for i, step in enumerate(args["steps"]):
        if step["compute_ps"] > 0:
            _, now = yield "compute", {"ps": step["compute_ps"]}
        if step["count"]:
            puts = args["sends"][step["first"] : step["first"] + step["count"]]
            _, now = yield "post", {"posts": puts, "step": args["step"]}
        if step["word"] >= 0:
            timeout = None if deadline is None else max(0, deadline - now - price)
            condition = step["word"], step["cmp"], step["value"]
            got, now = yield "wait", {"conditions": (condition,), "any_": False, "timeout": timeout}
            if got == -1:
                return i, now
    return len(args["steps"]), now
