"""DeepEP's low-latency kernels: fixed shapes, one row a (token, expert), two buffers, hooks, a rank mask.

    [local expert, max_tokens * ranks, hidden]   rows of an expert by (source rank, token), the rest is 0

An operation is posted at the call; with `return_recv_hook` its rows are there when the hook has been called,
and other work of the rank goes on meanwhile. At most two operations may be without their hooks called.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from collectives.ep import layout as lay
from collectives.ep import wire
from collectives.ep.faces import EventOverlap, Values, add_into, fill, give, is_torch, numbers, rows_of
from collectives.ep.facts import facts
from collectives.ep.fixed_shape import FixedShape
from collectives.ep.masked import MaskedMoves
from collectives.ep.moves import COMBINE, DISPATCH, Route, Sent
from collectives.ep.side import Call
from collectives.ep.traffic import Spread, low_latency_row, open_dispatch
from collectives.ep.wire import FORMS
from collectives.moe import EpCosts
from emulator.errors import StateError, UsageError

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]
_NONE = np.zeros(0, np.int32)


class LowLatencyHandle(NamedTuple):
    """DeepEP's five, then what is needed here.

    src_info: int32 [slots, max_tokens * R], the token each row was at its source. layout_range: int64
    [slots, R], first row << 32 | rows of each source. num_max_dispatch_tokens_per_rank, hidden, num_experts.
    arrived: filled by the hook. buffer: which of the two. topk_idx: int64 [T, K], as dispatched.
    """

    src_info: Any
    layout_range: Any
    num_max_dispatch_tokens_per_rank: int
    hidden: int
    num_experts: int
    arrived: Arrived
    buffer: int
    topk_idx: Int64


class Arrived:
    """What the hook of a dispatch found: the route with what came, rows' places, and their positions in the
    fixed shape, int64 [P] of slot * (max_tokens * R) + place."""

    route: Route
    place: Int32
    position: Int64
    alive: Int64
    ready = False
    zero_copy: Any = None


class LowLatencyCalls(MaskedMoves):
    """The low-latency operations of one shape; made as `MaskedMoves` is."""

    def change(self, kind: str, num_experts: int, max_tokens: int, hidden: int, topk: int) -> None:
        """Agree that the next calls have another shape, before anybody gives memory back.

        Raises:
            CollectiveMismatchError: not all ranks say so, or other shapes. StateError: hooks to be called.
        """
        if self._hooks:
            raise StateError("low latency: another shape, and hooks of the present one are not called")
        side, none = self._moves.sides[self._take()][DISPATCH], np.zeros(self._alive.size, np.int64)
        mask = zlib.crc32(self._alive.tobytes())
        words = wire.words(kind, hidden) + 1
        other = facts(
            DISPATCH, self._scheme, words, hidden, topk, num_experts, max_tokens, mask=mask, kind=kind
        )
        tag = side.begin(Call(other, _NONE), lay.grouped(none, _NONE), 1)
        side.exchange(open_dispatch("cann", Spread(none, none, none, 0), EpCosts(0, meta_bytes=4), 1), tag)

    # --- dispatch -----------------------------------------------------------------------------------------

    def dispatch(
        self, x: Any, topk_idx: Any, stats: Any, waits: Any, use_fp8: bool, round_scale: bool, ue8m0: bool,
        hook: bool,
    ) -> tuple[Any, Any, LowLatencyHandle, EventOverlap, Callable[[], None]]:  # fmt: skip
        """See `Buffer.low_latency_dispatch`."""
        trouble = ""
        try:
            rows, ids = rows_of(x), numbers(topk_idx)
            self._check(rows, ids)
            if ue8m0 and not (use_fp8 and round_scale):
                raise UsageError("use_ue8m0 needs use_fp8 and round_scale")
        except UsageError as error:
            trouble = f"low_latency_dispatch: {error}"
            rows = Values(np.empty((0, self.hidden), np.float32), None, "float32", is_torch(x))
            ids = np.empty((0, self.topk), np.int64)
        kind = "fp8" if use_fp8 else rows.kind
        form = FORMS[-1] if use_fp8 and round_scale else kind
        body = self._encode(rows.values, kind, round_scale)
        token = np.arange(body.shape[0], dtype=np.int32).view(np.float32)[:, None]
        raw = np.concatenate([body, token], axis=1)
        number = self._take()
        call = Call(self._facts(DISPATCH, raw.shape[1], form), _NONE, trouble)
        costs = self._costs[DISPATCH] or EpCosts(low_latency_row(self.hidden, use_fp8), meta_bytes=4)
        route = self._moves.route(self._compact(ids), "pair")
        posted_ps = self._all.device.now_ps
        sent = self._moves.dispatch(raw, route, "pair", costs, call, batch=number, post=hook)
        out = FixedShape(
            self.slots, self.max_tokens * self._all.size, self._all.size, self.hidden, kind, rows.torch, ue8m0
        )
        handle = LowLatencyHandle(
            out.src_info, out.layout_range, self.max_tokens, self.hidden, self.num_experts, Arrived(),
            number, ids,
        )  # fmt: skip

        def receive() -> None:
            self._receive(sent, out, handle, stats, waits, posted_ps)

        return (
            *self._finish(receive, hook, out),
            handle,
            EventOverlap(self._all.device.now_ps),
            self._hook(receive, hook),
        )

    def _finish(self, receive: Callable[[], None], hook: bool, out: FixedShape) -> tuple[Any, Any]:
        if not hook:
            receive()
        return out.rows, out.counts

    def _receive(
        self, sent: Sent, out: FixedShape, handle: LowLatencyHandle, stats: Any, waits: Any, posted_ps: int
    ) -> None:
        """Wait, then lay the rows out in the fixed shape."""
        came = self._moves.finish_dispatch(sent)
        room = self.max_tokens * self._all.size
        first = np.cumsum(came.per_slot) - came.per_slot
        slot = np.repeat(np.arange(self.slots), came.per_slot)
        position = slot * room + np.arange(slot.size) - first[slot]
        arrived = handle.arrived
        arrived.alive = self._alive
        arrived.route, arrived.place, arrived.position, arrived.ready = came.route, came.place, position, True
        source = np.empty(slot.size, np.int64)
        source[came.place] = np.repeat(self._alive, came.counts)
        out.write(came.raw, position, slot, source)
        fill(out.counts, came.per_slot.astype(np.int32))
        if stats is not None:
            add_into(stats, came.per_slot)
        if waits is not None:
            self._add_waits(sent, waits, posted_ps)

    def _add_waits(self, sent: Sent, waits: Any, posted_ps: int) -> None:
        """Add, for each source, how many ps later than I it was there."""
        late = np.zeros((self._all.size, self._all.size), np.int64)
        late[self._all.me, self._alive] = np.maximum(sent.side.posted() - posted_ps, 0)
        add_into(waits, late if len(waits.shape) == 2 else late[self._all.me])

    # --- combine ------------------------------------------------------------------------------------------

    def combine(
        self, x: Any, topk_idx: Any, topk_weights: Any, handle: LowLatencyHandle, logfmt: bool,
        zero_copy: bool, hook: bool, out: Any, waits: Any,
    ) -> tuple[Any, EventOverlap, Callable[[], None]]:  # fmt: skip
        """See `Buffer.low_latency_combine`."""
        arrived, trouble = handle.arrived, ""
        if not arrived.ready:
            raise StateError("low_latency_combine: call the hook of the dispatch first")
        if not np.array_equal(arrived.alive, self._alive):
            raise StateError(
                "low_latency_combine: other ranks are masked than at the dispatch; dispatch again"
            )
        try:
            if logfmt:
                raise UsageError("there is no log format here; use_logfmt=False")
            rows, weights = self._outputs(
                arrived.zero_copy if zero_copy else x, topk_idx, topk_weights, handle
            )
        except UsageError as error:
            trouble = f"low_latency_combine: {error}"
            rows, weights = Values(np.empty((0, self.hidden), np.float32), None, "float32", False), None
        raw = wire.encode(rows.values, rows.kind)
        call = Call(self._facts(COMBINE, raw.shape[1], rows.kind), _NONE, trouble)
        costs = self._costs[COMBINE] or EpCosts(low_latency_row(self.hidden, False) - 16, meta_bytes=4)
        back = lay.grouped(arrived.route.received, arrived.place)
        posted_ps = self._all.device.now_ps
        sent = self._moves.combine(raw, back, arrived.route, costs, call, batch=handle.buffer, post=hook)
        tokens = handle.topk_idx.shape[0]
        result = (
            give(np.zeros((tokens, self.hidden), np.float32), rows.kind, rows.torch) if out is None else out
        )

        def receive() -> None:
            got, order = self._moves.finish_combine(sent, arrived.route.pairs)
            assert weights is not None
            values = lay.add_up(wire.decode(got, rows.kind, self.hidden), order, weights)
            if is_torch(result) or result.dtype == np.float32:
                fill(result, values)
            else:
                fill(result, wire.to_bfloat16(values))
            if waits is not None:
                self._add_waits(sent, waits, posted_ps)

        if not hook:
            receive()
        return result, EventOverlap(self._all.device.now_ps), self._hook(receive, hook)

    def _outputs(
        self, x: Any, topk_idx: Any, topk_weights: Any, handle: LowLatencyHandle
    ) -> tuple[Values, Float32]:
        """The rows that were received, taken out of the fixed shape; weights [T, K]."""
        if not np.array_equal(numbers(topk_idx), handle.topk_idx):
            raise UsageError("topk_idx is not that of the dispatch")
        weights = numbers(topk_weights, np.float32)
        if weights.shape != handle.topk_idx.shape:
            raise UsageError(f"topk_weights must be {list(handle.topk_idx.shape)}, got {list(weights.shape)}")
        shape = (self.slots, self.max_tokens * self._all.size, self.hidden)
        if tuple(x.shape) != shape:
            raise UsageError(f"x must be {list(shape)}, got {list(x.shape)}")
        flat = x.reshape(-1, self.hidden)[handle.arrived.position]
        return rows_of(flat), weights

    # --- checks -------------------------------------------------------------------------------------------

    def _check(self, rows: Values, ids: Int64) -> None:
        if ids.ndim != 2 or ids.shape[1] != self.topk:
            raise UsageError(f"topk_idx must be [tokens, {self.topk}], got {list(ids.shape)}")
        if ids.shape[0] > self.max_tokens:
            raise UsageError(
                f"{ids.shape[0]} tokens, num_max_dispatch_tokens_per_rank is {self.max_tokens}; "
                f"dispatch fewer or use larger buffers on all ranks"
            )
        if rows.codes is not None or rows.values.shape != (ids.shape[0], self.hidden):
            raise UsageError(f"x must be [{ids.shape[0]}, {self.hidden}] in bfloat16 or float32")
        lay.check_experts(ids, self.num_experts)
        ranked = np.sort(ids, axis=1)
        twice = np.argwhere((ranked[:, 1:] == ranked[:, :-1]) & (ranked[:, 1:] >= 0))
        if twice.size:
            token, at = twice[0].tolist()
            raise UsageError(
                f"token {token} names expert {ranked[token, at]} twice; the fixed shape has one row"
            )

    def _encode(self, values: Float32, kind: str, round_scale: bool) -> Float32:
        if kind != "fp8":
            return wire.encode(values, kind)
        scales, codes = wire.quantise_fp8(values, round_scale)
        return wire.join_fp8(codes, scales)

    def _facts(self, operation: int, words: int, form: str) -> tuple[int, ...]:
        return facts(
            operation, self._scheme, words, self.hidden, self.topk, self.num_experts, self.max_tokens,
            mask=zlib.crc32(self._alive.tobytes()), kind=form,
        )  # fmt: skip
