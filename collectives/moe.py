"""Dispatch and combine of expert parallelism, XCCL's pull-based protocol over real bytes.

    dispatch   rows -> my OWN managed block, grouped by destination        (quantised on the way, if asked)
               a 32-byte record {event, first row, rows} to every rank, zero counts included
               all n records are in: the only barrier
               pull my rows from each source's block                        (one read a row, placed by expert)
    combine    the same the other way round, then a weighted sum at the token's owner in the given k order

Write after read: the block of event e must survive until the slowest rank has pulled. Blocks are doubled
    by event parity, and each (micro-batch, operation) has its own event counter and pair: a rank writes
    event e + 2 only after all records of e + 1, and a rank posts its record of e + 1 only after its pull
    of e. (The paper is silent on this.)

Real bytes move on the host; the fabric is charged what the costs say (`row_bytes` for each priced row a
row stands for). One engine entry per operation. Left out: deduplication of rows to one rank, overlap
inside one operation.

Source: arXiv 2508.02520 section 3.2; 32-byte record and block layout as listed there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from collectives.blocks import Block, BlockPair
from emulator import Device
from emulator.engine.api import ChainStep, ExchangeResult
from emulator.errors import UsageError
from emulator.memory import as_bytes
from emulator.pairs import PairCall, PairShape
from emulator.rows import Int32, Plan, RowFormat
from emulator.tracing import Op
from emulator.transport import Area

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
META_BYTES = 32
_NO_WEIGHTS = np.empty((0, 0), np.float32)


class OperationCosts(Protocol):
    """What one dispatch or combine is charged; any object with these fields will do.

    start_ps: before the records are posted (launch, quantise, group). pull_start_ps: between the last
        record and the first pull. record_ps: between two pulls. row_bytes: of one priced row. meta_bytes:
        of a record.
    """

    @property
    def start_ps(self) -> int: ...
    @property
    def pull_start_ps(self) -> int: ...
    @property
    def record_ps(self) -> int: ...
    @property
    def row_bytes(self) -> int: ...
    @property
    def meta_bytes(self) -> int: ...


@dataclass(frozen=True)
class EpCosts:
    """Plain costs: bytes of a row, and nothing else unless said. See `OperationCosts`."""

    row_bytes: int
    start_ps: int = 0
    pull_start_ps: int = 0
    record_ps: int = 0
    meta_bytes: int = META_BYTES


class IdleStep(NamedTuple):
    """An operation an idle rank takes part in with no rows, `compute_ps` after the one before."""

    combine: bool
    costs: OperationCosts
    compute_ps: int = 0


class Handle:
    """What a dispatch brought, and what its combine needs.

    Attributes:
        rows: float32 [R, hidden], by local slot, inside a slot by (source rank, token, k).
        rows_per_slot: int64 [slots], rows of each local slot.
        charged_per_slot: int64 [slots], priced rows they stand for.
        micro_batch: which one it belongs to.
        tokens: rows of x I dispatched.
        sent: my own pairs grouped by destination. received, received_charge: int32 [n], rows from each
            source and what they stand for. place: int32 [R], row of the i-th record, sources ascending.
        kept: the last six as the compiled operations keep them (`engine/pairs.c`), or None; what is asked
            for is unpacked then.
    """

    __slots__ = (
        "rows", "micro_batch", "kept", "tokens", "rows_per_slot", "charged_per_slot", "sent", "received",
        "received_charge", "place",
    )  # fmt: skip
    rows: Float32
    micro_batch: int
    kept: bytes | None
    tokens: int
    rows_per_slot: Int64
    charged_per_slot: Int64
    sent: Plan
    received: Int32
    received_charge: Int32
    place: Int32

    def __init__(self, rows: Float32, micro_batch: int, kept: bytes | None = None) -> None:
        self.rows, self.micro_batch, self.kept = rows, micro_batch, kept

    def __getattr__(self, name: str) -> Any:
        """Unpack what is kept, the first time any of it is asked for."""
        kept = self.kept
        if kept is None or name not in self.__slots__:
            raise AttributeError(f"a handle has no {name!r}")
        self.tokens, pairs, rows, sent, received, slots, n, _ = np.frombuffer(kept, np.int32, 8).tolist()
        by_slot = np.frombuffer(kept, np.int64, 2 * slots, len(kept) - 16 * slots)
        self.rows_per_slot, self.charged_per_slot = by_slot[:slots].copy(), by_slot[slots:].copy()
        runs = np.frombuffer(kept, np.int32, 4 * (sent + received), 32).reshape(-1, 4)
        numbers = np.frombuffer(kept, np.int32, pairs + rows, 32 + runs.nbytes)
        counts, first, charged = _spread(runs[:sent], n)
        self.sent = Plan(counts, charged, first, np.empty(0, np.int32), numbers[:pairs])
        self.received, _, self.received_charge = _spread(runs[sent:], n)
        self.place = numbers[pairs:]
        return getattr(self, name)


def _spread(runs: Int32, num_ranks: int) -> tuple[Int32, Int32, Int32]:
    """Counts, first records and charges of all ranks, int32 [n], from rows (rank, count, first, charge)."""
    table = np.zeros((3, num_ranks), np.int32)
    table[:, runs[:, 0]] = runs[:, 1:].T
    return table[0], table[1], table[2]


@dataclass(frozen=True)
class Pending:
    """An operation whose records are out and whose rows are not in yet."""

    pair: BlockPair
    plan: Plan
    tokens: int
    costs: OperationCosts
    handle: Handle | None = None
    weights: Float32 | None = None


class Timing(NamedTuple):
    """Virtual times of the last operation: records posted, all n records in, last row in."""

    posted_ps: int
    records_ps: int
    end_ps: int


class ExpertExchange:
    """Dispatch and combine between all ranks, each holding `slots` physical experts.

    Args:
        device: this rank.
        slots: physical expert slots per rank; slot s of rank r is number r * slots + s.
        hidden: values of a row.
        max_tokens: most rows of x in one dispatch.
        topk: slots each row goes to.
        quant: None for float32 rows, "int8" for int8 rows with a scale a row (dispatch only).
        max_rows: most rows one dispatch may bring to a rank; by default all that can
            happen when the slots of a row differ.
        micro_batches: how many may be in flight.
        dispatch_costs, combine_costs: what is charged where a call does not say; by default real row
            bytes only. host_hook: called with "poll" and "pull" before those steps, for tests that freeze
            a rank on the host.

    Raises:
        UsageError: bad sizes, or no room in the managed area (names the setting to raise). Collective.
    """

    def __init__(
        self,
        device: Device,
        slots: int,
        hidden: int,
        max_tokens: int,
        topk: int,
        quant: str | None = None,
        max_rows: int | None = None,
        micro_batches: int = 1,
        dispatch_costs: OperationCosts | None = None,
        combine_costs: OperationCosts | None = None,
        host_hook: Callable[[str], None] | None = None,
    ) -> None:
        _check_sizes(
            slots=slots, hidden=hidden, max_tokens=max_tokens, topk=topk, micro_batches=micro_batches
        )
        if quant not in (None, "int8"):
            raise UsageError(f"dispatch: quant {quant!r} is not one of None, 'int8'")
        self.device, self.slots, self.hidden = device, slots, hidden
        self.max_tokens, self.topk = max_tokens, topk
        most = device.num_ranks * max_tokens * min(topk, slots)
        self.max_rows = most if max_rows is None else max_rows
        self._out_form = RowFormat(hidden, slots, quant == "int8")
        self._back_form = RowFormat(hidden, slots)
        self._hook = host_hook or (lambda step: None)
        self._dispatch_costs = dispatch_costs or EpCosts(hidden + 4 if quant else 4 * hidden)
        self._combine_costs = combine_costs or EpCosts(4 * hidden)
        self._times = np.zeros(3, np.int64)
        self._carve(micro_batches)
        self._compiled = [] if host_hook else self._compile()

    def _carve(self, micro_batches: int) -> None:
        per_pair = self.max_tokens * self.topk
        out = Block(max(1, per_pair), self._out_form, per_pair)
        back = Block(max(1, self.max_rows), self._back_form, per_pair)
        what = f"expert exchange {self.slots}x{self.hidden}, {self.max_tokens} tokens to {self.topk}"
        total = 2 * micro_batches * (out.nbytes + back.nbytes)
        base, _, channel = self.device.symmetric.carve(Area.MANAGED, total, what, channels=2 * micro_batches)
        self._out: list[BlockPair] = []
        self._back: list[BlockPair] = []
        for number in range(micro_batches):
            self._out.append(BlockPair(self.device, out, base, channel, number))
            self._back.append(BlockPair(self.device, back, base + 2 * out.nbytes, channel + 1, number))
            base, channel = base + 2 * (out.nbytes + back.nbytes), channel + 2

    def _compile(self) -> list[tuple[PairCall, PairCall]]:
        """Dispatch and combine of each micro-batch as one compiled call each; none where that cannot be."""
        calls = self.device.compiled
        if calls is None or self.device.transport.kind != "shared":
            return []
        shape = PairShape(
            self.slots, self.hidden, self.topk, self.max_tokens, self.max_rows, self._out[0].most,
            self._out_form.int8,
        )  # fmt: skip
        return [
            calls.pair(shape, self._times, out.side(), back.side(), Handle, out.micro_batch)
            for out, back in zip(self._out, self._back, strict=True)
        ]

    def regroup(self, members: Int32) -> None:
        """Only `members` (ascending ranks) take part from now on. All of them call it, after a change of
        membership; what was under way is over. Nobody may send to a slot of another rank."""
        self._compiled = []
        for pair in (*self._out, *self._back):
            pair.regroup(members)

    @property
    def timing(self) -> Timing:
        """When the stages of the latest operation were over."""
        return Timing(*self._times.tolist())

    # --- dispatch ---------------------------------------------------------------------------------------

    def dispatch(
        self,
        x: Float32,
        slot_ids: Int64,
        costs: OperationCosts | None = None,
        charge: Int32 | None = None,
        micro_batch: int = 0,
    ) -> Handle:
        """Send each row to its slots and receive the rows of mine. All ranks call it; blocks.

        Args:
            x: float32 [T, hidden], T from 0 to `max_tokens`.
            slot_ids: int64 [T, topk], physical slots.
            costs: of this call, for all the layers it stands for.
            charge: int32 [T], priced rows each row stands for, at least 1; None for 1.
            micro_batch: which pair of buffers.

        Raises:
            UsageError: too many rows, wrong shapes, a slot that does not exist; more rows come to a rank than
                its `max_rows` (raised there; uncaught, it ends the run on all).
        """
        if 0 <= micro_batch < len(self._compiled):
            numbers = _numbers(costs or self._dispatch_costs)
            handle: Handle | None = self._compiled[micro_batch][0](x, slot_ids, charge, numbers)
            if handle is not None:
                self._check_rows(handle.rows.shape[0])
                return handle
        pair, plan, costs = self._write_out(x, slot_ids, costs, charge, micro_batch)
        self._hook("poll")
        result = pair.exchange(plan, costs)
        return self._take_in(pair, plan, x.shape[0], result)

    def post_dispatch(
        self,
        x: Float32,
        slot_ids: Int64,
        costs: OperationCosts | None = None,
        charge: Int32 | None = None,
        micro_batch: int = 0,
    ) -> Pending:
        """The first half of `dispatch`: rows written, records posted; does not block."""
        pair, plan, costs = self._write_out(x, slot_ids, costs, charge, micro_batch)
        pair.post(plan, costs)
        return Pending(pair, plan, x.shape[0], costs)

    def finish_dispatch(self, pending: Pending) -> Handle:
        """The second half: wait for all records, pull."""
        self._hook("poll")
        return self._take_in(pending.pair, pending.plan, pending.tokens, pending.pair.wait(pending.costs))

    def _write_out(
        self,
        x: Float32,
        slot_ids: Int64,
        costs: OperationCosts | None,
        charge: Int32 | None,
        micro_batch: int,
    ) -> tuple[BlockPair, Plan, OperationCosts]:
        x, ids = self._checked(x, slot_ids, charge)
        pair, costs = self._pair(self._out, micro_batch), costs or self._dispatch_costs
        if costs.start_ps:
            self.device.compute(costs.start_ps, publish=False)
        device = self.device
        plan = device.rows.send(
            pair.own(), self._out_form, x, ids, device.num_ranks, self.topk, charge, pair.most
        )
        return pair, plan, costs

    def _take_in(self, pair: BlockPair, plan: Plan, tokens: int, result: ExchangeResult) -> Handle:
        self._hook("pull")
        records, counts, first, total = pair.pull(result)
        self._check_rows(total)
        got = self.device.rows.unpack(records, self._out_form, counts, first, total)
        self._record(pair, result, got.rows)
        handle = Handle(got.rows, pair.micro_batch)
        handle.tokens, handle.sent, handle.place = tokens, plan, got.place
        handle.rows_per_slot, handle.charged_per_slot = got.per_slot, got.charged_per_slot
        handle.received, handle.received_charge = counts, result.counts
        return handle

    def _check_rows(self, total: int) -> None:
        """Refuse more rows than a combine could send back, before any work on them."""
        if total > self.max_rows:
            raise UsageError(
                f"dispatch: rank {self.device.rank} gets {total} rows, it takes max_rows={self.max_rows}"
            )

    # --- combine ----------------------------------------------------------------------------------------

    def combine(
        self, handle: Handle, y: Float32, weights: Float32, costs: OperationCosts | None = None
    ) -> Float32:
        """Send the experts' outputs home and add up mine: out[t] = sum over k, in order, of weights[t, k]
        * y.

        Args:
            handle: of the dispatch.
            y: float32 [R, hidden], outputs in the order of `handle.rows`.
            weights: float32 [T, topk]; not looked at when T is 0.
            costs: of this call.

        Returns:
            float32 [T, hidden]. The sum of a token depends on its rows and weights only, not on the layout.

        Raises:
            UsageError: wrong shapes.
        """
        if handle.kept is not None and handle.micro_batch < len(self._compiled):
            numbers = _numbers(costs or self._combine_costs)
            out: Float32 | None = self._compiled[handle.micro_batch][1](handle.kept, y, weights, numbers)
            if out is not None:
                return out
        pair, plan, costs = self._write_back(handle, y, weights, costs)
        self._hook("poll")
        return self._add_up(pair, handle, weights, pair.exchange(plan, costs))

    def post_combine(
        self, handle: Handle, y: Float32, weights: Float32, costs: OperationCosts | None = None
    ) -> Pending:
        """The first half of `combine`; does not block."""
        pair, plan, costs = self._write_back(handle, y, weights, costs)
        pair.post(plan, costs)
        return Pending(pair, plan, handle.tokens, costs, handle, weights)

    def finish_combine(self, pending: Pending) -> Float32:
        """The second half of `combine`."""
        if pending.handle is None or pending.weights is None:
            raise UsageError("combine: this was posted as a dispatch; finish it with finish_dispatch")
        self._hook("poll")
        return self._add_up(pending.pair, pending.handle, pending.weights, pending.pair.wait(pending.costs))

    def _write_back(
        self, handle: Handle, y: Float32, weights: Float32, costs: OperationCosts | None
    ) -> tuple[BlockPair, Plan, OperationCosts]:
        pair, costs = self._pair(self._back, handle.micro_batch), costs or self._combine_costs
        _check_array("combine: y", y, (handle.rows.shape[0], self.hidden))
        if handle.tokens:
            _check_array("combine: weights", weights, (handle.tokens, self.topk))
        if costs.start_ps:
            self.device.compute(costs.start_ps, publish=False)
        plan = self.device.rows.plan_back(handle.received, handle.received_charge, handle.place, pair.most)
        self.device.rows.pack(pair.own(), self._back_form, y, handle.place, 1, None, None)
        return pair, plan, costs

    def _add_up(self, pair: BlockPair, handle: Handle, weights: Float32, result: ExchangeResult) -> Float32:
        self._hook("pull")
        records, counts, first, _ = pair.pull(result, handle.sent.counts)
        if not handle.tokens:
            weights = np.empty((0, self.topk), np.float32)
        out = self.device.rows.combine(records, self.hidden, counts, first, handle.sent.order, weights)
        self._record(pair, result, out)
        return out

    # --- idle -------------------------------------------------------------------------------------------

    def idle(self, steps: Sequence[IdleStep], micro_batch: int = 0) -> tuple[int, Handle]:
        """Take part in the next operations without rows of my own, asleep until one brings me rows.

        In virtual time this is exactly a loop of empty dispatches and combines with `compute_ps` of computing
        before each; on the host it is one sleep.

        Args:
            steps: what the others will do, in order; ends wherever the caller wants to be back.
            micro_batch: which pair of buffers.

        Returns:
            index of the step that brought rows and its handle; or of the last step, with a handle of no rows.
        """
        pairs, chain = self._chain(steps, micro_batch)
        for ps in (steps[0].compute_ps, steps[0].costs.start_ps):
            if ps:
                self.device.compute(ps)
        result = pairs[0].exchange(None, steps[0].costs, chain[1:])
        return self._woken(steps, pairs, result.index, result, micro_batch)

    def combine_then_idle(
        self, handle: Handle, y: Float32, steps: Sequence[IdleStep], costs: OperationCosts | None = None
    ) -> tuple[int, Handle]:
        """Send the experts' outputs home, then `idle`, in one sleep: for a rank that dispatched no rows.

        In virtual time this is exactly `combine` followed by `idle`.

        Args:
            handle: of the dispatch, with no rows of my own (`tokens` 0).
            y: see `combine`.
            steps: see `idle`; at least one.
            costs: of the combine.

        Raises:
            UsageError: as `combine`; or I sent rows, so the combine brings some.
        """
        if handle.tokens or not steps:
            raise UsageError(
                f"combine_then_idle: for a rank that dispatched no rows and has steps to follow, "
                f"got {handle.tokens} rows and {len(steps)} steps"
            )
        pairs, chain = self._chain(steps, handle.micro_batch)
        pair, plan, costs = self._write_back(handle, y, _NO_WEIGHTS, costs)
        result = pair.exchange(plan, costs, chain)
        return self._woken(steps, pairs, result.index - 1, result, handle.micro_batch, first=0)

    def _chain(self, steps: Sequence[IdleStep], micro_batch: int) -> tuple[list[BlockPair], list[ChainStep]]:
        """The steps as the engine goes through them: computing included, call prices too."""
        pairs = [self._pair(self._back if s.combine else self._out, micro_batch) for s in steps]
        price = self.device.engine.config.call_price_ps
        waits = [sum(ps + price for ps in (s.compute_ps, s.costs.start_ps) if ps) for s in steps]
        return pairs, [
            ChainStep(p.channel, w, s.costs.meta_bytes, s.costs.pull_start_ps, s.costs.record_ps)
            for p, s, w in zip(pairs, steps, waits, strict=True)
        ]

    def _woken(
        self,
        steps: Sequence[IdleStep],
        pairs: list[BlockPair],
        index: int,
        result: ExchangeResult,
        micro_batch: int,
        first: int = 1,
    ) -> tuple[int, Handle]:
        """Steps up to `index` are over, those from `first` on without my counting them."""
        for pair in pairs[first : index + 1]:
            pair.skip()
        if steps[index].combine:
            return index, self._nothing(micro_batch)
        return index, self._take_in(pairs[index], self._no_plan(), 0, result)

    def _nothing(self, micro_batch: int) -> Handle:
        none = np.zeros(self.device.num_ranks, np.int32)
        handle = Handle(np.empty((0, self.hidden), np.float32), micro_batch)
        handle.rows_per_slot = handle.charged_per_slot = np.zeros(self.slots, np.int64)
        handle.tokens, handle.sent, handle.place = 0, self._no_plan(), np.empty(0, np.int32)
        handle.received = handle.received_charge = none
        return handle

    def _no_plan(self) -> Plan:
        none = np.zeros(self.device.num_ranks, np.int32)
        return Plan(none, none, none, none, np.empty(0, np.int32))

    # --- shared -----------------------------------------------------------------------------------------

    def _pair(self, pairs: list[BlockPair], micro_batch: int) -> BlockPair:
        if not 0 <= micro_batch < len(pairs):
            raise UsageError(f"expert exchange: no micro-batch {micro_batch}; it was made for {len(pairs)}")
        return pairs[micro_batch]

    def _checked(self, x: Float32, slot_ids: Int64, charge: Int32 | None) -> tuple[Float32, Int64]:
        tokens = x.shape[0]
        if tokens > self.max_tokens:
            raise UsageError(f"dispatch: {tokens} rows, the block takes max_tokens={self.max_tokens}")
        _check_array("dispatch: x", x, (tokens, self.hidden))
        if slot_ids.shape != (tokens, self.topk) or slot_ids.dtype != np.int64:
            raise UsageError(
                f"dispatch: slot_ids must be int64 [{tokens}, {self.topk}], "
                f"got {slot_ids.dtype} {list(slot_ids.shape)}"
            )
        if charge is not None and (
            charge.shape != (tokens,) or charge.dtype != np.int32 or charge.min(initial=1) < 1
        ):
            raise UsageError(f"dispatch: charge must be int32 [{tokens}] of at least 1, got {charge!r}")
        return x, np.ascontiguousarray(slot_ids).reshape(-1)

    def _record(self, pair: BlockPair, result: ExchangeResult, rows: Float32) -> None:
        raw, now, channel = as_bytes(rows), self.device.now_ps, pair.channel
        self._times[:] = pair.posted_ps, result.records_ps, now
        self.device.trace.add(Op.ROWS, now, now, channel, raw.size, self.device.rows.checksum(raw))


def _numbers(costs: OperationCosts) -> tuple[int, int, int, int, int]:
    return costs.start_ps, costs.pull_start_ps, costs.record_ps, costs.row_bytes, costs.meta_bytes


def _check_sizes(**sizes: int) -> None:
    for name, value in sizes.items():
        if value < 1:
            raise UsageError(f"expert exchange: {name} must be at least 1, got {value}")


def _check_array(what: str, array: Float32, shape: tuple[int, ...]) -> None:
    if array.shape != shape or array.dtype != np.float32 or not array.flags.c_contiguous:
        raise UsageError(
            f"{what} must be contiguous float32 {list(shape)}, got {array.dtype} {list(array.shape)}"
        )
