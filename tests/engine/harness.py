"""Run programs on a real engine: one forked process per rank over an anonymous shared mapping."""

import mmap
import os
import random
import threading
import traceback
from functools import partial
from typing import NamedTuple

import numpy as np
from oracle_posts import PostsOracle

from emulator.engine import (
    TIMEOUT,
    ChainStep,
    Engine,
    EngineConfig,
    ExchangeResult,
    core_available,
    engine_attach,
    engine_bytes,
    engine_create,
)
from emulator.engine.posts import Posts, new_posts
from emulator.engine.schedules import Step, new_sends, new_steps, posts_of
from emulator.errors import DeadlockError, InternalError

KINDS = ["python"] + ["c"] * core_available()
MASK = (1 << 62) - 1


def number(value) -> int:
    """A value as one 62-bit number, the same in the oracle and here."""
    if isinstance(value, ExchangeResult):
        rows = (value.counts, value.offsets, value.tags)
        value = value.index, value.records_ps, *(tuple(x.tolist()) for x in rows)
    return hash(value) & MASK if isinstance(value, tuple) else int(value)


def plain(value):
    """What a program is sent: no arrays."""
    if type(value) is tuple:
        return value
    if isinstance(value, ExchangeResult):
        rows = (value.counts, value.offsets, value.tags)
        return value.index, value.records_ps, *(tuple(x.tolist()) for x in rows)
    return int(value) if value is not None else 0


def row_arguments(row) -> dict:
    counts, row_bytes, meta, offsets, tag, sizes = row
    return {
        "record_bytes": None if sizes is None else np.array(sizes, dtype=np.int64),
        "counts": None if counts is None else np.array(counts, dtype=np.int32),
        "row_bytes": row_bytes,
        "meta_bytes": meta,
        "offsets": None if offsets is None else np.array(offsets, dtype=np.int32),
        "tag": tag,
    }


def as_posts(rows) -> Posts:
    """Rows of a program as the engine wants them."""
    posts = new_posts(len(rows))
    for i, row in enumerate(rows):
        for name, value in row.items():
            posts[i][name] = value
    return posts


def rows_of(make, rows):
    """Rows of fields as the array that `make` makes."""
    array = make(len(rows))
    for i, row in enumerate(rows):
        for name, value in row.items():
            array[i][name] = value
    return array


def by_loop(engine: Engine, steps, sends, step_ps: int, timeout_ps: int | None) -> int:
    """What a schedule is defined as."""
    price = engine.config.call_price_ps
    deadline = None if timeout_ps is None else engine.now_ps + timeout_ps
    for i, step in enumerate(Step(*row) for row in steps.tolist()):
        if step.compute_ps > 0:
            engine.compute(step.compute_ps)
        if step.count:
            engine.post(posts_of(sends[step.first : step.first + step.count]), step_ps)
        if step.word >= 0:
            timeout = None if deadline is None else max(0, deadline - engine.now_ps - price)
            if engine.wait([(step.word, step.cmp, step.value)], timeout_ps=timeout) == TIMEOUT:
                return i
    return len(steps)


def perform(engine: Engine, call: str, args: dict, publish: bool = True):
    """One program step on an engine."""
    if call == "put":
        word = args["word"]
        return engine.put(args["dst"], args["nbytes"], None, word, args["op"], args["value"])
    if call == "post":
        return engine.post(as_posts(args["posts"]), args["step"])
    if call in ("schedule", "schedule_by_loop"):
        steps = rows_of(new_steps, args["steps"]), rows_of(new_sends, args["sends"])
        way = engine.schedule if call == "schedule" else partial(by_loop, engine)
        return way(*steps, args["step"], args["timeout"])
    if call == "inbox":
        return tuple(engine.inbox().tolist())
    if call == "get":
        return engine.get(args["src"], args["nbytes"])
    if call == "compute":
        return engine.compute(args["ps"], publish=publish)
    if call == "wait":
        return engine.wait(args["conditions"], args["any_"], args["timeout"])
    if call == "exchange":
        chain = [ChainStep(*step) for step in args["chain"]]
        facts = row_arguments(args["row"])
        return engine.exchange(
            args["channel"], pull_start_ps=args["pull_start"], record_ps=args["record"], chain=chain, **facts
        )
    if call == "exchange_post":
        return engine.exchange_post(args["channel"], **row_arguments(args["row"]))
    if call == "exchange_wait":
        return engine.exchange_wait(args["channel"], args["pull_start"], args["record"])
    if call == "open_group":
        return engine.open_group(args["channel"], np.array(args["members"], dtype=np.int32))
    return getattr(engine, call)(**args)


class Shared:
    """An engine's buffer and a table for results, made before the fork."""

    def __init__(self, cfg: EngineConfig, kind: str, module=None, slots: int = 0, **extra) -> None:
        self.cfg, self.kind, self.module, self.extra = cfg, kind, module, extra
        if module is None:
            self.buf = mmap.mmap(-1, engine_bytes(cfg, kind))
            engine_create(self.buf, cfg, kind)
        else:
            self.buf = mmap.mmap(-1, module.engine_bytes(cfg, **extra))
            module.engine_create(self.buf, cfg, **extra)
        self.table = np.frombuffer(mmap.mmap(-1, cfg.num_ranks * (16 + 2 * slots) * 8), dtype=np.int64)
        self.table = self.table.reshape(cfg.num_ranks, -1)

    def attach(self, rank: int) -> Engine:
        if self.module is None:
            return engine_attach(self.buf, self.cfg, self.kind, rank)
        return self.module.attach(self.buf, self.cfg, rank, **self.extra)


