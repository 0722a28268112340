"""Dispatch and combine of any scheme, as raw rows: what is written, opened, carried and read.

Every scheme moves rows of real bytes on the host and gets the same answer; a scheme decides which records
there are (`layout`), what the fabric is charged (`traffic`) and when ranks go on. DeepEP's normal
combine and AGRS reduce on the way on real machines; here the charged bytes are those of the sums, while the
terms travel one by one, so that a token's terms are added up in the order of k on every scheme.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from collectives.ep import layout as lay
from collectives.ep import traffic
from collectives.ep.area import EpArea
from collectives.ep.facts import Limit, check_rows
from collectives.ep.layout import Grouped, Layout
from collectives.ep.side import Blocks, Call, Side
from collectives.ep.traffic import Opening, Spread
from collectives.moe import OperationCosts
from emulator.errors import InternalError
from emulator.rows import HEADER_BYTES, RowFormat

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]
DISPATCH, COMBINE = 0, 1


class Route(NamedTuple):
    """How my tokens go out, and what is known of the others' by the end of a dispatch.

    topk_idx: int64 [T, K]. layout, spread: of them. sent: records grouped by target; pairs: pairs grouped by
    target (the same at level "pair"). received: int32 [R], pairs I hold of each owner. tokens, held, on_node:
    int64 [R], tokens of each owner; distinct ones that I hold, that my node holds.
    """

    topk_idx: Int64
    layout: Layout
    spread: Spread
    sent: Grouped
    pairs: Grouped
    received: Int32
    tokens: Int64
    held: Int64
    on_node: Int64


class Sent(NamedTuple):
    """An operation whose record is out."""

    side: Side
    blocks: Blocks
    opening: Opening
    tag: int
    costs: OperationCosts
    route: Route
    level: str
    cached: bool
    posted: bool
    limit: Limit | None = None


class Came(NamedTuple):
    """Raw rows that came with a dispatch.

    raw: float32 [N, words]; at level "pair" by (slot, source, token, k), else by (source, token).
    counts: int32 [R], records from each. per_slot, place: at level "pair", as `emulator.rows.Received`.
    """

    raw: Float32
    counts: Int32
    per_slot: Int64
    place: Int32
    route: Route


class Moves:
    """The operations of one buffer.

    Args:
        area: shared pieces. scheme: one of `traffic.SCHEMES`. num_experts: of the group.
        planes: plane of pushed rows by link class (self, chip, node, pod); pulls are on plane 0.
    """

    def __init__(
        self, area: EpArea, scheme: str, num_experts: int, planes: tuple[int, int, int, int] = (0, 0, 0, 0)
    ) -> None:
        traffic.check_scheme(scheme)
        self.area, self.ranks, self.scheme = area, area.ranks, scheme
        self.num_experts, self.slots = num_experts, lay.slots_of(num_experts, area.ranks.size)
        self._planes = np.array(planes, np.int64)
        self._whole: list[tuple[Side, Side]] = []
        by_rank = self._by_rank()
        self.sides = [
            (Side(area, out, 2 * number + 1, by_rank), Side(area, back, 2 * number + 2, by_rank))
            for number, (out, back) in enumerate(area.places)
        ]

    def _by_rank(self) -> Int64:
        """Plane of pushed rows to each rank, int64 [R]."""
        device = self.area.ranks.device
        classes = device.topology.classes(device.rank)[self.area.ranks.members]
        planes: Int64 = self._planes[classes]
        return planes

    def regroup(self, num_experts: int, everybody: bool, anew: bool = False) -> None:
        """Go on among the ranks the area has now, which have `num_experts` in all. Counters of events start
        anew, but for everybody's, which ranks that were left out know; those of signals go on.

        Args:
            anew: operations may have been cut off, and nothing is under way: everybody's events start anew
                too, and signals count from what the words hold.
        """
        self._whole = [] if anew else self._whole or self.sides
        self.ranks, self.num_experts, planes = self.area.ranks, num_experts, self._by_rank()
        old, self.sides = self.sides, []
        for number, (sides, places) in enumerate(zip(old, self.area.places, strict=True)):
            out, back = (
                Side(self.area, place, 2 * number + 1 + which, planes) for which, place in enumerate(places)
            )
            out.signals, back.signals = sides[0].signals, sides[1].signals
            self.sides.append((out, back))
        if anew:
            self._count_anew()
        elif everybody:
            self.sides = self._whole

    def _count_anew(self) -> None:
        for side in (side for pair in self.sides for side in pair):
            for word in side.signals:
                side.signals[word] = self.ranks.device.read(side.place.word + word)

    # --- dispatch -----------------------------------------------------------------------------------------

    def route(self, topk_idx: Int64, level: str) -> Route:
        """Plan a dispatch of new tokens. Raises: UsageError, experts that do not exist."""
        size = self.ranks.size
        layout = lay.dispatch_layout(topk_idx, self.num_experts, self.ranks.nodes)
        pairs = lay.by_pair(topk_idx, self.slots, size)
        sent = pairs
        if level == "rank":
            sent = lay.by_rank(layout.is_token_in_rank)
        elif level == "token":
            sent = lay.by_token(topk_idx.shape[0], size)
        none = np.zeros(size, np.int64)
        spread = traffic.spread_of(layout, self.ranks.nodes, self.slots)
        return Route(topk_idx, layout, spread, sent, pairs, none.astype(np.int32), none, none, none)

    def dispatch(
        self, raw: Float32, route: Route, level: str, costs: OperationCosts, call: Call, *,
        batch: int = 0, cached: bool = False, post: bool = False, limit: Limit | None = None,
    ) -> Sent:  # fmt: skip
        """Write my rows and open the operation; with `post` without waiting for anybody.

        Args:
            raw: float32 [T, words]. route: of `route`, or of an earlier dispatch where `cached`.
            call: facts and trouble; its counts are filled in here. limit: where more can come than is taken.
        """
        side = self.sides[batch][DISPATCH]
        form = RowFormat(raw.shape[1], self.slots if level == "pair" else 1)
        most = self._most(call.facts, level)
        blocks, trouble = side.blocks(form, most), call.trouble
        room, records = blocks.shape.capacity, route.sent.order.size
        if not trouble and records > room:
            trouble = f"dispatch: {records} rows, a block takes {room} rows of this size; use larger buffers"
        if trouble:
            route = self.route(np.empty((0, 1), np.int64), "pair")
        start = traffic.open_dispatch(self.scheme, route.spread, costs, self.slots, cached)
        self._compute(start.start_ps)
        if not trouble:
            per_row = route.topk_idx.shape[1] if level == "pair" else 1
            ids = np.ascontiguousarray(route.topk_idx).reshape(-1) if level == "pair" else None
            side.pack(blocks, raw, route.sent.order, per_row, ids)
        spread = route.spread
        counts = np.concatenate([spread.pairs, spread.ranks, spread.nodes, [spread.tokens]]).astype(np.int32)
        tag = side.begin(Call(call.facts, counts, trouble), route.sent, blocks.shape.most)
        return self._open(side, blocks, start, tag, costs, route, level, cached, post)._replace(limit=limit)

    def finish_dispatch(self, sent: Sent) -> Came:
        """Wait for everybody, carry the rows, read mine.

        Raises:
            UsageError: on all ranks, a rank is sent more rows than it takes.
        """
        self._settle(sent)
        if sent.limit is not None:
            rows = sent.side.counts(0 if sent.limit.pairs else self.ranks.size, self.ranks.size)
            check_rows(rows, self.ranks.members, sent.limit)
        side, route, size = sent.side, sent.route, self.ranks.size
        if self.scheme in ("deepep", "agrs"):
            table = side.counts(size, size + self.ranks.nodes.count + 1).astype(np.int64)
            route = route._replace(tokens=table[:, -1])
        if self.scheme == "deepep":
            route = self._deepep_out(sent, route, table[:, :-1])
        elif self.scheme == "all-to-all":
            side.again(route.spread.pairs * sent.costs.row_bytes)
        got, counts = side.unpack(sent.blocks)
        route = route._replace(received=counts)
        return Came(got.rows, counts, got.per_slot, got.place, route)

    def _deepep_out(self, sent: Sent, route: Route, table: Int64) -> Route:
        """Both hops; returns the route with what the table said of the others."""
        size, me, nodes = self.ranks.size, self.ranks.me, self.ranks.nodes
        ranks, on_nodes = table[:, :size], table[:, size:]
        stages = traffic.dispatch_stages(me, nodes, ranks, route.spread.nodes, sent.costs.row_bytes)
        sent.side.hops(*stages)
        return route._replace(held=ranks[:, me], on_node=on_nodes[:, nodes.node[me]])

    # --- combine ------------------------------------------------------------------------------------------

    def combine(
        self, raw: Float32, back: Grouped, route: Route, costs: OperationCosts, call: Call, *,
        level: str = "pair", batch: int = 0, post: bool = False,
    ) -> Sent:  # fmt: skip
        """Write rows for their owners and open the operation.

        Args:
            raw: float32 [P, words]. back: record i is row order[i], grouped by owner. level: of the records.
        """
        side = self.sides[batch][COMBINE]
        form = RowFormat(raw.shape[1], 1)
        blocks, trouble = side.blocks(form, self._most(call.facts, level)), call.trouble
        room = blocks.shape.capacity
        if not trouble and back.order.size > room:
            trouble = f"combine: {back.order.size} rows, a block takes {room}; use larger buffers (max_rows)"
        received, tokens = route.received.astype(np.int64), route.tokens
        if trouble:
            received, tokens = np.zeros_like(received), np.zeros_like(tokens)
        start = traffic.open_combine(self.scheme, received, tokens, costs, self.slots)
        self._compute(start.start_ps)
        if not trouble:
            side.pack(blocks, raw, back.order, 1, None)
        tag = side.begin(Call(call.facts, np.zeros(0, np.int32), trouble), back, blocks.shape.most)
        return self._open(side, blocks, start, tag, costs, route, level, False, post)

    def finish_combine(self, sent: Sent, expected: Grouped) -> tuple[Float32, Int32]:
        """Wait, carry the sums, read my rows: float32 [records, words] by (rank, my own order of `expected`).

        Raises:
            InternalError: other rows came than went out.
        """
        self._settle(sent)
        if self.scheme == "deepep":
            r = sent.route
            stages = traffic.combine_stages(
                self.ranks.me, self.ranks.nodes, r.held, r.on_node, sent.costs.row_bytes
            )
            sent.side.hops(*stages)
        records, counts, first, total = sent.side.rows(sent.blocks)
        if not np.array_equal(counts, expected.counts):
            raise InternalError("combine: other rows came back than were dispatched")
        source = np.repeat(np.arange(counts.size), counts)
        before = np.cumsum(counts) - counts
        at = (np.arange(total) - before[source] + first[source]).astype(np.int64)
        raw = records.take(source, at)
        return np.ascontiguousarray(raw[:, HEADER_BYTES:]).view(np.float32), expected.order

    # --- both ---------------------------------------------------------------------------------------------

    def _open(
        self, side: Side, blocks: Blocks, opening: Opening, tag: int, costs: OperationCosts, route: Route,
        level: str, cached: bool, post: bool,
    ) -> Sent:  # fmt: skip
        if post:
            side.post(opening, tag)
        else:
            side.exchange(opening, tag)
        return Sent(side, blocks, opening, tag, costs, route, level, cached, post)

    def _settle(self, sent: Sent) -> None:
        """Wait for everybody, unless that has been done."""
        if sent.posted:
            sent.side.wait(sent.opening, sent.tag)

    def _compute(self, ps: int) -> None:
        if ps:
            self.ranks.device.compute(ps, publish=False)

    def _most(self, facts: tuple[int, ...], level: str) -> int:
        """Most rows one rank can send to one other, a number all ranks agree on."""
        return max(1, facts[6] * (facts[4] if level == "pair" else 1))


def whole_pairs(route: Route) -> bool:
    """Has every token all its K experts?"""
    return bool(route.pairs.order.size == route.topk_idx.size)


__all__ = ["COMBINE", "DISPATCH", "Came", "Moves", "Route", "Sent", "whole_pairs"]
