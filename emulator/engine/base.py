"""What both implementations share: argument checks, and reports when a run cannot go on."""

import hashlib
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from emulator.engine import api
from emulator.engine.api import ChainStep, EngineConfig, ExchangeResult, Int32Array, Int64Array, LogRef
from emulator.errors import DeadlockError, InternalError, RankLostError, UsageError, WallDeadlineError

RUN, BLOCKED, EXITED, DEAD = range(4)
(W_NONE, W_WAIT, W_QUIET, W_GET, W_ATOMIC, W_READ, W_OBSERVE, W_TEST, W_POLL, W_EXCHANGE) = range(10)
OPERATIONS = ("", "wait", "quiet", "wait_get", "atomic", "read", "observe", "test", "test", "exchange")
COMPARISONS = ("==", "!=", ">", ">=", "<", "<=")
(
    FATAL_NONE,
    FATAL_DEADLOCK,
    FATAL_LIVELOCK,
    FATAL_LOST,
    FATAL_DIRTY,
    FATAL_WALL,
    FATAL_ABORT,
    FATAL_OPERATIONS,
) = range(8)
FATAL_NODES, FATAL_LOG, FATAL_TRACE, FATAL_REUSE = range(8, 12)
OVERFLOWS = {
    FATAL_OPERATIONS: "too many operations under way at once",
    FATAL_NODES: "no room for pending events (raise node_bytes)",
    FATAL_LOG: "the apply log of rank {rank} is full (raise log_entries, or bound what is outstanding)",
    FATAL_TRACE: "the trace ring is full and could not be written out",
    FATAL_REUSE: "an exchange was posted on a channel whose buffers are still in use",
}
LIMIT_PS = 1 << 60
ROW_LIMIT = 1 << 31


class Waiter(dict[str, Any]):
    """One blocked rank of a report: rank, operation, since_ps, detail, waits_for (ranks or None)."""


def check_config(cfg: EngineConfig) -> None:
    """Refuse what the engine cannot represent."""
    if not 1 <= cfg.num_ranks <= api.MAX_RANKS:
        raise UsageError(f"num_ranks is {cfg.num_ranks}, must be 1 to {api.MAX_RANKS}")
    if cfg.dies_per_chip < 1 or cfg.dies_per_node < 1 or cfg.dies_per_node % cfg.dies_per_chip:
        raise UsageError(
            f"dies_per_node ({cfg.dies_per_node}) must be a positive multiple of "
            f"dies_per_chip ({cfg.dies_per_chip})"
        )
    if cfg.dies_per_node > 1023:
        raise UsageError(f"dies_per_node is {cfg.dies_per_node}, at most 1023")
    for name in ("put_latency_ps", "request_latency_ps", "response_latency_ps", "ack_latency_ps"):
        if len(getattr(cfg, name)) != 4 or min(getattr(cfg, name)) < 0 or max(getattr(cfg, name)) > LIMIT_PS:
            raise UsageError(f"{name} must be four times of at least 0 ps, is {getattr(cfg, name)}")
    for name in ("write_bytes_per_s", "read_bytes_per_s"):
        if len(getattr(cfg, name)) != 4 or min(getattr(cfg, name)) < 1 or max(getattr(cfg, name)) > 1 << 62:
            raise UsageError(f"{name} must be four bandwidths of at least 1 B/s, is {getattr(cfg, name)}")
    positive = (
        "call_price_ps",
        "poll_price_ps",
        "poll_max_polls",
        "words_per_rank",
        "channels",
        "log_entries",
    )
    for name in positive:
        if getattr(cfg, name) < 1:
            raise UsageError(f"{name} is {getattr(cfg, name)}, must be at least 1")
    if cfg.poll_price_ps * cfg.poll_max_polls > LIMIT_PS:
        raise UsageError("poll_price_ps * poll_max_polls is more than 2**60 ps")
    if cfg.chain_steps < 0 or cfg.trace_records < 0 or cfg.livelock_polls < 1 or cfg.wall_deadline_s <= 0:
        raise UsageError(
            "chain_steps and trace_records must be at least 0, livelock_polls and wall_deadline_s positive"
        )


