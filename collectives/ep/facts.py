"""What must be alike or in bounds in a call: facts, arrays at the face, rows that come to a rank. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from collectives.ep.traffic import SCHEMES
from collectives.ep.wire import FORMS
from emulator.errors import UsageError

Int64 = npt.NDArray[np.int64]


def facts(
    operation: int, scheme: str, words: int, hidden: int, topk: int, experts: int, capacity: int,
    cached: bool = False, mask: int = 0, kind: str = "float32", back_kind: str = "float32", max_rows: int = 0,
) -> tuple[int, ...]:  # fmt: skip
    """The facts of a call in the order of `area.FIELDS`, without the event."""
    forms = FORMS.index(kind), FORMS.index(back_kind)
    sizes = words, hidden, topk, experts, capacity
    return operation, SCHEMES.index(scheme), *sizes, int(cached), mask, *forms, max_rows


class Limit(NamedTuple):
    """Most rows a rank takes of a dispatch. pairs: counted as pairs, else as distinct (token, rank). name: of
    the setting. All ranks have the same."""

    rows: int
    pairs: bool
    name: str


def check_rows(counts: npt.NDArray[np.integer], members: Int64, limit: Limit) -> None:
    """Raise on every rank what every rank reads in the tables: who is sent more rows than it takes.

    Args:
        counts: [R, R], rows of each source for each target. members: int64 [R], machine ranks.

    Raises:
        UsageError: it names the first such rank, its rows and the limit.
    """
    rows = counts.sum(axis=0, dtype=np.int64)
    over = np.flatnonzero(rows > limit.rows)
    if over.size:
        who = members[over].tolist()
        more = f" (and {over.size - 1} more ranks get too many)" if over.size > 1 else ""
        raise UsageError(
            f"rank {who[0]}: dispatch: {rows[over[0]]} rows come to it, it takes {limit.name}={limit.rows}"
            f"{more}; raise {limit.name} on all ranks or dispatch fewer tokens",
            ranks=who,
        )


def check_plain(what: str, array: object, shape: tuple[int, ...]) -> str:
    """Trouble of an array that must be contiguous float32 of a shape; '' for none."""
    if not isinstance(array, np.ndarray) or array.dtype != np.float32 or array.shape != shape:
        return f"{what} must be float32 {list(shape)}, got {_kind(array)}"
    return "" if array.flags.c_contiguous else f"{what} must be contiguous"


def _kind(array: object) -> str:
    if isinstance(array, np.ndarray):
        return f"{array.dtype} {list(array.shape)}"
    return type(array).__name__
