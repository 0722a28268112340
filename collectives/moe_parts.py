"""What dispatch and combine are charged, take and give: costs, steps of idle ranks, handles."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from collectives.agreement import CollectiveMismatchError
from collectives.blocks import BlockPair
from emulator.engine.reports import ranges
from emulator.errors import DeadlockError
from emulator.rows import Int32, Plan

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
META_BYTES = 32
_CHANNEL = re.compile(r"channel (\d+)")


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


def unlike_operations(error: DeadlockError, names: Mapping[int, str]) -> CollectiveMismatchError | None:
    """Say who is in which operation, where those that block each other are in several of one exchange.

    Args:
        names: of the exchange's operations, by their channels.
    """
    where: dict[str, list[int]] = {}
    for waiter in error.fields["waiters"]:
        found = _CHANNEL.search(waiter["detail"])
        name = names.get(int(found.group(1)), "another call") if found else "another call"
        where.setdefault(name, []).append(waiter["rank"])
    if len(where) < 2:
        return None
    parts = "; ".join(f"{ranges(sorted(ranks))}: in {name}" for name, ranks in sorted(where.items()))
    return CollectiveMismatchError(f"expert exchange: the ranks are not in the same call: {parts}")