def config_numbers(cfg: EngineConfig) -> Int64Array:
    """The configuration as the layout's config_t."""
    flat = [cfg.num_ranks, cfg.dies_per_chip, cfg.dies_per_node]
    for four in (
        cfg.put_latency_ps,
        cfg.request_latency_ps,
        cfg.response_latency_ps,
        cfg.ack_latency_ps,
        cfg.write_bytes_per_s,
        cfg.read_bytes_per_s,
    ):
        flat.extend(four)
    flat += [cfg.call_price_ps, cfg.poll_price_ps, cfg.poll_max_polls, cfg.words_per_rank, cfg.channels]
    flat += [cfg.chain_steps, cfg.log_entries, int(cfg.lookahead), max(1, int(cfg.wall_deadline_s * 1000))]
    flat += [int(cfg.keep_going), cfg.livelock_polls, cfg.trace_records, cfg.node_bytes]
    return np.array(flat, dtype=np.int64)


def link_class(cfg: EngineConfig, a: int, b: int) -> int:
    """Class of the path between two ranks."""
    if a == b:
        return api.SELF
    if a // cfg.dies_per_chip == b // cfg.dies_per_chip:
        return api.CHIP
    return api.NODE if a // cfg.dies_per_node == b // cfg.dies_per_node else api.POD


