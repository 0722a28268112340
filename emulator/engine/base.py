"""The calls of a rank as both implementations share them: check, hand over, raise what went wrong."""

import hashlib
import zlib
from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from emulator.engine import api
from emulator.engine.api import HERE, ChainStep, EngineConfig, ExchangeResult, Int32Array, Int64Array, LogRef
from emulator.engine.checks import Checks
from emulator.engine.codes import (
    INTERRUPTED,
    LIMIT_PS,
    NOT_A_MEMBER,
    RECORD_LIMIT,
    ROW_LIMIT,
    W_GET,
    W_OBSERVE,
    W_QUIET,
    W_READ,
    W_TEST,
)
from emulator.engine.config import check_config, link_class, wrap
from emulator.engine.posts import Inbox, Posts
from emulator.engine.reports import raise_fatal
from emulator.engine.schedules import SEND_DTYPE, STEP_DTYPE, Sends, Steps
from emulator.errors import InternalError, UsageError


class BaseEngine(Checks):
    """Checks, then hands over to the primitives of an implementation. `api.Engine` documents the calls."""

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
        self._paced, self._measured = cfg.wall.dilation_ppm > 0, cfg.wall.measured_ppm > 0
        self._groups: dict[int, int] = {}  # channel -> size of the group that I opened there

    # ---- calls
    def link_class(self, peer: int) -> int:
        self._rank_arg("link_class", peer)
        return link_class(self.config, self.rank, peer)

    def compute(self, ps: int, kind: int = 0, publish: bool = True) -> None:
        if type(ps) is not int or self._finished or not 0 <= ps <= LIMIT_PS:
            self._alive("compute")
            ps = self._amount("compute", "ps", ps)
        if self._measured:
            self._measure()
            return
        code = self._compute(ps, kind, publish)
        if code:
            self._raise(code)

    def sleep(self, ps: int) -> None:
        self._alive("sleep")
        ps = self._amount("sleep", "ps", ps)
        self._end(self._compute(ps, 0, True))
        if self._paced:
            self._end(self._pace())

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

    def post(self, posts: Posts, step_ps: int = 0) -> int:
        if self._finished or not self._is_batch(posts) or not 0 <= step_ps <= LIMIT_PS:
            self._explain_batch(posts, step_ps)
        if not self._checks_posts:
            self._explain_posts(posts)
        first = self._post_all(posts, step_ps)
        if first < 0:
            self._explain_posts(posts)
            raise InternalError(f"post: row {-first - 1} was refused, nobody knows why", rank=self.rank)
        return first

    def schedule(self, steps: Steps, sends: Sends, step_ps: int = 0, timeout_ps: int | None = None) -> int:
        limit = 0 if timeout_ps is None else timeout_ps
        rows = self._is_rows(steps, STEP_DTYPE) and self._is_rows(sends, SEND_DTYPE)
        if self._finished or not rows or not (0 <= step_ps <= LIMIT_PS and 0 <= limit <= LIMIT_PS):
            self._explain_schedule(steps, sends, step_ps, limit)
        code = self._schedule(steps, sends, step_ps, -1 if timeout_ps is None else timeout_ps)
        if code < 0:
            self._explain_steps(steps, sends)
            raise InternalError(f"schedule: row {-code - 1} was refused, nobody knows why", rank=self.rank)
        if code:
            self._raise(code)
        return self._done

    def retire(self, stream: int) -> None:
        self._alive("retire")
        self._retire(stream)

    def inbox(self) -> Inbox:
        return self._take_inbox()

    @property
    def inbox_word(self) -> int:
        return self.config.words_per_rank

    @property
    def last_seq(self) -> int:
        return self._seq

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
        if not 1 <= len(conditions) <= self.config.conditions:
            raise UsageError(
                f"wait: {len(conditions)} conditions, must be 1 to {self.config.conditions}",
                rank=self.rank,
            )
        for word, cmp, _ in conditions:
            if cmp == HERE:
                self._open_arg("wait", word)
                continue
            self._word_arg("wait", word, mine=True)
            self._choice("wait", "comparison", cmp, range(6))
        if timeout_ps is not None:
            self._amount("wait", "timeout_ps", timeout_ps)
        checked = [
            (int(word), int(cmp), self._open[word] if cmp == HERE else wrap(value))
            for word, cmp, value in conditions
        ]
        self._end(self._wait(checked, any_, -1 if timeout_ps is None else timeout_ps))
        return self._result

    def test(self, word: int, cmp: int, value: int) -> bool:
        self._word_arg("test", word, mine=True)
        self._choice("test", "comparison", cmp, range(6))
        return bool(self._block("test", W_TEST, word, cmp, wrap(value)))

    def read(self, word: int) -> int:
        self._word_arg("read", word, mine=True)
        return self._block("read", W_READ, word)

    def observe(self) -> None:
        self._block("observe", W_OBSERVE)

    def _block(self, call: str, wait: int, a: int = 0, b: int = 0, c: int = 0) -> int:
        self._alive(call)
        self._end(self._enter_wait(wait, a, b, c))
        return self._result

    # ---- exchanges
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
        record_bytes: Int64Array | None = None,
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
        if record_bytes is not None:
            self._check_sizes("exchange", channel, record_bytes)
        code = self._exchange(
            channel, counts, offsets, row_bytes, meta_bytes, tag, pull_start_ps, record_ps, chain
        )
        if code:
            self.refuse(code)
        return self._exchanged()

    def refuse(self, code: int) -> NoReturn:
        """Raise for what the code of an exchange says."""
        if code == NOT_A_MEMBER:
            raise UsageError(
                f"exchange: the channel is one of groups, and rank {self.rank} opened none there",
                rank=self.rank,
            )
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
        record_bytes: Int64Array | None = None,
    ) -> None:
        self._explain_row("exchange_post", channel, row_bytes, meta_bytes)
        if record_bytes is not None:
            self._check_sizes("exchange_post", channel, record_bytes)
        code = self._exchange_post(channel, counts, offsets, row_bytes, meta_bytes, tag)
        if code:
            self.refuse(code)
        self._open[channel] = self._slot

    def exchange_wait(self, channel: int, pull_start_ps: int = 0, record_ps: int = 0) -> ExchangeResult:
        self._alive("exchange_wait")
        self._amount("exchange_wait", "pull_start_ps", pull_start_ps)
        self._amount("exchange_wait", "record_ps", record_ps)
        self._open_arg("exchange_wait", channel)
        self._end(self._exchange_wait(channel, self._open.pop(channel), pull_start_ps, record_ps))
        return self._exchanged()

    def _open_arg(self, call: str, channel: int) -> None:
        if channel not in self._open:
            raise UsageError(f"{call}: no exchange is open on channel {channel}", rank=self.rank)

    def open_group(self, channel: int, members: Int32Array) -> None:
        ranks = self._members_arg(channel, members)
        n = self.num_ranks
        whole = len(ranks) == n and bool((ranks == np.arange(n)).all())
        check = 0 if whole else zlib.crc32(ranks.tobytes()) + 1
        if not self._open_group(channel, ranks, check):
            raise UsageError(
                f"open_group: an exchange of channel {channel} is still under way; its ranks have to meet "
                "elsewhere first",
                rank=self.rank,
            )
        self._groups[channel] = len(ranks)

    def _group_size(self, channel: int) -> int:
        return self._groups.get(channel, self.num_ranks)

    def _check_sizes(self, call: str, channel: int, sizes: Int64Array) -> None:
        """Hand the sizes of a row's records over."""
        g = self._group_size(channel)
        if not isinstance(sizes, np.ndarray) or sizes.dtype != np.int64 or sizes.shape != (g,):
            raise UsageError(
                f"{call}: record_bytes must be int64 [{g}], one per rank, is "
                f"{getattr(sizes, 'dtype', type(sizes).__name__)} {list(np.shape(sizes))}",
                rank=self.rank,
            )
        bad = self._take_sizes(np.ascontiguousarray(sizes))
        if bad:
            raise UsageError(
                f"{call}: record_bytes[{-bad - 1}] is {sizes[-bad - 1]}, must be 0 to {RECORD_LIMIT}",
                rank=self.rank,
            )

    # ---- the wall clock
    def start_clock(self) -> None:
        if self._paced:
            self._end(self._start_clock(hold=False))

    def hold_clock(self) -> None:
        if self._paced:
            self._end(self._start_clock(hold=True))

    def wall(self, rank: int) -> tuple[Int64Array, Int64Array]:
        self._rank_arg("wall", rank)
        return self._wall(rank)

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
        if code == INTERRUPTED:
            self._open.clear()  # what was posted there is over
        raise_fatal(self, code)
