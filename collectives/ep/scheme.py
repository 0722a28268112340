"""One interface over six ways of expert parallelism, for tests, benchmarks and calibration.

    ep = ExpertParallel(device, num_experts=256, hidden=64, max_tokens=128, topk=8, scheme="cann")
    handle = ep.dispatch(x, topk_idx)             # rows for my experts, and what combine needs
    out = ep.combine(handle, experts(handle.rows), weights)

All schemes give the same rows in the same order and, with the same kinds of rows, the same bits; they differ
in what the machine is charged and in who waits for whom. `Buffer` is DeepEP's face of the same thing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from collectives.ep import layout as lay
from collectives.ep import wire
from collectives.ep.area import EpArea, Ranks, ranks_of
from collectives.ep.facts import Limit, check_plain, facts
from collectives.ep.layout import Grouped
from collectives.ep.moves import COMBINE, DISPATCH, Moves, Route, Sent
from collectives.ep.side import Call
from collectives.ep.traffic import LEVELS, check_planes, check_scheme, whole
from collectives.moe import META_BYTES, EpCosts, OperationCosts
from emulator import Device
from emulator.errors import StateError, UsageError
from emulator.rows import HEADER_BYTES

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]


class EpHandle(NamedTuple):
    """What a dispatch brought.

    rows: float32 [P, hidden] by (local expert, source rank, token, k). rows_per_expert: int64 [slots].
    route, place, batch: what the combine needs.
    """

    rows: Float32
    rows_per_expert: Int64
    route: Route
    place: Int32
    batch: int


class Posted(NamedTuple):
    """An operation whose record is out and whose rows are not in."""

    sent: Sent
    batch: int
    handle: EpHandle | None = None
    weights: Float32 | None = None


class ExpertParallel:
    """Dispatch and combine of one group by one scheme.

    Args:
        group: a device (all its ranks), or a `collectives.groups.Group`.
        num_experts: of the group; each rank holds num_experts / ranks of them, in order.
        hidden: values of a row. max_tokens: most tokens a rank dispatches. topk: choices of a token.
        scheme: one of `traffic.SCHEMES`.
        kind, back_kind: how rows travel out and back, see `wire`.
        dispatch_costs, combine_costs: what is charged where a call does not say (`collectives.libraries`);
            by default real row bytes and 32-byte records only.
        max_rows: most rows a rank can hold, equal on all; by default all that can happen.
        micro_batches: how many may be in flight. planes: plane of pushed rows by link class.

    Raises:
        UsageError: bad sizes, no room, or ranks that ask for other sizes. Collective: costs a barrier.
    """

    def __init__(
        self, group: Any, num_experts: int, hidden: int, max_tokens: int, topk: int, scheme: str = "xccl", *,
        kind: str = "float32", back_kind: str = "float32", dispatch_costs: OperationCosts | None = None,
        combine_costs: OperationCosts | None = None, max_rows: int | None = None, micro_batches: int = 1,
        planes: tuple[int, int, int, int] = (0, 0, 0, 0),
    ) -> None:  # fmt: skip
        check_scheme(scheme)
        check_planes(planes)
        ranks = group_ranks(group)
        names = ("num_experts", "hidden", "max_tokens", "topk", "micro_batches", "max_rows")
        values = (num_experts, hidden, max_tokens, topk, micro_batches, 1 if max_rows is None else max_rows)
        for name, value in zip(names, values, strict=True):
            whole(f"expert parallel: {name}", value)
        self.slots = lay.slots_of(num_experts, ranks.size)
        self.num_experts, self.hidden, self.max_tokens, self.topk = num_experts, hidden, max_tokens, topk
        self.scheme, self.kind, self.back_kind = scheme, kind, back_kind
        self.level = LEVELS.get(scheme, "pair")
        most = ranks.size * max_tokens * topk
        self.max_rows = most if max_rows is None else min(max_rows, most)
        self._limit = Limit(self.max_rows, True, "max_rows") if self.max_rows < most else None
        self.words = wire.words(kind, hidden) + (0 if self.level == "pair" else topk)
        out = {"pair": max_tokens * topk, "rank": max_tokens * min(topk, ranks.size), "token": max_tokens}
        area = EpArea(
            ranks, _block(out[self.level], self.words), _block(self.max_rows, wire.words(back_kind, hidden)),
            micro_batches,
        )  # fmt: skip
        self.moves, self.ranks = Moves(area, scheme, num_experts, planes), ranks
        self._costs = (
            dispatch_costs or EpCosts(4 * wire.words(kind, hidden), meta_bytes=META_BYTES),
            combine_costs or EpCosts(4 * wire.words(back_kind, hidden), meta_bytes=META_BYTES),
        )

    # --- dispatch -----------------------------------------------------------------------------------------

    def dispatch(
        self, x: Float32, topk_idx: Int64, costs: OperationCosts | None = None, micro_batch: int = 0
    ) -> EpHandle:
        """Send tokens to the ranks of their experts and receive those of mine. All ranks call it; blocks.

        Args:
            x: float32 [T, hidden], T from 0 to `max_tokens`. topk_idx: int64 [T, topk]; -1 is unselected.
            costs: of this call. micro_batch: which buffers.

        Raises:
            UsageError: on every rank, if any rank's arguments are wrong or more than `max_rows` rows come to
                one; it names that rank.
            CollectiveMismatchError: ranks are not in the same call.
        """
        return self.finish_dispatch(self._dispatch(x, topk_idx, costs, micro_batch, post=False))

    def post_dispatch(
        self, x: Float32, topk_idx: Int64, costs: OperationCosts | None = None, micro_batch: int = 0
    ) -> Posted:
        """The first half of `dispatch`; does not block."""
        return self._dispatch(x, topk_idx, costs, micro_batch, post=True)

    def _dispatch(
        self, x: Float32, topk_idx: Int64, costs: OperationCosts | None, batch: int, post: bool
    ) -> Posted:
        self._idle(batch, DISPATCH)
        trouble = self._trouble(x, topk_idx)
        if trouble:
            x, topk_idx = np.empty((0, self.hidden), np.float32), np.empty((0, self.topk), np.int64)
        raw = wire.encode(x, self.kind)
        if self.level != "pair":
            raw = np.concatenate([raw, topk_idx.astype(np.int32).view(np.float32)], axis=1)
        call = Call(self._facts(DISPATCH, self.words), np.zeros(0, np.int32), trouble)
        route = self.moves.route(topk_idx, self.level)
        sent = self.moves.dispatch(
            raw, route, self.level, costs or self._costs[DISPATCH], call, batch=batch, post=post,
            limit=self._limit,
        )  # fmt: skip
        return Posted(sent, batch)

    def finish_dispatch(self, posted: Posted) -> EpHandle:
        """The second half: wait for all ranks, receive."""
        came = self.moves.finish_dispatch(posted.sent)
        route = came.route
        if self.level == "pair":
            rows = wire.decode(came.raw, self.kind, self.hidden)
            return EpHandle(rows, came.per_slot, route, came.place, posted.batch)
        body = wire.words(self.kind, self.hidden)
        ids = np.ascontiguousarray(came.raw[:, body:]).view(np.int32).astype(np.int64)
        source = np.repeat(np.arange(self.ranks.size), came.counts)
        pairs = lay.expand(ids, source, self.ranks.me * self.slots, self.slots, self.ranks.size)
        rows = wire.decode(np.ascontiguousarray(came.raw[:, :body]), self.kind, self.hidden)[pairs.record]
        route = route._replace(received=pairs.received)
        return EpHandle(rows, pairs.per_slot, route, pairs.place, posted.batch)

    # --- combine ------------------------------------------------------------------------------------------

    def combine(
        self, handle: EpHandle, y: Float32, weights: Float32, costs: OperationCosts | None = None
    ) -> Float32:
        """Send the experts' outputs home and add up mine, in the order of k, float32.

        Args:
            handle: of the dispatch. y: float32 [P, hidden], outputs in the order of `handle.rows`.
            weights: float32 [T, topk] of my tokens; those of unselected choices do not count.

        Returns:
            float32 [T, hidden]; 0 where a token has no expert.
        """
        return self.finish_combine(self._combine(handle, y, weights, costs, post=False))

    def post_combine(
        self, handle: EpHandle, y: Float32, weights: Float32, costs: OperationCosts | None = None
    ) -> Posted:
        """The first half of `combine`; does not block."""
        return self._combine(handle, y, weights, costs, post=True)

    def _combine(
        self, handle: EpHandle, y: Float32, weights: Float32, costs: OperationCosts | None, post: bool
    ) -> Posted:
        self._idle(handle.batch, COMBINE)
        trouble = check_plain("combine: y", y, (handle.rows.shape[0], self.hidden))
        tokens = handle.route.topk_idx.shape[0]
        trouble = trouble or check_plain("combine: weights", weights, (tokens, self.topk))
        raw = wire.encode(np.empty((0, self.hidden), np.float32) if trouble else y, self.back_kind)
        call = Call(self._facts(COMBINE, raw.shape[1]), np.zeros(0, np.int32), trouble)
        back = lay.grouped(handle.route.received, handle.place)
        sent = self.moves.combine(
            raw, back, handle.route, costs or self._costs[COMBINE], call, batch=handle.batch, post=post
        )
        return Posted(sent, handle.batch, handle, weights)

    def finish_combine(self, posted: Posted) -> Float32:
        """The second half of `combine`, with its result. Raises: UsageError, posted as a dispatch."""
        if posted.handle is None or posted.weights is None:
            raise UsageError("combine: this was posted as a dispatch; finish it with finish_dispatch")
        raw, order = self.moves.finish_combine(posted.sent, posted.handle.route.pairs)
        return lay.add_up(wire.decode(raw, self.back_kind, self.hidden), order, posted.weights)

    # --- checks -------------------------------------------------------------------------------------------

    def _facts(self, operation: int, words: int) -> tuple[int, ...]:
        return facts(
            operation, self.scheme, words, self.hidden, self.topk, self.num_experts, self.max_tokens,
            kind=self.kind, back_kind=self.back_kind, max_rows=self.max_rows,
        )  # fmt: skip

    def _trouble(self, x: Any, topk_idx: Any) -> str:
        """Why I cannot dispatch this, or ''."""
        if not isinstance(topk_idx, np.ndarray) or topk_idx.dtype != np.int64 or topk_idx.ndim != 2:
            return f"dispatch: topk_idx must be int64 [tokens, {self.topk}]"
        if topk_idx.shape[1] != self.topk:
            return f"dispatch: topk_idx must be int64 [tokens, {self.topk}], got {list(topk_idx.shape)}"
        if topk_idx.shape[0] > self.max_tokens:
            return f"dispatch: {topk_idx.shape[0]} tokens, the buffer takes max_tokens={self.max_tokens}"
        try:
            lay.check_experts(topk_idx, self.num_experts)
        except UsageError as error:
            return f"dispatch: {error}"
        return check_plain("dispatch: x", x, (topk_idx.shape[0], self.hidden))

    def _idle(self, batch: int, operation: int) -> None:
        sides: Sequence[Any] = self.moves.sides
        if not 0 <= batch < len(sides):
            raise UsageError(f"expert parallel: no micro-batch {batch}; it was made for {len(sides)}")
        if sides[batch][operation].busy:
            raise StateError(
                f"expert parallel: an operation of micro-batch {batch} is posted and not finished"
            )

    def release(self) -> None:
        """Give memory back; all ranks of the machine."""
        self.moves.area.release()


def group_ranks(group: Any) -> Ranks:
    """Return the ranks of a device, of a group of `collectives.groups`, or of all (None).

    Raises:
        UsageError: it is none of these.
    """
    if group is None:
        import emulator

        return ranks_of(emulator.device())
    if isinstance(group, Device):
        return ranks_of(group)
    group = getattr(group, "superpod_group", group)
    if not hasattr(group, "device") or not hasattr(group, "members"):
        raise UsageError(f"a group of ranks is a Device or a Group, not {type(group).__name__}")
    return ranks_of(group.device, group.members)


def _block(rows: int, words: int) -> int:
    """Bytes of a block of `rows` rows, a little more so that whole chunks fit."""
    return (rows // 32 + 1) * 32 * (HEADER_BYTES + (4 * words + 7) // 8 * 8)


__all__ = ["EpHandle", "ExpertParallel", "Grouped", "Posted", "group_ranks"]