class BaseEngine:
    """Checks, then hands over to the `_primitives` of an implementation. `api.Engine` documents the calls."""

    def __init__(self, cfg: EngineConfig, rank: int) -> None:
        check_config(cfg)
        if not 0 <= rank < cfg.num_ranks:
            raise UsageError(f"rank {rank} is not one of the {cfg.num_ranks} ranks")
        self.config = cfg
        self.rank = rank
        self.num_ranks = cfg.num_ranks
        self._open: dict[int, int] = {}  # channel -> slot of an exchange posted and not yet waited for
        self._finished = False
        self._channels = cfg.channels

    # ---- checks
    def _rank_arg(self, call: str, peer: int) -> None:
        if not 0 <= peer < self.num_ranks:
            raise UsageError(
                f"{call}: rank {peer} does not exist, ranks are 0 to {self.num_ranks - 1}", rank=self.rank
            )

    def _word_arg(self, call: str, word: int) -> None:
        if not 0 <= word < self.config.words_per_rank:
            last = self.config.words_per_rank - 1
            raise UsageError(f"{call}: word {word} does not exist, words are 0 to {last}", rank=self.rank)

    def _amount(self, call: str, name: str, value: int, limit: int = LIMIT_PS) -> None:
        if not 0 <= value <= limit:
            raise UsageError(f"{call}: {name} is {value}, must be 0 to {limit}", rank=self.rank)

    def _choice(self, call: str, name: str, value: int, allowed: Sequence[int]) -> None:
        if value not in allowed:
            raise UsageError(f"{call}: {name} is {value}, must be one of {list(allowed)}", rank=self.rank)

    def _alive(self, call: str) -> None:
        if self._finished:
            raise UsageError(f"{call}: rank {self.rank} has finished", rank=self.rank)

    # ---- calls
    def link_class(self, peer: int) -> int:
        self._rank_arg("link_class", peer)
        return link_class(self.config, self.rank, peer)

    def compute(self, ps: int, kind: int = 0, publish: bool = True) -> None:
        if self._finished or not 0 <= ps <= LIMIT_PS:
            self._alive("compute")
            self._amount("compute", "ps", ps)
        code = self._compute(ps, kind, publish)
        if code:
            self._raise(code)

    def sleep(self, ps: int) -> None:
        self._alive("sleep")
        self._amount("sleep", "ps", ps)
        self._end(self._compute(ps, 0, True))

    def put(
        self,
        dst: int,
        charged_bytes: int,
        log: LogRef | None = None,
        word: int | None = None,
        op: int = api.SET,
        value: int = 0,
    ) -> None:
        self._alive("put")
        self._rank_arg("put", dst)
        self._amount("put", "charged_bytes", charged_bytes, 1 << 50)
        if word is None:
            self._put(dst, charged_bytes, log, 0, 0, 0)
            return
        self._word_arg("put", word)
        self._choice("put", "op", op, (api.SET, api.ADD))
        self._put(dst, charged_bytes, log, op, word, wrap(value))

    def get(self, src: int, charged_bytes: int, log: LogRef | None = None) -> int:
        self._alive("get")
        self._rank_arg("get", src)
        self._amount("get", "charged_bytes", charged_bytes, 1 << 50)
        return self._get(src, charged_bytes, log)

    def wait_get(self, handle: int) -> None:
        self._block("wait_get", W_GET, handle)

    def atomic(self, dst: int, word: int, op: int, value: int, compare: int = 0) -> int:
        self._alive("atomic")
        self._rank_arg("atomic", dst)
        self._word_arg("atomic", word)
        self._choice("atomic", "op", op, (api.ATOMIC_ADD, api.SWAP, api.CAS))
        self._end(self._atomic(dst, word, op, wrap(value), wrap(compare)))
        return self._result

    def fence(self) -> None:
        self._alive("fence")
        self._fence()

    def quiet(self) -> None:
        self._block("quiet", W_QUIET)

    def flush(self) -> None:
        self._alive("flush")
        self._end(self._flush())

    def wait(
        self, conditions: Sequence[tuple[int, int, int]], any_: bool = False, timeout_ps: int | None = None
    ) -> int:
        self._alive("wait")
        if not 1 <= len(conditions) <= self.config.words_per_rank:
            raise UsageError(
                f"wait: {len(conditions)} conditions, must be 1 to {self.config.words_per_rank}",
                rank=self.rank,
            )
        for word, cmp, _ in conditions:
            self._word_arg("wait", word)
            self._choice("wait", "comparison", cmp, range(6))
        if timeout_ps is not None:
            self._amount("wait", "timeout_ps", timeout_ps)
        checked = [(int(word), int(cmp), wrap(value)) for word, cmp, value in conditions]
        self._end(self._wait(checked, any_, -1 if timeout_ps is None else timeout_ps))
        return self._result

    def test(self, word: int, cmp: int, value: int) -> bool:
        self._word_arg("test", word)
        self._choice("test", "comparison", cmp, range(6))
        return bool(self._block("test", W_TEST, word, cmp, wrap(value)))

    def read(self, word: int) -> int:
        self._word_arg("read", word)
        return self._block("read", W_READ, word)

    def observe(self) -> None:
        self._block("observe", W_OBSERVE)

    def _block(self, call: str, wait: int, a: int = 0, b: int = 0, c: int = 0) -> int:
        self._alive(call)
        self._end(self._enter_wait(wait, a, b, c))
        return self._result

    # ---- exchanges
    def _explain_row(self, call: str, channel: int, row_bytes: int, meta_bytes: int) -> None:
        self._alive(call)
        self._choice(call, "channel", channel, range(self.config.channels))
        self._amount(call, "row_bytes", row_bytes, ROW_LIMIT)
        self._amount(call, "meta_bytes", meta_bytes, ROW_LIMIT)
        if channel in self._open:
            raise UsageError(
                f"{call}: channel {channel} has an open exchange, wait for it first", rank=self.rank
            )

    def _explain_chain(self, chain: Sequence[ChainStep]) -> None:
        if len(chain) > self.config.chain_steps:
            raise UsageError(
                f"exchange: the chain has {len(chain)} steps, at most {self.config.chain_steps}",
                rank=self.rank,
            )
        for step in chain:
            self._choice("exchange: chain", "channel", step.channel, range(self.config.channels))
            if step.channel in self._open or min(step) < 0:
                raise UsageError(f"exchange: {step} has an open channel or a negative number", rank=self.rank)

    def _copy_row(self, name: str, values: Any, into: Int32Array) -> None:
        """Numbers of a caller's array, checked."""
        shape = np.shape(values)
        if shape != (self.num_ranks,):
            raise UsageError(
                f"exchange: {name} has shape {shape}, must be ({self.num_ranks},): one per rank",
                rank=self.rank,
            )
        try:
            np.copyto(into, values, casting="same_kind")
        except TypeError:
            kind = np.asarray(values).dtype
            raise UsageError(f"exchange: {name} is {kind}, must be integers", rank=self.rank) from None

    def exchange(
        self,
        channel: int,
        counts: Int32Array | None,
        row_bytes: int,
        meta_bytes: int,
        pull_start_ps: int = 0,
        record_ps: int = 0,
        chain: Sequence[ChainStep] = (),
        offsets: Int32Array | None = None,
        tag: int = 0,
    ) -> ExchangeResult:
        if (
            self._finished
            or channel in self._open
            or not 0 <= channel < self._channels
            or not 0 <= row_bytes <= ROW_LIMIT
            or not 0 <= meta_bytes <= ROW_LIMIT
        ):
            self._explain_row("exchange", channel, row_bytes, meta_bytes)
        if not 0 <= pull_start_ps <= LIMIT_PS or not 0 <= record_ps <= LIMIT_PS:
            self._amount("exchange", "pull_start_ps", pull_start_ps)
            self._amount("exchange", "record_ps", record_ps)
        if chain:
            self._explain_chain(chain)
        code = self._exchange(
            channel, counts, offsets, row_bytes, meta_bytes, tag, pull_start_ps, record_ps, chain
        )
        if code:
            self._refuse_row(code)
        return self._exchanged()

    def _refuse_row(self, code: int) -> None:
        if code < 0:
            raise UsageError(f"exchange: counts[{-code - 1}] is negative, at least 0", rank=self.rank)
        self._raise(code)

    def exchange_post(
        self,
        channel: int,
        counts: Int32Array | None,
        row_bytes: int,
        meta_bytes: int,
        offsets: Int32Array | None = None,
        tag: int = 0,
    ) -> None:
        self._explain_row("exchange_post", channel, row_bytes, meta_bytes)
        code = self._exchange_post(channel, counts, offsets, row_bytes, meta_bytes, tag)
        if code:
            self._refuse_row(code)
        self._open[channel] = self._slot

    def exchange_wait(self, channel: int, pull_start_ps: int = 0, record_ps: int = 0) -> ExchangeResult:
        self._alive("exchange_wait")
        self._amount("exchange_wait", "pull_start_ps", pull_start_ps)
        self._amount("exchange_wait", "record_ps", record_ps)
        if channel not in self._open:
            raise UsageError(f"exchange_wait: no exchange is open on channel {channel}", rank=self.rank)
        self._end(self._exchange_wait(channel, self._open.pop(channel), pull_start_ps, record_ps))
        return self._exchanged()

    # ---- the end
    def finish(self) -> None:
        if not self._finished:
            self._finished = True
            self._finish()

    def mark_dead(self, rank: int) -> None:
        self._rank_arg("mark_dead", rank)
        self._mark_dead(rank)

    def digest(self, rank: int) -> bytes:
        self._rank_arg("digest", rank)
        return hashlib.blake2b(self._hashes(rank).astype("<u8").tobytes(), digest_size=32).digest()

    def _end(self, code: int) -> None:
        if code:
            self._raise(code)

    def _raise(self, code: int) -> NoReturn:
        culprit = self._culprit()
        if code == FATAL_ABORT:
            raise InternalError(f"rank {culprit} ended the run: {self._reason()}", rank=self.rank)
        if code in OVERFLOWS:
            raise InternalError(OVERFLOWS[code].format(rank=culprit), rank=culprit)
        if code == FATAL_DIRTY:
            raise RankLostError(
                f"rank {culprit} died inside the engine; its state is half changed", [culprit]
            )
        waiters = self._waiters()
        text = describe(waiters)
        dead = self.dead_ranks()
        if code == FATAL_LOST or (code == FATAL_DEADLOCK and dead):
            raise RankLostError(f"lost: ranks {dead}. Blocked: {text}", dead, waiters=tuple(waiters))
        if code == FATAL_WALL:
            limit = self.config.wall_deadline_s
            raise WallDeadlineError(
                f"no rank entered the engine for {limit:g} s of host time; still running: {self._running()}. "
                f"Blocked: {text}",
                waiters=tuple(waiters),
            )
        why = "nobody runs and nothing is under way" if code == FATAL_DEADLOCK else "everybody polls in vain"
        raise DeadlockError(f"deadlock, {why}: {text}", waiters, livelock=code == FATAL_LIVELOCK)

    # ---- primitives of an implementation
    _result: int
    _slot: int

    def _compute(self, ps: int, kind: int, publish: bool) -> int:
        raise NotImplementedError

    def _put(self, dst: int, nbytes: int, log: LogRef | None, op: int, word: int, value: int) -> None:
        raise NotImplementedError

    def _get(self, src: int, nbytes: int, log: LogRef | None) -> int:
        raise NotImplementedError

    def _atomic(self, dst: int, word: int, op: int, value: int, compare: int) -> int:
        raise NotImplementedError

    def _fence(self) -> None:
        raise NotImplementedError

    def _flush(self) -> int:
        raise NotImplementedError

    def _wait(self, conditions: list[tuple[int, int, int]], any_: bool, timeout_ps: int) -> int:
        raise NotImplementedError

    def _enter_wait(self, wait: int, a: int, b: int, c: int) -> int:
        raise NotImplementedError

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
        raise NotImplementedError

    def _exchange_post(
        self,
        channel: int,
        counts: Int32Array | None,
        offsets: Int32Array | None,
        row_bytes: int,
        meta_bytes: int,
        tag: int,
    ) -> int:
        raise NotImplementedError

    def _exchange_wait(self, channel: int, slot: int, pull_start_ps: int, record_ps: int) -> int:
        raise NotImplementedError

    def _exchanged(self) -> ExchangeResult:
        raise NotImplementedError

    def _finish(self) -> None:
        raise NotImplementedError

    def _mark_dead(self, rank: int) -> None:
        raise NotImplementedError

    def dead_ranks(self) -> list[int]:
        raise NotImplementedError

    def _hashes(self, rank: int) -> Int64Array:
        raise NotImplementedError

    def _culprit(self) -> int:
        raise NotImplementedError

    def _reason(self) -> str:
        raise NotImplementedError

    def _waiters(self) -> list[Waiter]:
        raise NotImplementedError

    def _running(self) -> list[int]:
        raise NotImplementedError


