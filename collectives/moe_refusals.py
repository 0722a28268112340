"""A rank that cannot take part in a dispatch or a combine of an expert exchange, and how all learn of it.

It takes its place in the exchange all the same, with a row of another event, which everybody finds; the
reason stands in its remark. So nobody waits in vain, all raise the same error, and the next call works.
"""

from __future__ import annotations

from collectives.agreement import CollectiveMismatchError
from collectives.blocks import BlockPair
from collectives.moe_parts import OperationCosts
from emulator import Device
from emulator.engine.reports import ranges
from emulator.errors import DeadlockError, FabricError, InternalError, UsageError
from emulator.remarks import remark, remarked
from emulator.rows import OTHER_ROWS


def give_up(device: Device, pair: BlockPair, costs: OperationCosts, error: UsageError) -> UsageError:
    """Take part in the coming event of `pair` with nothing but `error`; returns it as all raise it."""
    said = f"rank {device.rank}: {error.message}"
    remark(device.board, device.rank, _mark(pair, 0) + said)
    try:
        pair.give_up(costs)
    except (DeadlockError, FabricError):  # the others do not come to it: what they get ends with the remark
        return error
    return given_up(device, pair) or error


def given_up(device: Device, pair: BlockPair) -> UsageError | None:
    """The error of the event of `pair` that is over, if ranks could not take part in it."""
    said = sorted(remarked(device.board, _mark(pair, -1)).items())
    if not said:
        return None
    more = f" (and {ranges([rank for rank, _ in said[1:]])} too)" if len(said) > 1 else ""
    return UsageError(said[0][1] + more, ranks=[rank for rank, _ in said])


def other_rows(device: Device, pair: BlockPair, error: InternalError) -> Exception:
    """The error of a combine that brought other rows than were dispatched; other errors as they are."""
    if OTHER_ROWS not in error.message:
        return error
    return CollectiveMismatchError(
        f"combine of micro-batch {pair.micro_batch}: rank {device.rank} does not get back the rows it has "
        "dispatched; its handle, or that of a rank it sent rows to, is of another dispatch",
        group="expert exchange", call=pair.next_event - 1,
    )  # fmt: skip


def _mark(pair: BlockPair, ahead: int) -> str:
    """What remarks about the coming event (or, `ahead` -1, the last one) begin with."""
    return f"refused in event {pair.next_event + ahead} of channel {pair.channel}: "
