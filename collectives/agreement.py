"""How the ranks of a group see that they make the same call: descriptors side by side, compared by each.

Every rank writes what its call is (`Descriptor`) beside those of the others before it enters, and compares
all of them on its way out: every collective here ends only after all have entered, so each rank sees every
difference, and all raise the same error. When ranks wait for each other in different calls the machine's
deadlock report ends them, and the descriptors say why. Descriptors cost no virtual time: they are how the
emulator checks the program, not part of the machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from emulator.engine.reports import ranges
from emulator.errors import FabricError, UsageError

__all__ = [
    "AGREED",
    "FIELDS",
    "CollectiveMismatchError",
    "CollectiveTimeoutError",
    "Descriptor",
    "absent",
    "balance",
    "differences",
    "mark_of",
]

Int64 = npt.NDArray[np.int64]
FIELDS = 10
"""Numbers of a descriptor."""
AGREED = 9
"""So many of them, the first, must be equal on all ranks; the last must add up to 0."""
KINDS = (
    "broadcast", "reduce", "all_reduce", "all_gather", "all_gather_v", "reduce_scatter", "reduce_scatter_v",
    "all_to_all", "all_to_all_v", "gather", "gather_v", "scatter", "scatter_v", "barrier",
)  # fmt: skip
OPS = ("sum", "prod", "min", "max", "band", "bor", "bxor", "avg")
NAMES = (
    "full-mesh", "one-shot", "pairwise", "ring", "recursive-doubling", "recursive-halving", "dissemination",
    "bruck", "direct", "binomial", "two-level", "one-exchange",
)  # fmt: skip
TIMED = 64
"""Added to the number of an algorithm whose exchanges are done by puts, for the sake of a time-out."""
DTYPES = (
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16",
    "float32", "float64", "complex64", "complex128", "longdouble",
)  # fmt: skip


class CollectiveMismatchError(UsageError):
    """Ranks of a group do not make the same call. Raised on every rank. Fields: `group`, `call`."""


class CollectiveTimeoutError(FabricError):
    """A collective took longer than its time-out. Fields: `group`, `call`, `timeout_ps`, `missing`."""


class Descriptor(NamedTuple):
    """What a call is, as numbers that must be equal on all ranks of a group (-1 where one does not apply).

    number: 1, 2, … for this group. kind, dtype, op, algorithm: places in the tables above.
    length: elements of a block; counts: a checksum of a list of counts. root: rank in the group.
    charge: priced bytes where the caller says, else -1.
    balance: of all ranks together 0 if what each sends is what the other takes (`balance`).
    """

    number: int
    kind: int
    dtype: int = -1
    length: int = -1
    counts: int = -1
    op: int = -1
    root: int = -1
    charge: int = -1
    algorithm: int = -1
    balance: int = 0

    @property
    def words(self) -> str:
        """The call in words."""
        text = KINDS[self.kind]
        if self.dtype >= 0:
            some = f"{self.length} " if self.length >= 0 else ""
            text += f" of {some}{name_of(DTYPES, self.dtype)}"
        if self.op >= 0:
            text += f" by {name_of(OPS, self.op)}"
        return text + (f" with root {self.root}" if self.root >= 0 else "")


_FIELD_NAMES = (
    "number", "operation", "dtype", "count", "list of counts", "op", "root", "charge_bytes", "algorithm",
)  # fmt: skip
_TABLES: dict[int, Sequence[str]] = {1: KINDS, 2: DTYPES, 5: OPS, 8: NAMES}
_ODD = np.uint64(0x9E3779B97F4A7C15)


def balance(sources: Int64 | int, targets: Int64 | int, counts: Int64 | int) -> int:
    """A signed 64-bit sum over messages, each with a weight of its own; wraps.

    Sent minus expected of all ranks is 0 if they agree message by message, and hardly ever (1 in 2**64)
    otherwise.
    """
    mixed = np.asarray(sources, np.uint64) * np.uint64(4096) + np.asarray(targets, np.uint64) + np.uint64(1)
    with np.errstate(over="ignore"):
        mixed = mixed * _ODD
        mixed = (mixed ^ mixed >> np.uint64(29)) * _ODD
        mixed = mixed ^ mixed >> np.uint64(32)
        return int((mixed * np.asarray(counts).astype(np.uint64)).sum(dtype=np.uint64).view(np.int64))


def mark_of(descriptor: Descriptor) -> int:
    """64-bit odd hash of what must be equal on all ranks, but for the number of the call."""
    numbers = ",".join(map(str, descriptor[1:AGREED]))
    return int.from_bytes(hashlib.blake2b(numbers.encode(), digest_size=8).digest(), "little") | 1


def name_of(table: Sequence[str], number: int) -> str:
    """Name of a number of one of the tables."""
    if table is NAMES and number >= TIMED:
        return f"{name_of(table, number - TIMED)} with a time-out"
    return table[number] if 0 <= number < len(table) else "none"


def differences(table: Int64, members: Sequence[int]) -> str | None:
    """Say in what the descriptors of a group differ, None if in nothing.

    Args:
        table: int64 [g, FIELDS], by rank of the group.
        members: ranks of the machine, by rank of the group; the text names these.
    """
    unequal = np.flatnonzero((table[:, :AGREED] != table[0, :AGREED]).any(axis=0))
    if not unequal.size:
        return None
    field = int(unequal[0])
    values, inverse = np.unique(table[:, field], return_inverse=True)
    parts = []
    for number, value in enumerate(values.tolist()):
        ranks = sorted(members[place] for place in np.flatnonzero(inverse == number).tolist())
        parts.append((len(ranks), f"{ranges(ranks)}: {_value(field, value)}"))
    parts.sort(key=lambda part: -part[0])
    return f"the ranks disagree on the {_FIELD_NAMES[field]}: " + "; ".join(text for _, text in parts[:8])


def _value(field: int, value: int) -> str:
    if field in _TABLES:
        return name_of(_TABLES[field], value)
    return f"{value & 0xFFFFFFFF:08x}" if field == 4 and value >= 0 else str(value) if value >= 0 else "none"


def absent(calls: Int64, call: int, members: Sequence[int]) -> list[int]:
    """Ranks of the machine that have not entered `call`; `calls`: int64 [g], the last each has entered."""
    return sorted(members[place] for place in np.flatnonzero(calls < call).tolist())


def mismatch(group: str, descriptor: Descriptor, text: str, **fields: Any) -> CollectiveMismatchError:
    """An error in one line: which call of which group, and what differs."""
    message = f"collective {descriptor.number} of group {group} ({descriptor.words}): {text}"
    return CollectiveMismatchError(message, group=group, call=descriptor.number, **fields)
