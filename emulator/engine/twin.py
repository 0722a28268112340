"""The Python twin of the compiled core: same calls, same times, same digests, no compiler.

It is the readable statement of the rules (`twin_core`) and the fall-back where there is no C compiler. What
is not in columns (the heap of pending events) is pickled into the shared buffer at the end of an entry and
read back by the next process that enters; a process that enters twice in a row keeps its copy.
"""

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
)
from emulator.engine.codes import (
    FATAL_REUSE,
    FATAL_WALL,
    NOT_A_MEMBER,
    RECORD_LIMIT,
    W_ATOMIC,
    W_EXCHANGE,
    W_WAIT,
)
from emulator.engine.config import check_config, wrap
from emulator.engine.posts import K_GET, K_PUT, K_WORD, Inbox, Posts
from emulator.engine.twin_entry import mutexes
from emulator.engine.twin_events import S_ROW, Op, Post, key_of, of_post
from emulator.engine.twin_hash import fold
from emulator.engine.twin_memory import INF, Memory, Row
from emulator.engine.twin_scheduler import TwinScheduler

__all__ = ["TwinEngine", "attach", "engine_bytes", "engine_create"]

C_COMPUTE, C_PUT, C_GET, C_FENCE, C_POST, C_FINISH, C_POSTED = range(32, 39)


def engine_bytes(cfg: EngineConfig) -> int:
    check_config(cfg)
    return Memory(cfg, None).size + 64 * (cfg.num_ranks + 1)


def engine_create(buf: Any, cfg: EngineConfig, memory_class: type[Memory] = Memory) -> None:
    """`memory_class` lets tests break a rule."""
    memory = memory_class(cfg, buf)
    memory.initialise()
    base = hostcalls.address_of(buf)
    for address in mutexes(base, memory):
        hostcalls.init_mutex(address)


def attach(buf: Any, cfg: EngineConfig, rank: int) -> "TwinEngine":
    return TwinEngine(buf, cfg, rank)


class TwinEngine(TwinScheduler):
    """`api.Engine` in Python."""

    _sizes: Int64Array | None = None  # of the records of the row I post next

    def _begin(self) -> None:
        if self._measured_from:
            self._charge_measured()
        self._now += self.config.call_price_ps
        self._seq += 1

    def _note(self, kind: int, start: int, a: int, b: int, c: int) -> None:
        self._calls = fold(self._calls, kind, start, self._now, a, b, c)

    def _issue(self, op: Op) -> None:
        op.posted = self._now
        self._posts.append(self._core.first_event(op))

    def _post_all(self, posts: Posts, step_ps: int) -> int:
        first = self._seq + 1
        for row in posts.tolist():
            post: Any = Post._make(row)
            self._begin()
            self._now += step_ps
            self._issue(of_post(self.rank, self._seq, self._now, post))
            self._note_post(post)
        return first

    def _note_post(self, post: Any) -> None:
        """A put or get posted as a row has the digest of the call."""
        if post.kind == K_PUT:
            self._note(C_PUT, self._now, post.peer, post.nbytes, post.word if post.op else -1)
        elif post.kind == K_GET:
            self._note(C_GET, self._now, post.peer, post.nbytes, 0)
        else:
            self._note(C_POSTED + post.kind, self._now, post.peer, post.nbytes, post.word)

    def _retire(self, stream: int) -> None:
        self._retired.append(stream)

    def _take_inbox(self) -> Inbox:
        m, r = self._memory, self.rank
        which = np.arange(m.inbox_tail[r], m.inbox_head[r]) % self.config.inbox_entries
        records = m.inboxes[r][which]
        mine: Inbox = records[records["time_ps"] <= self._seen_ps]
        m.inbox_tail[r] += len(mine)
        return mine

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
        put = Op(K_PUT, self.rank, dst, nbytes, self._seq).with_log(log)
        put.op, put.word, put.value = op, word, value
        self._issue(put)
        self._note(C_PUT, self._now, dst, nbytes, word if op else -1)

    def _get(self, src: int, nbytes: int, log: LogRef | None) -> int:
        self._begin()
        self._issue(Op(K_GET, self.rank, src, nbytes, self._seq).with_log(log))
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
        atomic = Op(K_WORD, r, dst, 0, self._seq)
        atomic.op, atomic.word, atomic.value, atomic.compare, atomic.blocking = op, word, value, compare, True
        self._issue(atomic)
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
        if not (self._posts or self._retired):
            return 0
        return self._enter(0, -1, self._now + self.config.call_price_ps)

    def _finish(self) -> None:
        self._seq += 1
        self._note(C_FINISH, self._now, 0, 0, 0)
        self._enter(0, -1, INF)

    def _measure(self) -> None:
        self._begin()
        self._note(C_COMPUTE, self._now, 0, 0, 0)
        self._begin_measuring()

    # ---- exchanges
    def _take_sizes(self, sizes: Int64Array) -> int:
        bad = np.flatnonzero((sizes < 0) | (sizes > RECORD_LIMIT))
        self._sizes = None if len(bad) else sizes.copy()
        return -int(bad[0]) - 1 if len(bad) else 0

    def _open_group(self, channel: int, members: Int32Array, check: int) -> int:
        if not self._acquire():
            self._raise(FATAL_WALL)
        formed = self._memory.form(channel, self.rank, members, check)
        self._release()
        return int(formed)

    def _post_row(self, channel: int, row: Row) -> int:
        slot = self._memory.open_slot(self.rank, channel)
        if slot < 0:
            return FATAL_REUSE
        self._memory.write_row(slot, self.rank, row)
        self._posts.append((self.rank, self._now, key_of(self.rank, self._seq, 0, S_ROW), self.rank, slot))
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
        row = self._row(channel, counts, offsets, row_bytes, meta_bytes, tag)
        if isinstance(row, int):
            return row
        self._begin()
        code = self._post_row(channel, row)
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
        row = self._row(channel, counts, offsets, row_bytes, meta_bytes, tag)
        if isinstance(row, int):
            return row
        self._begin()
        self._note(C_POST, self._now, channel, row_bytes, meta_bytes)
        return self._post_row(channel, row)

    def _row(
        self, channel: int, counts: Any, offsets: Any, row_bytes: int, meta_bytes: int, tag: int
    ) -> Row | int:
        """What I bring, copied, or the code of what is wrong with it."""
        sizes, self._sizes = self._sizes, None
        made: list[Int32Array | None] = []
        for name, values in (("counts", counts), ("offsets", offsets)):
            row = None if values is None else np.empty(self._group_size(channel), dtype=np.int32)
            if row is not None:
                self._copy_row(name, values, row)
            made.append(row)
        if made[0] is not None and int(made[0].min()) < 0:
            return -int((made[0] < 0).argmax()) - 1
        if self._memory.grouped[channel] and channel not in self._groups:
            return NOT_A_MEMBER
        return Row(made[0], made[1], row_bytes, meta_bytes, wrap(tag), sizes)

    def _exchange_wait(self, channel: int, slot: int, pull_start_ps: int, record_ps: int) -> int:
        self._begin()
        return self._wait_rows(channel, slot, pull_start_ps, record_ps, 0)

    def _exchanged(self) -> ExchangeResult:
        m, s, r = self._memory, self._slot, self.rank
        ranks, me = m.group(s // 2, r), m.own_place(s // 2, r)
        counts, offsets, tags = m.counts[s][ranks, me], m.offsets[s][ranks, me], m.tags[s][ranks]
        offsets[counts == 0] = 0
        return ExchangeResult(self._result, self._now, self._records, counts, offsets, tags)
