"""Blocks, channels and checks of an expert exchange; see `collectives.moe`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from collectives.blocks import Block, BlockPair
from collectives.moe_parts import EpCosts, Handle, OperationCosts, Timing, unlike_operations
from collectives.moe_refusals import given_up, other_rows
from collectives.refusals import refused, told_in_making
from emulator import Device
from emulator.engine.api import ExchangeResult
from emulator.errors import DeadlockError, InternalError, UsageError
from emulator.memory import as_bytes
from emulator.pairs import PairCall, PairShape
from emulator.rows import Int32, RowFormat
from emulator.tracing import Op
from emulator.transport import Area

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]


class ExchangeBase:
    """What dispatch and combine between all ranks need, each holding `slots` physical experts.

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

    @told_in_making
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
        what = (
            f"expert exchange {self.slots}x{self.hidden}, {self.max_tokens} tokens to {self.topk}, "
            f"at most {self.max_rows} rows{' of int8' * self._out_form.int8} x {micro_batches}"
        )
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

    # --- shared -----------------------------------------------------------------------------------------

    def _pair(self, pairs: list[BlockPair], micro_batch: int) -> BlockPair:
        if not 0 <= micro_batch < len(pairs):
            text = f"expert exchange: no micro-batch {micro_batch}; it was made for {len(pairs)}"
            raise refused(self.device, UsageError(text))
        return pairs[micro_batch]

    def _checked(self, x: Float32, slot_ids: Int64, charge: Int32 | None) -> tuple[Float32, Int64]:
        tokens = x.shape[0]
        if tokens > self.max_tokens:
            raise UsageError(f"dispatch: {tokens} rows, the block takes max_tokens={self.max_tokens}")
        check_array("dispatch: x", x, (tokens, self.hidden))
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

    def _explained(self, error: DeadlockError | InternalError, pair: BlockPair) -> Exception:
        """An error of the exchange that `pair` has ended as what it is: ranks in different operations of
        mine, one that could not take part, rows that are not those dispatched."""
        if isinstance(error, InternalError):
            return given_up(self.device, pair) or other_rows(self.device, pair, error)
        names = {pair.channel: f"dispatch of micro-batch {pair.micro_batch}" for pair in self._out}
        names |= {pair.channel: f"combine of micro-batch {pair.micro_batch}" for pair in self._back}
        return unlike_operations(error, names) or error

    def _record(self, pair: BlockPair, result: ExchangeResult, rows: Float32) -> None:
        raw, now, channel = as_bytes(rows), self.device.now_ps, pair.channel
        self._times[:] = pair.posted_ps, result.records_ps, now
        self.device.trace.add(Op.ROWS, now, now, channel, raw.size, self.device.rows.checksum(raw))


def _check_sizes(**sizes: int) -> None:
    for name, value in sizes.items():
        if value < 1:
            raise UsageError(f"expert exchange: {name} must be at least 1, got {value}")


def check_array(what: str, array: Float32, shape: tuple[int, ...]) -> None:
    """Raises: UsageError, it is not contiguous float32 of that shape."""
    if array.shape != shape or array.dtype != np.float32 or not array.flags.c_contiguous:
        raise UsageError(
            f"{what} must be contiguous float32 {list(shape)}, got {array.dtype} {list(array.shape)}"
        )
