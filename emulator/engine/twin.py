"""The Python twin of the compiled core: same calls, same times, same digests, no compiler.

It is the readable statement of the rules (`twin_core`) and the fall-back where there is no C compiler. What
is not in columns (the heap of pending events) is pickled into the shared buffer at the end of an entry and
read back by the next process that enters; a process that enters twice in a row keeps its copy.
"""

import errno
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from emulator.engine import hostcalls
from emulator.engine.api import (
    ChainStep,
    EngineConfig,
    ExchangeResult,
    Int32Array,
    Int64Array,
    LogRef,
    Statistics,
)
from emulator.engine.base import BaseEngine
from emulator.engine.codes import (
    BLOCKED,
    DEAD,
    EXITED,
    FATAL_ABORT,
    FATAL_DIRTY,
    FATAL_NODES,
    FATAL_NONE,
    FATAL_REUSE,
    FATAL_WALL,
    RUN,
    W_ATOMIC,
    W_EXCHANGE,
    W_TEST,
    W_WAIT,
)
from emulator.engine.config import check_config, wrap
from emulator.engine.primitives import Waiter
from emulator.engine.reports import make_waiter
from emulator.engine.twin_core import (
    OP_ATOMIC,
    OP_GET,
    OP_PUT,
    S_ATOMIC,
    S_CHECK,
    S_EGRESS,
    S_ROW,
    Core,
    Op,
    fold,
    key_of,
)
from emulator.engine.twin_memory import INF, LATE, Memory
from emulator.errors import InternalError, UsageError, WallDeadlineError

__all__ = ["TwinEngine", "attach", "engine_bytes", "engine_create"]

C_COMPUTE, C_PUT, C_GET, C_FENCE, C_POST, C_FINISH = range(32, 38)
Post = tuple[int, int, int, int, Any]  # rank where it happens, time, key, peer, payload


def engine_bytes(cfg: EngineConfig) -> int:
    check_config(cfg)
    return Memory(cfg, None).size + 64 * (cfg.num_ranks + 1)


def engine_create(buf: Any, cfg: EngineConfig) -> None:
    memory = Memory(cfg, buf)
    memory.initialise()
    base = hostcalls.address_of(buf)
    for address in mutexes(base, memory):
        hostcalls.init_mutex(address)


def mutexes(base: int, memory: Memory) -> list[int]:
    """Addresses of the apply locks by rank, then of the engine's lock."""
    return [base + memory.size + 64 * p for p in range(memory.n + 1)]


def attach(buf: Any, cfg: EngineConfig, rank: int) -> "TwinEngine":
    return TwinEngine(buf, cfg, rank)


