"""Argument checks: one clear line per mistake, before any time passes."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from emulator.engine.api import (
    ADD,
    ATOMIC_XOR,
    LOG_PUT,
    LOG_RMW,
    LOG_SNAPSHOT,
    NO_OP,
    ChainStep,
    EngineConfig,
    Int32Array,
)
from emulator.engine.codes import LIMIT_PS, ROW_LIMIT
from emulator.engine.posts import (
    DONE_ON_ERROR,
    DONE_SENT,
    FOR_EVER,
    K_CLOSE,
    K_GET,
    K_PUT,
    K_SEND,
    K_WORD,
    NUM_UNITS,
    POST_DTYPE,
    Posts,
)
from emulator.engine.primitives import Primitives
from emulator.engine.schedules import STEP_DTYPE, Sends, Steps
from emulator.errors import UsageError


def post_limits(cfg: EngineConfig, posts: Posts) -> Iterator[tuple[str, Any, Any]]:
    """What each field of a post may be: (field, least, most), numbers or arrays [count]."""
    kind, plenty = posts["kind"], (1 << 31) - 1
    put, words = (kind == K_PUT) | (kind == K_SEND), cfg.words_per_rank - 1
    yield "kind", K_PUT, K_CLOSE
    for field in ("nbytes", "pull_bytes"):
        yield field, 0, 1 << 50
    for field in ("start_ps", "unit_ps", "tail_ps", "done_ps", "region_bytes"):
        yield field, 0, LIMIT_PS
    for field in ("rnr_ps", "lost_ps"):
        yield field, 1, LIMIT_PS
    yield "region_offset", -LIMIT_PS, LIMIT_PS
    yield "unit", -1, NUM_UNITS - 1
    yield "plane", 0, len(cfg.planes)
    yield "peer", 0, cfg.num_ranks - 1
    for field in ("stream", "rd_below", "lost_retries"):
        yield field, 0, plenty
    for field in ("fence", "capacity"):
        yield field, 0, (1 << 63) - 1
    yield "order", 0, 15
    yield "op", 0, np.where(kind == K_WORD, ATOMIC_XOR, ADD)
    yield "word", 0, words
    yield "note", 0, 3
    yield "done", 0, np.where(put & (posts["pull_bytes"] <= 0), DONE_SENT, DONE_ON_ERROR)
    log_kind = posts["log_kind"]
    base = np.where((log_kind >= 0) & (log_kind < 1 << 20), log_kind & 7, -1)
    read = (kind == K_GET) & ((base == LOG_SNAPSHOT) | (base == LOG_RMW))
    yield "log_kind", np.where(read, log_kind, 0), np.where(read, log_kind, np.where(put, LOG_PUT, 0))
    for field in ("region_word", "state_word"):
        yield field, -1, plenty
    yield "rnr_retries", -1, FOR_EVER
    yield "source", -1, cfg.num_ranks - 1


def step_limits(cfg: EngineConfig, steps: Steps, num_sends: int) -> Iterator[tuple[str, int, Any]]:
    """What each field of a step may be: (field, least, most), numbers or arrays [count]."""
    yield "compute_ps", 0, LIMIT_PS
    yield "first", 0, num_sends
    yield "count", 0, num_sends - np.clip(steps["first"].astype(np.int64), 0, num_sends)
    yield "word", -1, cfg.words_per_rank
    yield "cmp", 0, 5


def send_limits(cfg: EngineConfig) -> Iterator[tuple[str, int, Any]]:
    """The same for a put of a schedule."""
    yield "nbytes", 0, 1 << 50
    yield "start_ps", 0, LIMIT_PS
    yield "peer", 0, cfg.num_ranks - 1
    yield "word", 0, cfg.words_per_rank - 1
    yield "op", NO_OP, ADD
    yield "plane", 0, len(cfg.planes)


def _kind(rows: Any) -> str:
    return f"{rows.dtype} {rows.shape}" if isinstance(rows, np.ndarray) else type(rows).__name__


class Checks(Primitives):
    """What may be passed to a call."""

    _open: dict[int, int]  # channel -> slot of an exchange posted and not yet waited for
    _finished: bool

    def _rank_arg(self, call: str, peer: int) -> None:
        if not 0 <= peer < self.num_ranks:
            raise UsageError(
                f"{call}: rank {peer} does not exist, ranks are 0 to {self.num_ranks - 1}", rank=self.rank
            )

    def _word_arg(self, call: str, word: int, mine: bool = False) -> None:
        """mine: a word of this rank that is only looked at, so the inbox word is allowed."""
        if not 0 <= word < self.config.words_per_rank + mine:
            last = self.config.words_per_rank - 1
            raise UsageError(f"{call}: word {word} does not exist, words are 0 to {last}", rank=self.rank)

    def _amount(self, call: str, name: str, value: int, limit: int = LIMIT_PS) -> int:
        """The value as Python's own integer; NumPy's are taken too. Raises UsageError: no such amount."""
        if not isinstance(value, int | np.integer):
            raise UsageError(f"{call}: {name} is {value!r}, must be a whole number", rank=self.rank)
        if not 0 <= value <= limit:
            raise UsageError(f"{call}: {name} is {value}, must be 0 to {limit}", rank=self.rank)
        return int(value)

    def _choice(self, call: str, name: str, value: int, allowed: Sequence[int]) -> None:
        if value not in allowed:
            raise UsageError(f"{call}: {name} is {value}, must be one of {list(allowed)}", rank=self.rank)

    def _alive(self, call: str) -> None:
        if self._finished:
            raise UsageError(f"{call}: rank {self.rank} has finished", rank=self.rank)

    def _explain_row(self, call: str, channel: int, row_bytes: int, meta_bytes: int) -> None:
        self._alive(call)
        self._choice(call, "channel", channel, range(self.config.channels))
        self._amount(call, "row_bytes", row_bytes, ROW_LIMIT)
        self._amount(call, "meta_bytes", meta_bytes, ROW_LIMIT)
        if channel in self._open:
            raise UsageError(
                f"{call}: channel {channel} has an open exchange, wait for it first", rank=self.rank
            )

    def _members_arg(self, channel: int, members: Any) -> Int32Array:
        """The members of a group, checked."""
        self._alive("open_group")
        self._choice("open_group", "channel", channel, range(self.config.channels))
        given = np.asarray(members)
        if given.ndim != 1 or not given.size or given.dtype.kind not in "iu":
            raise UsageError(
                f"open_group: members must be a row of ranks, is {given.dtype} {list(given.shape)}",
                rank=self.rank,
            )
        outside = given[(given < 0) | (given >= self.num_ranks)]
        if outside.size:
            self._rank_arg("open_group", int(outside[0]))
        ranks, counts = np.unique(given, return_counts=True)
        if counts.max() > 1:
            raise UsageError(
                f"open_group: rank {ranks[counts.argmax()]} is there {counts.max()} times", rank=self.rank
            )
        if self.rank not in ranks:
            raise UsageError(
                f"open_group: rank {self.rank} opens a group it is not of; members of channel {channel}: "
                f"{given.tolist()[:8]}{'...' if given.size > 8 else ''}",
                rank=self.rank,
            )
        if channel in self._open:
            raise UsageError(
                f"open_group: channel {channel} has an open exchange, wait for it first", rank=self.rank
            )
        return np.ascontiguousarray(given, dtype=np.int32)

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

    def _is_batch(self, posts: Posts) -> bool:
        return self._is_rows(posts, POST_DTYPE)

    def _is_rows(self, rows: Any, dtype: Any) -> bool:
        return (
            isinstance(rows, np.ndarray)
            and rows.dtype == dtype
            and rows.ndim == 1
            and rows.flags.c_contiguous
        )

    def _explain_batch(self, posts: Posts, step_ps: int) -> None:
        self._alive("post")
        self._amount("post", "step_ps", step_ps)
        raise UsageError(f"post: needs a contiguous row of POST_DTYPE, got {_kind(posts)}", rank=self.rank)

    def _explain_schedule(self, steps: Any, sends: Any, step_ps: int, timeout_ps: int) -> None:
        self._alive("schedule")
        self._amount("schedule", "step_ps", step_ps)
        self._amount("schedule", "timeout_ps", timeout_ps)
        name, rows = ("SEND_DTYPE", sends) if self._is_rows(steps, STEP_DTYPE) else ("STEP_DTYPE", steps)
        raise UsageError(f"schedule: needs a contiguous row of {name}, got {_kind(rows)}", rank=self.rank)

    def _explain_steps(self, steps: Steps, sends: Sends) -> None:
        """Raise for the first row and field that is out of range. (schedule.c checks the same.)"""
        for rows, what, limits in (
            (steps, "step", step_limits(self.config, steps, len(sends))),
            (sends, "send", send_limits(self.config)),
        ):
            for field, low, high in limits:
                bad = np.flatnonzero((rows[field] < low) | (rows[field] > high))
                if len(bad):
                    row = int(bad[0])
                    most = int(np.broadcast_to(high, len(rows))[row])
                    raise UsageError(
                        f"schedule: {field} of {what} {row} is {rows[field][row]}, must be {low} to {most}",
                        rank=self.rank,
                    )

    def _explain_posts(self, posts: Posts) -> None:
        """Raise for the first row and field that is out of range. (posts.c checks the same.)"""
        for field, low, high in post_limits(self.config, posts):
            values = posts[field]
            bad = np.flatnonzero((values < low) | (values > high))
            if len(bad):
                row = int(bad[0])
                least, most = (int(np.broadcast_to(x, len(posts))[row]) for x in (low, high))
                raise UsageError(
                    f"post: {field} of row {row} is {values[row]}, must be {least} to {most}", rank=self.rank
                )

    def _copy_row(self, name: str, values: Any, into: Int32Array) -> None:
        """Numbers of a caller's array, checked."""
        if isinstance(values, np.ndarray) and values.dtype == np.int32 and values.shape == into.shape:
            into[:] = values
            return
        shape = np.shape(values)
        if shape != into.shape:
            raise UsageError(
                f"exchange: {name} has shape {shape}, must be {into.shape}: one per rank",
                rank=self.rank,
            )
        try:
            np.copyto(into, values, casting="same_kind")
        except TypeError:
            kind = np.asarray(values).dtype
            raise UsageError(f"exchange: {name} is {kind}, must be integers", rank=self.rank) from None
