"""DeepEP's normal kernels: a token goes once to every rank that has one of its experts.

The receiver gets one row per (token, rank) with the token's choices; it applies its experts and weights and
gives one row back, and the owner adds up what its ranks gave, ranks ascending.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from collectives.ep import layout as lay
from collectives.ep import wire
from collectives.ep.faces import EventOverlap, Values, give, give_codes, numbers, plain, rows_of
from collectives.ep.facts import Limit, facts
from collectives.ep.moves import COMBINE, DISPATCH, Moves, Route
from collectives.ep.side import Call
from collectives.ep.traffic import whole
from collectives.moe import EpCosts, OperationCosts
from emulator.errors import UsageError

Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]
_NONE = np.zeros(0, np.int32)


class NormalHandle(NamedTuple):
    """What a normal dispatch leaves for its combine and for cached dispatches.

    is_token_in_rank: bool [T, R]. recv_from: int32 [R], rows received from each rank, which come in this
    order, tokens ascending. route, topk: how it went out.
    """

    is_token_in_rank: Any
    recv_from: npt.NDArray[np.int32]
    route: Route
    topk: int


class NormalCalls:
    """Dispatch and combine with one row per (token, rank), over `Moves`.

    Args:
        costs: of dispatch and of combine; None for the real bytes of rows.
    """

    def __init__(self, moves: Moves, costs: tuple[OperationCosts | None, OperationCosts | None]) -> None:
        self._moves, self._costs, self._ranks = moves, costs, moves.ranks

    def dispatch(
        self, x: Any, handle: NormalHandle | None, topk_idx: Any, topk_weights: Any, given: dict[str, Any],
        expert_alignment: int, num_worst_tokens: int,
    ) -> tuple[Any, Any, Any, list[int], NormalHandle, EventOverlap]:  # fmt: skip
        """See `Buffer.dispatch`."""
        trouble, rows, ids, weights, route, limit = "", None, None, None, None, 0
        try:
            rows = rows_of(x)
            whole("expert_alignment", expert_alignment)
            limit = whole("num_worst_tokens", num_worst_tokens, 0)
            if handle is None:
                ids, weights, route = self._plan(rows, topk_idx, topk_weights, given)
            else:
                route, ids = handle.route, np.empty((handle.route.topk_idx.shape[0], 0), np.int64)
                weights = np.empty(ids.shape, np.float32)
            _same_tokens(rows, ids)
        except UsageError as error:
            trouble, rows = f"dispatch: {error}", Values(np.empty((0, 1), np.float32), None, "float32", False)
            ids, weights = np.empty((0, 1), np.int64), np.empty((0, 1), np.float32)
            route = self._moves.route(ids, "rank")
        assert rows is not None and ids is not None and weights is not None and route is not None
        raw, hidden = _words(rows)
        raw = np.concatenate([raw, ids.astype(np.int32).view(np.float32), weights], axis=1)
        call = Call(
            self._facts(DISPATCH, raw.shape[1], hidden, ids.shape[1], rows.kind, handle is not None, limit),
            _NONE, trouble,
        )  # fmt: skip
        costs = self._costs[DISPATCH] or EpCosts(4 * raw.shape[1], meta_bytes=4 * (self._moves.slots + 2))
        sent = self._moves.dispatch(
            raw, route, "rank", costs, call, cached=handle is not None,
            limit=Limit(limit, False, "num_worst_tokens") if limit else None,
        )  # fmt: skip
        came = self._moves.finish_dispatch(sent)
        event = EventOverlap(self._ranks.device.now_ps)
        body = raw.shape[1] - 2 * ids.shape[1]
        recv_x = _given_back(np.ascontiguousarray(came.raw[:, :body]), rows, hidden, num_worst_tokens)
        if handle is not None:
            return recv_x, None, None, [], handle, event
        new = NormalHandle(
            plain(route.layout.is_token_in_rank, rows.torch), came.counts, came.route, ids.shape[1]
        )
        got_ids, got_weights, counts = self._choices(came.raw[:, body:], ids.shape[1])
        aligned = [] if num_worst_tokens else [-(-c // expert_alignment) * expert_alignment for c in counts]
        got_ids, got_weights = (
            _padded(got_ids, num_worst_tokens, -1),
            _padded(got_weights, num_worst_tokens, 0),
        )
        return recv_x, plain(got_ids, rows.torch), plain(got_weights, rows.torch), aligned, new, event

    def _plan(
        self, rows: Values, topk_idx: Any, topk_weights: Any, given: dict[str, Any]
    ) -> tuple[Int64, Float32, Route]:
        """Choices and route of new tokens; layouts the caller gives must be those of the choices."""
        if topk_idx is None:
            raise UsageError("topk_idx is needed, or a handle")
        ids = numbers(topk_idx)
        if ids.ndim != 2:
            raise UsageError(f"topk_idx must be [tokens, k], got {list(ids.shape)}")
        lay.check_experts(ids, self._moves.num_experts)
        weights = (
            np.ones(ids.shape, np.float32) if topk_weights is None else numbers(topk_weights, np.float32)
        )
        if weights.shape != ids.shape:
            raise UsageError(f"topk_weights must be {list(ids.shape)}, got {list(weights.shape)}")
        route = self._moves.route(ids, "rank")
        for name, value in given.items():
            want = getattr(route.layout, name)
            if value is not None and want is not None and not np.array_equal(numbers(value), want):
                raise UsageError(f"{name} is not that of topk_idx; use get_dispatch_layout")
        if self._moves.scheme != "deepep":
            route = route._replace(spread=route.spread._replace(pairs=route.spread.ranks))
        return ids, weights, route

    def _choices(self, raw: Float32, topk: int) -> tuple[Int64, Float32, list[int]]:
        """Local experts (-1 for those of other ranks), their weights (0 there), and rows of each expert."""
        ids = np.ascontiguousarray(raw[:, :topk]).view(np.int32).astype(np.int64)
        slots, first = self._moves.slots, self._ranks.me * self._moves.slots
        mine = (ids >= first) & (ids < first + slots)
        local = np.where(mine, ids - first, -1)
        weights = np.where(mine, raw[:, topk:], np.float32(0))
        return local, weights, np.bincount(local[mine], minlength=slots).tolist()

    def combine(
        self, x: Any, handle: NormalHandle, topk_weights: Any, bias: Any
    ) -> tuple[Any, Any, EventOverlap]:
        """See `Buffer.combine`."""
        trouble, total, extras = "", int(handle.recv_from.sum()), []
        weights = np.empty((total, 0), np.float32)
        try:
            rows = rows_of(x)
            if rows.values.ndim != 2 or rows.codes is not None or rows.values.shape[0] < total:
                raise UsageError(f"x must be [{total}, hidden] in bfloat16 or float32")
            values = rows.values[:total]
            if topk_weights is not None:
                weights = numbers(topk_weights, np.float32)[:total]
                if weights.shape != (total, handle.topk):
                    raise UsageError(f"topk_weights must be [{total}, {handle.topk}]")
            extras = _extras(bias, handle.route.topk_idx.shape[0], values.shape[1])
        except UsageError as error:
            trouble, rows = f"combine: {error}", Values(np.empty((0, 1), np.float32), None, "float32", False)
            values, weights = rows.values, np.empty((0, 0), np.float32)
        hidden = values.shape[1]
        raw = np.concatenate([wire.encode(values, rows.kind), weights], axis=1)
        call = Call(self._facts(COMBINE, raw.shape[1], hidden, weights.shape[1], rows.kind), _NONE, trouble)
        costs = self._costs[COMBINE] or EpCosts(4 * raw.shape[1])
        back = lay.grouped(handle.recv_from, np.arange(values.shape[0], dtype=np.int32))
        sent = self._moves.combine(raw, back, handle.route, costs, call, level="rank")
        got, order = self._moves.finish_combine(sent, handle.route.sent)
        tokens, body = handle.route.topk_idx.shape[0], wire.words(rows.kind, hidden)
        out = lay.add_ranks(
            wire.decode(np.ascontiguousarray(got[:, :body]), rows.kind, hidden), order, tokens
        )
        for extra in extras:
            out += extra
        sums = None
        if topk_weights is not None:
            ends = np.ascontiguousarray(got[:, body : body + handle.topk])
            sums = plain(lay.add_ranks(ends, order, tokens), rows.torch)
        return give(out, rows.kind, rows.torch), sums, EventOverlap(self._ranks.device.now_ps)

    def _facts(
        self, operation: int, words: int, hidden: int, topk: int, kind: str, cached: bool = False,
        limit: int = 0,
    ) -> tuple[int, ...]:  # fmt: skip
        """Normal calls have no capacity of tokens: blocks hold what their bytes hold."""
        room = self._moves.sides[0][operation].place.block_bytes // (16 + 4 * words)
        return facts(
            operation, self._moves.scheme, words, hidden, topk, self._moves.num_experts, room, cached,
            kind=kind, max_rows=limit,
        )  # fmt: skip


def _extras(bias: Any, tokens: int, hidden: int) -> list[Float32]:
    """What is added to the sums. Raises: UsageError, it is not [tokens, hidden]."""
    out = [rows_of(one).values for one in (bias if isinstance(bias, tuple) else (bias,)) if one is not None]
    for one in out:
        if one.shape != (tokens, hidden):
            raise UsageError(f"bias must be [{tokens}, {hidden}], got {list(one.shape)}")
    return out


def _same_tokens(rows: Values, ids: Int64) -> None:
    if rows.values.ndim != 2 or rows.values.shape[0] != ids.shape[0]:
        raise UsageError(f"x {list(rows.values.shape)} must have a row for each of the {ids.shape[0]} tokens")


def _words(rows: Values) -> tuple[Float32, int]:
    """Rows as they travel, and their hidden size."""
    if rows.codes is not None:
        return wire.join_fp8(rows.codes, rows.values), rows.codes.shape[1]
    return wire.encode(rows.values, rows.kind), rows.values.shape[1]


def _given_back(raw: Float32, rows: Values, hidden: int, worst: int) -> Any:
    """Received rows in the caller's own kind."""
    if rows.codes is not None:
        codes, scales = wire.split_fp8(raw, hidden)
        codes, scales = _padded(codes, worst, 0), _padded(scales, worst, 0)
        return give_codes(codes, rows.torch), plain(scales, rows.torch)
    return give(_padded(wire.decode(raw, rows.kind, hidden), worst, 0), rows.kind, rows.torch)


def _padded(array: npt.NDArray[Any], rows: int, value: float) -> npt.NDArray[Any]:
    """At least `rows` rows, the further ones of `value`."""
    if array.shape[0] >= rows:
        return np.ascontiguousarray(array)
    more = np.full((rows - array.shape[0], *array.shape[1:]), value, array.dtype)
    return np.concatenate([array, more])
