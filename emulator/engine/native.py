"""The compiled core as a rank's engine, called through ctypes."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from emulator.engine import api
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
from emulator.engine.codes import BLOCKED, DEAD, FATAL_WALL, RUN, W_EXCHANGE, W_SCHEDULE, W_WAIT
from emulator.engine.config import check_config, config_numbers
from emulator.engine.native_library import I64, available, library_for, load
from emulator.engine.posts import INBOX_DTYPE, NUM_PORTS, Inbox, Posts
from emulator.engine.primitives import Waiter
from emulator.engine.reports import make_waiter
from emulator.engine.schedules import Sends, Steps
from emulator.errors import InternalError, UsageError, WallDeadlineError

WAITING = 17
"""Place in `NativeEngine.numbers` of whether records waited for the rank when it woke last."""
_EMPTY = np.empty(0, dtype=INBOX_DTYPE)

__all__ = ["NativeEngine", "attach", "available", "engine_bytes", "engine_create", "load"]


def engine_bytes(cfg: EngineConfig, lib: Any = None) -> int:
    check_config(cfg)
    return int((lib or load(library_for(cfg.keep_going))).sp_bytes(config_numbers(cfg).ctypes.data))


def _address(buf: Any, cfg: EngineConfig, lib: Any) -> tuple[int, Any]:
    view = np.frombuffer(buf, dtype=np.uint8)
    need = engine_bytes(cfg, lib)
    if view.nbytes < need:
        raise UsageError(f"the engine's buffer has {view.nbytes} bytes, needs {need}")
    if view.ctypes.data % 64:
        raise UsageError("the engine's buffer is not aligned to 64 bytes")
    return view.ctypes.data, view


def engine_create(buf: Any, cfg: EngineConfig, lib: Any = None) -> None:
    lib = lib or load(library_for(cfg.keep_going))
    lib.sp_create(_address(buf, cfg, lib)[0], config_numbers(cfg).ctypes.data)


def attach(buf: Any, cfg: EngineConfig, rank: int, lib: Any = None) -> "NativeEngine":
    return NativeEngine(buf, cfg, rank, lib or load(library_for(cfg.keep_going)))


class NativeEngine(BaseEngine):
    """`api.Engine` over the compiled core."""

    _checks_posts = True

    def __init__(self, buf: Any, cfg: EngineConfig, rank: int, lib: Any) -> None:
        super().__init__(cfg, rank)
        self._lib = lib
        self._core, self._view = _address(buf, cfg, lib)
        self._me = lib.sp_attach(self._core, rank)
        n, words = cfg.num_ranks, WAITING + 1
        self._local = (I64 * words).from_address(
            self._me
        )  # now, result, index, records, slot, wakes, arguments, rows, sequence number, waiting
        rows = self._local[15]
        self._rows_in = _view(rows, np.int32, 2 * n).reshape(2, n)
        self._rows_out = _view(rows + 8 * n, np.int32, 2 * n)
        self._tags_out = _view(rows + 16 * n, np.int64, n)
        self.address: int = self._me
        self.library_path: str = lib._name
        self._handle = ctypes.c_void_p(self._me)  # saves a conversion in every call
        self._sp_compute, self._sp_exchange = lib.sp_compute, lib.sp_exchange

    def __del__(self) -> None:
        me, self._me = getattr(self, "_me", None), None
        if me:
            self._lib.sp_detach(me)

    @property
    def now_ps(self) -> int:
        return self._local[0]

    @property
    def numbers(self) -> Any:
        """What the compiled engine says of this rank, int64; the clock (ps) first."""
        return self._local

    @property
    def _result(self) -> int:  # type: ignore[override]
        return self._local[1]

    @property
    def _slot(self) -> int:  # type: ignore[override]
        return self._local[4]

    @property
    def last_seq(self) -> int:
        return self._local[16]

    def _compute(self, ps: int, kind: int, publish: bool) -> int:
        code: int = self._sp_compute(self._handle, ps, kind, publish)
        return code

    def _put(self, dst: int, nbytes: int, log: LogRef | None, op: int, word: int, value: int) -> None:
        self._lib.sp_put(self._me, dst, nbytes, _ref(log), op, word, value)

    def _get(self, src: int, nbytes: int, log: LogRef | None) -> int:
        return int(self._lib.sp_get(self._me, src, nbytes, _ref(log)))

    def _post_all(self, posts: Posts, step_ps: int) -> int:
        return int(self._lib.sp_post(self._me, posts.ctypes.data, len(posts), step_ps))

    def _schedule(self, steps: Steps, sends: Sends, step_ps: int, timeout_ps: int) -> int:
        rows = steps.ctypes.data, len(steps), sends.ctypes.data, len(sends)
        return int(self._lib.sp_schedule(self._handle, *rows, step_ps, timeout_ps))

    @property
    def _done(self) -> int:  # type: ignore[override]
        return self._local[2]

    def _retire(self, stream: int) -> None:
        self._lib.sp_retire_stream(self._me, stream)

    def _take_inbox(self) -> Inbox:
        if not self._local[WAITING]:
            return _EMPTY
        records: Inbox = np.empty(self._lib.sp_inbox(self._me, None, 1 << 40), dtype=INBOX_DTYPE)
        if len(records):
            self._lib.sp_inbox(self._me, records.ctypes.data, len(records))
        return records

    def _atomic(self, dst: int, word: int, op: int, value: int, compare: int) -> int:
        return int(self._lib.sp_atomic(self._me, dst, word, op, value, compare))

    def _fence(self) -> None:
        self._lib.sp_fence(self._me)

    def _flush(self) -> int:
        return int(self._lib.sp_flush(self._me))

    def _wait(self, conditions: list[tuple[int, int, int]], any_: bool, timeout_ps: int) -> int:
        flat = (I64 * (3 * len(conditions)))(*[x for row in conditions for x in row])
        return int(self._lib.sp_wait(self._me, flat, len(conditions), any_, timeout_ps))

    def _enter_wait(self, wait: int, a: int, b: int, c: int) -> int:
        return int(self._lib.sp_block(self._me, wait, a, b, c))

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
        self._arguments(
            channel, counts, offsets, row_bytes, meta_bytes, tag, pull_start_ps, record_ps, len(chain)
        )
        steps = (I64 * (5 * len(chain)))(*[x for step in chain for x in step]) if chain else None
        code: int = self._sp_exchange(self._handle, steps)
        return code

    def _arguments(
        self,
        channel: int,
        counts: Any,
        offsets: Any,
        row_bytes: int,
        meta_bytes: int,
        tag: int,
        pull_start_ps: int,
        record_ps: int,
        steps: int,
    ) -> None:
        if counts is not None or offsets is not None:
            rows_in = self._rows_in[:, : self._groups[channel]] if channel in self._groups else self._rows_in
            if counts is not None:
                self._copy_row("counts", counts, rows_in[0])
            if offsets is not None:
                self._copy_row("offsets", offsets, rows_in[1])
        rows = int(counts is not None), int(offsets is not None)
        numbers = [channel, row_bytes, meta_bytes, tag, pull_start_ps, record_ps, steps, *rows]
        self._local[6:15] = numbers  # type: ignore[assignment]

    def _exchange_post(
        self,
        channel: int,
        counts: Int32Array | None,
        offsets: Int32Array | None,
        row_bytes: int,
        meta_bytes: int,
        tag: int,
    ) -> int:
        self._arguments(channel, counts, offsets, row_bytes, meta_bytes, tag, 0, 0, 0)
        return int(self._lib.sp_exchange_post(self._me))

    def _take_sizes(self, sizes: Int64Array) -> int:
        self._sizes = sizes  # looked at when the row is posted
        return int(self._lib.sp_set_sizes(self._me, sizes.ctypes.data, len(sizes)))

    def _open_group(self, channel: int, members: Int32Array, check: int) -> int:
        return int(self._lib.sp_open_group(self._me, channel, members.ctypes.data, len(members), check))

    def _exchange_wait(self, channel: int, slot: int, pull_start_ps: int, record_ps: int) -> int:
        return int(self._lib.sp_exchange_wait(self._me, channel, slot, pull_start_ps, record_ps))

    def _exchanged(self) -> ExchangeResult:
        n, rows = self.num_ranks, self._rows_out.copy()
        now, result, _, records, slot, _ = self._local[:6]
        g = self._groups.get(slot // 2, n)
        return ExchangeResult(result, now, records, rows[:g], rows[n : n + g], self._tags_out[:g].copy())

    # ---- apply logs
    def log_lock(self, target: int) -> None:
        self._rank_arg("log_lock", target)
        if self._lib.sp_log_lock(self._me, target):
            raise WallDeadlineError(f"the apply lock of rank {target} was not released for too long")

    def log_unlock(self, target: int) -> None:
        self._rank_arg("log_unlock", target)
        if self._lib.sp_log_unlock(self._me, target):
            raise InternalError(f"rank {self.rank} does not hold the apply lock of rank {target}")

    def log_view(self, target: int) -> np.ndarray[Any, np.dtype[Any]]:
        self._rank_arg("log_view", target)
        count = self._lib.sp_log_count(self._me, target)
        entries = np.empty(count, dtype=api.LOG_DTYPE)
        if count:
            self._lib.sp_log_copy(self._me, target, count, entries.ctypes.data)
        return entries

    def log_advance(self, target: int, count: int) -> None:
        self._rank_arg("log_advance", target)
        if not 0 <= count <= self._lib.sp_log_count(self._me, target):
            raise UsageError(f"log_advance: {count} is more than there is", rank=self.rank)
        self._lib.sp_log_advance(self._me, target, count)

    # ---- the wall clock
    def _measure(self) -> None:
        self._lib.sp_measure(self._me)

    def _pace(self) -> int:
        return int(self._lib.sp_pace(self._me))

    def _start_clock(self, hold: bool) -> int:
        return int(self._lib.sp_start_clock(self._me, int(hold)))

    def _wall(self, rank: int) -> tuple[Int64Array, Int64Array]:
        sums, delays = np.empty(9, dtype=np.int64), np.empty((self.config.wall.delays, 4), dtype=np.int64)
        count = self._lib.sp_wall(self._core, rank, sums.ctypes.data, delays.ctypes.data)
        return sums, delays[:count].copy()

    # ---- the end, and looking in
    def _finish(self) -> None:
        self._lib.sp_finish(self._me)

    def _mark_dead(self, rank: int) -> None:
        if self._lib.sp_mark_dead(self._me, rank) == FATAL_WALL:
            raise WallDeadlineError("the engine's lock was not released for too long")

    def subscribe(self) -> None:
        self._lib.sp_subscribe(self._me)

    def lost(self) -> Int64Array:
        out = np.empty(self.num_ranks, np.int64)
        self._lib.sp_lost(self._me, out.ctypes.data)
        return out

    def abort(self, reason: str) -> None:
        self._lib.sp_abort(self._me, reason.encode()[:200])

    def dead_ranks(self) -> list[int]:
        return [int(p) for p in np.flatnonzero(self._ranks()[:, 0] == DEAD)]

    def _running(self) -> list[int]:
        return [int(p) for p in np.flatnonzero(self._ranks()[:, 0] == RUN)]

    def _ranks(self) -> Int64Array:
        table = np.empty((self.num_ranks, 16), dtype=np.int64)
        self._lib.sp_ranks(self._me, table.ctypes.data)
        return table

    def _facts(self) -> Int64Array:
        facts = np.empty(6, dtype=np.int64)
        self._lib.sp_facts(self._core, 0, 0, facts.ctypes.data)
        return facts

    def _hashes(self, rank: int) -> Int64Array:
        hashes = np.empty(8 + 3 * NUM_PORTS, dtype=np.int64)
        return hashes[: self._lib.sp_hashes(self._me, rank, hashes.ctypes.data)]

    def _culprit(self) -> int:
        return int(self._facts()[1])

    def _reason(self) -> str:
        return bytes(self._lib.sp_reason(self._core)).decode(errors="replace")

    def _waiters(self) -> list[Waiter]:
        waiters = []
        for rank, row in enumerate(self._ranks().tolist()):
            if row[0] != BLOCKED:
                continue
            conditions = np.empty((row[7] if row[1] in (W_WAIT, W_SCHEDULE) else 0, 3), dtype=np.int64)
            if conditions.size:
                self._lib.sp_conditions(self._me, rank, len(conditions), conditions.ctypes.data)
            missing, group = np.empty(self.num_ranks, dtype=np.int32), np.zeros(2, dtype=np.int64)
            k = 0
            if row[1] == W_EXCHANGE:
                k = self._lib.sp_missing(self._me, row[6], rank, missing.ctypes.data, group.ctypes.data)
            args = (row[2], row[3], row[4])
            facts = args, row[5], conditions.tolist(), bool(row[8]), missing[:k].tolist()
            which: Any = tuple(group.tolist()) if group[1] else None
            waiters.append(make_waiter(rank, row[1], *facts, inbox_word=self.inbox_word, group=which))
        return waiters

    def statistics(self) -> Statistics:
        table, facts = self._ranks(), self._facts()
        sizes = np.empty((self.num_ranks, 4), dtype=np.int64)
        self._lib.sp_bytes_by_class(self._me, sizes.ctypes.data)
        busy = np.empty((self.num_ranks, NUM_PORTS), dtype=np.int64)
        self._lib.sp_busy(self._me, busy.ctypes.data)
        return Statistics(
            events=int(facts[2]),
            entries=int(facts[3]),
            wake_ups=table[:, 9].copy(),
            polls_skipped=table[:, 10].copy(),
            busy_ps=table[:, 12:15].copy(),
            bytes_by_class=sizes,
            wait_ps=table[:, 11].copy(),
            all_busy_ps=busy,
        )

    def set_trace(self, fd: int) -> None:
        self._lib.sp_set_trace(self._me, fd)

    def drain(self) -> None:
        self._lib.sp_drain(self._me)

    def set_jitter(self, probability: float, max_us: int, seed: int) -> None:
        self._lib.sp_set_jitter(self._me, int(probability * 1e6), max_us, seed)


def _view(address: int, dtype: Any, count: int) -> Any:
    """The core's own memory as an array."""
    raw: Any = (ctypes.c_uint8 * (count * np.dtype(dtype).itemsize)).from_address(address)
    return np.frombuffer(raw, dtype)


def _ref(log: LogRef | None) -> Any:
    return None if log is None else (I64 * 5)(*log)


def _at(array: Int32Array | Int64Array | None) -> int | None:
    return None if array is None else array.ctypes.data