class TwinEngine(BaseEngine):
    """`api.Engine` in Python. `core_class` lets tests break a rule."""

    core_class = Core

    def __init__(self, buf: Any, cfg: EngineConfig, rank: int) -> None:
        super().__init__(cfg, rank)
        if not hostcalls.FUTEX_NUMBER:
            raise UsageError("the python engine does not know this machine's futex system call")
        self._memory = Memory(cfg, buf)
        self._core = self.core_class(cfg, self._memory)
        base = hostcalls.address_of(buf)
        *self._log_locks, self._lock = mutexes(base, self._memory)
        first_word = hostcalls.address_of(self._memory.word)
        self._wake_words = [first_word + 8 * p for p in range(cfg.num_ranks)]
        self._now, self._seq, self._calls = 0, 0, (0, 0)
        self._posts: list[Post] = []
        self._result = self._slot = self._records = 0
        self._blob_seen = 0
        self._wake_all = False
        self._jitter: Any = None

    @property
    def now_ps(self) -> int:
        return self._now

    # ---- one entry
    def _acquire(self) -> bool:
        m = self._memory
        code = hostcalls.lock_mutex(self._lock, self.config.wall_deadline_s)
        if code == errno.ETIMEDOUT:
            self._core.fail(FATAL_WALL, self.rank)
            return False
        core = self._core
        core.woken.clear()
        if m.facts[m.BLOB] != self._blob_seen:
            which = m.facts[m.BLOB] & 1
            core.heap, core.gets, core.live = pickle.loads(m.blob[which])
        if code == errno.EOWNERDEAD:
            self._wake_all = True  # the dead one may have decided waits and not woken anybody
            if m.facts[m.DIRTY]:
                core.fail(FATAL_DIRTY, m.facts[m.OWNER])
            else:
                core.mark_dead(m.facts[m.OWNER])
        m.facts[m.OWNER], m.facts[m.DIRTY] = self.rank, 1
        m.facts[m.ENTRIES] += 1
        return True

    def _release(self, wake_all: bool = False) -> None:
        m, core = self._memory, self._core
        blob = pickle.dumps((core.heap, core.gets, core.live), protocol=5)
        if len(blob) > m.blob_size:
            core.fail(FATAL_NODES, self.rank)
        else:
            self._blob_seen = m.facts[m.BLOB] + 1
            m.blob[self._blob_seen & 1][: len(blob)] = np.frombuffer(blob, np.uint8)
            m.facts[m.BLOB] = self._blob_seen
        wake_all = wake_all or self._wake_all or m.facts[m.FATAL] != FATAL_NONE
        self._wake_all = False
        woken = list(range(self.num_ranks)) if wake_all else core.woken[:]
        for p in woken:
            m.word[p] = m.word[p] + 1 & 0x7FFFFFFF
        m.facts[m.DIRTY] = 0
        hostcalls.unlock_mutex(self._lock)
        for p in woken:
            if p != self.rank or wake_all:
                hostcalls.futex_wake(self._wake_words[p])

    def _enter(self, wait: int, timeout: int, bound: int) -> int:
        """Hand over posts, publish the bound or block, settle, wake, sleep. Returns 0 or a FATAL_ code."""
        m, core, r = self._memory, self._core, self.rank
        self._nap()
        if not self._acquire():
            return FATAL_WALL
        if m.facts[m.FATAL]:
            self._release()
            return int(m.facts[m.FATAL])
        if self._posts:
            m.vain[r] = 0
        self._hand_over()
        self._nap()
        if wait:
            self._block_at(wait, timeout)
        else:
            m.state[r] = EXITED if bound >= INF else RUN
            m.bound[r] = bound
        m.calls_0[r], m.calls_1[r] = self._calls
        core.settle()
        self._release()
        if not wait:
            return 0
        code = self._sleep_until_woken(m.word[r])
        if not code:
            self._now, self._result = m.clock[r], m.result[r]
            self._records, self._slot = m.records[r], m.slot[r]
        return code

    def _hand_over(self) -> None:
        for p, t, key, peer, payload in self._posts:
            if isinstance(payload, Op):
                if payload.kind == OP_PUT:
                    self._memory.unacked[self.rank] += 1
                elif payload.kind == OP_GET:
                    self._core.gets.setdefault(self.rank, set()).add(payload.seq)
            self._core.push(p, t, key, peer, payload)
        self._posts.clear()

    def _block_at(self, wait: int, timeout: int) -> None:
        m, r = self._memory, self.rank
        if wait != W_TEST:
            m.vain[r] = 0
        m.state[r], m.wait[r], m.seq[r] = BLOCKED, wait, self._seq
        m.clock[r] = m.since[r] = self._now
        m.armed[r] = m.decided[r] = m.done[r] = 0
        m.bound[r] = INF
        self._core.push(r, self._now, LATE | key_of(r, self._seq, 0, S_CHECK))
        if timeout >= 0:
            self._core.push(r, self._now + timeout, self._core.timeout_key(r, self._seq))

    def _sleep_until_woken(self, ticket: int) -> int:
        """Asleep until decided. The host time limit ends the run when no rank entered for so long."""
        m, r = self._memory, self.rank
        seconds = self.config.wall_deadline_s
        limit = hostcalls.Timespec(int(seconds), int(seconds % 1 * 1e9))
        entries = m.facts[m.ENTRIES]
        while m.state[r] == BLOCKED and not m.facts[m.FATAL]:
            if hostcalls.futex_wait(self._wake_words[r], ticket, limit):
                seen = m.facts[m.ENTRIES]
                if seen == entries and self._acquire():
                    if m.state[r] == BLOCKED:
                        self._core.fail(FATAL_WALL, r)
                    self._release()
                entries = seen
            ticket = m.word[r]
        return int(m.facts[m.FATAL]) if m.state[r] == BLOCKED else 0

    # ---- calls
    def _begin(self) -> None:
        self._now += self.config.call_price_ps
        self._seq += 1

    def _note(self, kind: int, start: int, a: int, b: int, c: int) -> None:
        self._calls = fold(self._calls, kind, start, self._now, a, b, c)

    def _nap(self) -> None:
        if self._jitter is not None:
            rng, probability, max_us = self._jitter
            if rng.random() < probability:
                hostcalls.nap(int(rng.integers(1, max_us + 1)))

    def _post(self, p: int, delay: int, stage: int, payload: Any) -> None:
        self._posts.append((p, self._now + delay, key_of(self.rank, self._seq, 0, stage), self.rank, payload))

    def _compute(self, ps: int, kind: int, publish: bool) -> int:
        start = self._now
        self._begin()
        self._now += ps
        self._note(C_COMPUTE, start, kind, ps, 0)
        return self._enter(0, -1, self._now + self.config.call_price_ps) if publish else 0

    def _fence(self) -> None:
        self._begin()
        self._note(C_FENCE, self._now, 0, 0, 0)

    def _put(self, dst: int, nbytes: int, log: LogRef | None, op: int, word: int, value: int) -> None:
        self._begin()
        self._post(
            self.rank,
            0,
            S_EGRESS,
            Op(OP_PUT, self.rank, dst, nbytes, self._seq, _plain(log), op, word, value),
        )
        self._note(C_PUT, self._now, dst, nbytes, word if op else -1)

    def _get(self, src: int, nbytes: int, log: LogRef | None) -> int:
        self._begin()
        request = self.config.request_latency_ps[self._memory.link(self.rank, src)]
        self._post(src, request, S_EGRESS, Op(OP_GET, self.rank, src, nbytes, self._seq, _plain(log)))
        self._note(C_GET, self._now, src, nbytes, 0)
        return self._seq

    def _enter_wait(self, wait: int, a: int, b: int, c: int) -> int:
        start, m, r = self._now, self._memory, self.rank
        self._begin()
        m.a[r], m.b[r], m.c[r] = a, b, c
        code = self._enter(wait, -1, 0)
        if not code:
            self._note(wait, start, a, b, self._result)
        return code

    def _atomic(self, dst: int, word: int, op: int, value: int, compare: int) -> int:
        start, m, r = self._now, self._memory, self.rank
        self._begin()
        request = self.config.request_latency_ps[m.link(r, dst)]
        self._post(
            dst, request, S_ATOMIC, Op(OP_ATOMIC, r, dst, 0, self._seq, None, op, word, value, compare)
        )
        m.a[r], m.b[r] = dst, word
        code = self._enter(W_ATOMIC, -1, 0)
        if not code:
            self._note(W_ATOMIC, start, dst, word, self._result)
        return code

    def _wait(self, conditions: list[tuple[int, int, int]], any_: bool, timeout_ps: int) -> int:
        start, m, r = self._now, self._memory, self.rank
        self._begin()
        m.conditions[r, : len(conditions)] = conditions
        m.num_conditions[r], m.any[r] = len(conditions), int(any_)
        code = self._enter(W_WAIT, timeout_ps, 0)
        if not code:
            self._note(W_WAIT, start, len(conditions), int(any_), self._result)
        return code

    def _flush(self) -> int:
        return self._enter(0, -1, self._now + self.config.call_price_ps) if self._posts else 0

    # ---- exchanges
    def _post_row(
        self, channel: int, counts: Any, offsets: Any, row_bytes: int, meta_bytes: int, tag: int
    ) -> int:
        slot = self._memory.open_slot(self.rank, channel)
        if slot < 0:
            return FATAL_REUSE
        self._memory.write_row(slot, self.rank, counts, offsets, row_bytes, meta_bytes, tag)
        self._post(self.rank, 0, S_ROW, slot)
        self._slot = slot
        return 0

    def _wait_rows(self, channel: int, slot: int, pull_start: int, record: int, steps: int) -> int:
        start, m, r = self._now, self._memory, self.rank
        m.a[r], m.slot[r], m.pull_start[r], m.record[r] = channel, slot, pull_start, record
        m.exchange_seq[r], m.chain_count[r], m.chain_at[r] = self._seq, steps, 0
        code = self._enter(W_EXCHANGE, -1, 0)
        self._seq += steps
        if not code:
            self._note(W_EXCHANGE, start, channel, self._result, self._records)
        return code

    def _exchange(
        self,
        channel: int,
        counts: Int32Array | None,
        offsets: Int32Array | None,
        row_bytes: int,
        meta_bytes: int,
        tag: int,
        pull_start_ps: int,
        record_ps: int,
        chain: Sequence[ChainStep],
    ) -> int:
        rows, where = self._rows(counts, offsets)
        if rows is not None and int(rows.min()) < 0:
            return -int((rows < 0).argmax()) - 1
        self._begin()
        code = self._post_row(channel, rows, where, row_bytes, meta_bytes, wrap(tag))
        if code:
            return code
        if chain:
            self._memory.chains[self.rank, : len(chain)] = list(chain)
        return self._wait_rows(channel, self._slot, pull_start_ps, record_ps, len(chain))

    def _exchange_post(
        self,
        channel: int,
        counts: Int32Array | None,
        offsets: Int32Array | None,
        row_bytes: int,
        meta_bytes: int,
        tag: int,
    ) -> int:
        rows, where = self._rows(counts, offsets)
        if rows is not None and int(rows.min()) < 0:
            return -int((rows < 0).argmax()) - 1
        self._begin()
        self._note(C_POST, self._now, channel, row_bytes, meta_bytes)
        return self._post_row(channel, rows, where, row_bytes, meta_bytes, wrap(tag))

    def _rows(self, counts: Any, offsets: Any) -> tuple[Int32Array | None, Int32Array | None]:
        made: list[Int32Array | None] = []
        for name, values in (("counts", counts), ("offsets", offsets)):
            row = None if values is None else np.empty(self.num_ranks, dtype=np.int32)
            if row is not None:
                self._copy_row(name, values, row)
            made.append(row)
        return made[0], made[1]

    def _exchange_wait(self, channel: int, slot: int, pull_start_ps: int, record_ps: int) -> int:
        self._begin()
        return self._wait_rows(channel, slot, pull_start_ps, record_ps, 0)

    def _exchanged(self) -> ExchangeResult:
        m, s, r = self._memory, self._slot, self.rank
        counts, offsets, tags = m.counts[s][:, r].copy(), m.offsets[s][:, r].copy(), m.tags[s].copy()
        offsets[counts == 0] = 0
        return ExchangeResult(self._result, self._now, self._records, counts, offsets, tags)

    # ---- apply logs
    def log_lock(self, target: int) -> None:
        self._rank_arg("log_lock", target)
        if hostcalls.lock_mutex(self._log_locks[target], self.config.wall_deadline_s) == errno.ETIMEDOUT:
            raise WallDeadlineError(f"the apply lock of rank {target} was not released for too long")

    def log_unlock(self, target: int) -> None:
        self._rank_arg("log_unlock", target)
        if hostcalls.unlock_mutex(self._log_locks[target]):
            raise InternalError(f"rank {self.rank} does not hold the apply lock of rank {target}")

    def log_view(self, target: int) -> np.ndarray[Any, np.dtype[Any]]:
        self._rank_arg("log_view", target)
        m = self._memory
        which = np.arange(m.log_tail[target], m.log_head[target]) % self.config.log_entries
        entries: np.ndarray[Any, np.dtype[Any]] = m.logs[target][which]
        return entries

    def log_advance(self, target: int, count: int) -> None:
        self._rank_arg("log_advance", target)
        m = self._memory
        if not 0 <= count <= m.log_head[target] - m.log_tail[target]:
            raise UsageError(f"log_advance: {count} is more than there is", rank=self.rank)
        m.log_tail[target] += count

    # ---- the end, and looking in
    def _finish(self) -> None:
        self._seq += 1
        self._note(C_FINISH, self._now, 0, 0, 0)
        self._enter(0, -1, INF)

    def _mark_dead(self, rank: int) -> None:
        if not self._acquire():
            raise WallDeadlineError("the engine's lock was not released for too long")
        self._core.mark_dead(rank)
        self._core.settle()
        self._release(wake_all=True)

    def abort(self, reason: str) -> None:
        if not self._acquire():
            return
        m = self._memory
        text = reason.encode()[:200]
        if not m.facts[m.FATAL]:
            memoryview(m.facts).cast("B")[8 * m.REASON : 8 * m.REASON + len(text)] = text
        self._core.fail(FATAL_ABORT, self.rank)
        self._release(wake_all=True)

    def dead_ranks(self) -> list[int]:
        return [p for p, state in enumerate(self._memory.state) if state == DEAD]

    def _running(self) -> list[int]:
        return [p for p, state in enumerate(self._memory.state) if state == RUN]

    def _culprit(self) -> int:
        return int(self._memory.facts[self._memory.CULPRIT])

    def _reason(self) -> str:
        at = 8 * self._memory.REASON
        raw = bytes(memoryview(self._memory.facts).cast("B")[at : at + 200])
        return raw.split(b"\0")[0].decode(errors="replace")

    def _hashes(self, rank: int) -> Int64Array:
        m = self._memory
        ports = [h[rank] for port in m.hash for h in port]
        return np.array([*ports, m.calls_0[rank], m.calls_1[rank]], dtype=np.int64)

    def _waiters(self) -> list[Waiter]:
        m = self._memory
        waiters = []
        for p in range(self.num_ranks):
            if m.state[p] != BLOCKED:
                continue
            missing: list[int] = []
            if m.wait[p] == W_EXCHANGE:
                missing = np.flatnonzero(m.posted_at[m.slot[p]] == INF).tolist()
            conditions = m.conditions_of(p) if m.wait[p] == W_WAIT else []
            args = (m.a[p], m.b[p], m.c[p])
            waiters.append(make_waiter(p, m.wait[p], args, m.since[p], conditions, bool(m.any[p]), missing))
        return waiters

    def statistics(self) -> Statistics:
        m = self._memory
        return Statistics(
            events=m.facts[m.EVENTS],
            entries=m.facts[m.ENTRIES],
            wake_ups=np.array(m.wakes),
            polls_skipped=np.array(m.skipped),
            busy_ps=np.array(m.busy).T.copy(),
            bytes_by_class=np.array(m.bytes).T.copy(),
            wait_ps=np.array(m.waited),
        )

    def set_trace(self, fd: int) -> None:
        self._memory.trace_fd = fd

    def drain(self) -> None:
        if self._acquire():
            if self._memory.trace_fd >= 0:
                self._memory.flush_trace()
            self._release()

    def set_jitter(self, probability: float, max_us: int, seed: int) -> None:
        self._jitter = (np.random.default_rng(seed), probability, max(1, max_us))


def _plain(log: LogRef | None) -> LogRef | None:
    return None if log is None else LogRef(*map(int, log))