def wrap(value: int) -> int:
    """The value as a signed 64-bit word."""
    return (int(value) + (1 << 63)) % (1 << 64) - (1 << 63)


def describe(waiters: Sequence[Waiter], most: int = 12) -> str:
    """Blocked ranks in words, those in the same wait together, at most `most` groups."""
    groups: dict[tuple[str, str, str], list[Waiter]] = {}
    for w in waiters:
        missing = f", not come: {ranges(w['waits_for'])}" if w["waits_for"] else ""
        groups.setdefault((w["operation"], w["detail"], missing), []).append(w)
    parts = []
    for (operation, detail, missing), members in list(groups.items())[:most]:
        since = sorted(w["since_ps"] for w in members)
        span = f"{since[0]} ps" if since[0] == since[-1] else f"{since[0]} to {since[-1]} ps"
        parts.append(f"{ranges([w['rank'] for w in members])} in {operation}{detail} since {span}{missing}")
    if len(groups) > most:
        parts.append(f"and {len(groups) - most} other waits")
    return "; ".join(parts) or "nobody is blocked"


def ranges(ranks: Sequence[int], most: int = 8) -> str:
    """Ranks in words: 'rank 3', 'ranks 0-5, 9'."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs[:most])
    more = f" and {sum(b - a + 1 for a, b in runs[most:])} more" if len(runs) > most else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {text}{more}"


def make_waiter(
    rank: int, wait: int, args: tuple[int, int, int], since: int, conditions: Any, any_: bool, missing: Any
) -> Waiter:
    """Say what a blocked rank waits for. missing: ranks that have not posted its exchange."""
    a, b, c = args
    detail = {
        W_GET: f"(handle {a})",
        W_ATOMIC: f"(rank {a}, word {b})",
        W_READ: f"(word {a})",
        W_TEST: f"(word {a} {COMPARISONS[b % 6]} {c})",
        W_POLL: f"(word {a} {COMPARISONS[b % 6]} {c})",
        W_EXCHANGE: f"(channel {a})",
    }.get(wait, "")
    if wait == W_WAIT:
        joint = " or " if any_ else " and "
        detail = "(" + joint.join(f"word {w} {COMPARISONS[k]} {v}" for w, k, v in conditions) + ")"
    waits_for = missing if wait == W_EXCHANGE else [a] if wait == W_ATOMIC else None
    return Waiter(
        rank=rank, operation=OPERATIONS[wait], since_ps=since, detail=detail, waits_for=waits_for, wait=wait
    )