def fork_ranks(shared: Shared, body) -> list[int]:
    """Run body(engine, row of the table) in one process per rank; returns exit codes."""
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
            except DeadlockError:
                code = 3
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        pids.append(pid)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def thread_ranks(shared: Shared, body) -> list[int]:
    """As `fork_ranks`, but a thread per rank: one process, quick to start, the host order still its own."""
    codes = [1] * shared.cfg.num_ranks

    def rank_of(rank: int) -> None:
        try:
            engine = shared.attach(rank)
            body(engine, shared.table[rank])
            engine.finish()
            codes[rank] = 0
        except DeadlockError:
            codes[rank] = 3
        except BaseException:
            traceback.print_exc()

    threads = [threading.Thread(target=rank_of, args=(rank,)) for rank in range(shared.cfg.num_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return codes


def apply_log(engine: Engine, target: int) -> list[tuple[int, ...]]:
    """What stands in a target's apply log."""
    engine.log_lock(target)
    entries = engine.log_view(target).tolist()
    engine.log_unlock(target)
    return entries


def run(cfg, kind, make, slots, jitter=0.0, one_core=False, module=None, threads=False, trace=-1, **extra):
    """(log per rank, blocked per rank, port hashes, digests, apply logs) of a run; make(rank) gives its
    program."""
    shared = Shared(cfg, kind, module, slots, **extra)

    def body(engine, row):
        if one_core:
            os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
        if jitter:
            engine.set_jitter(jitter, 400, random.SystemRandom().randrange(1 << 30))
        if trace >= 0:
            engine.set_trace(trace)
        noise = random.SystemRandom()
        steps, sent = make(engine.rank), None
        while True:
            try:
                call, args = steps.send(sent)
            except StopIteration:
                return
            value = perform(engine, call, dict(args), publish=not jitter or noise.random() < 0.5)
            sent = plain(value), engine.now_ps
            k = int(row[0])
            row[16 + 2 * k : 18 + 2 * k] = number(value if value is not None else 0), engine.now_ps
            row[0] = k + 1

    codes = (thread_ranks if threads else fork_ranks)(shared, body)
    if any(code not in (0, 3) for code in codes):
        raise RuntimeError(f"a rank failed: exit codes {codes}")
    logs = [[tuple(x) for x in row[16 : 16 + 2 * row[0]].reshape(-1, 2).tolist()] for row in shared.table]
    viewer = shared.attach(0)
    if trace >= 0:
        viewer.set_trace(trace)
        viewer.drain()
    hashes = [viewer._hashes(r).tolist() for r in range(cfg.num_ranks)]
    applied = [apply_log(viewer, r) for r in range(cfg.num_ranks)]
    digests = [viewer.digest(r) for r in range(cfg.num_ranks)]
    return logs, [code == 3 for code in codes], hashes, digests, applied


class Timed(NamedTuple):
    """What a call of a program gave, and when."""

    call: str
    value: object
    now_ps: int


def play(cfg, kind, *programs):
    """Run generators, one per rank (a thread each): a list of `Timed` for each, and their engines' logs.

    A program yields (call, arguments) and is sent the value; a rank whose run cannot go on has a last entry
    with the call "deadlock" or "error"."""
    shared = Shared(cfg, kind)
    told = [[] for _ in programs]

    def body(engine, row):
        steps, sent, log = programs[engine.rank], None, told[engine.rank]
        while True:
            try:
                call, args = steps.send(sent)
            except StopIteration:
                return
            try:
                sent = plain(perform(engine, call, args))
            except (DeadlockError, InternalError) as error:
                name = "deadlock" if isinstance(error, DeadlockError) else "error"
                log.append(Timed(name, str(error), engine.now_ps))
                return
            log.append(Timed(call, sent, engine.now_ps))

    codes = thread_ranks(shared, body)
    assert not any(codes), codes
    viewer = shared.attach(0)
    return told, [apply_log(viewer, r) for r in range(cfg.num_ranks)]


def run_oracle(cfg, programs):
    """(log per rank, blocked per rank, port reservations, apply logs) as the sequential oracle has them;
    reservations None where a send was still retried for ever at the end.

    Args:
        programs: one generator per rank; each yields (call, arguments) and is sent (value, time)."""
    oracle = PostsOracle(cfg, programs)
    logs, blocked, records = oracle.run()
    return (
        logs,
        blocked,
        None if oracle.again else records,
        [oracle.apply_log(r) for r in range(cfg.num_ranks)],
    )


MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
FIELDS = (
    0x9E3779B97F4A7C15,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0xD6E8FEB86659FD93,
    0xA0761D6478BD642F,
    0xE7037ED1A0B428DB,
)


def port_hash(records) -> tuple[int, int]:
    """The documented hash of one port's reservations, computed from the oracle's list."""
    h = [0, 0]
    for record in records:
        v = sum(a * b for a, b in zip(record, FIELDS, strict=True)) % 2**64
        for i, (prime, add) in enumerate(((0x5851F42D4C957F2D, 0), (0x2545F4914F6CDD1D, 0x9E3779B97F4A7C15))):
            z = (v + add) % 2**64
            for shift, factor in MIX:
                z = (z ^ z >> shift) * factor % 2**64
            h[i] = (h[i] * prime + (z ^ z >> 31)) % 2**64
    return tuple((x + 2**63) % 2**64 - 2**63 for x in h)
