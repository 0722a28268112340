"""What moving bytes took beside the bytes: transactions by path and kind, bytes by plane, calls.

A rank's ledger is its row of the board, so rank 0 can add all of them up at the end. Only its own rank writes
it, at the call that causes a transaction, whoever carries it out later. Nothing here decides a virtual time;
the prices are in `emulator.fabric`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from emulator.fabric import Plane, Transaction
from emulator.planes import PLANES

PATHS = ("mem", "verbs", "urma", "mpi")
"""Ways of moving bytes: windows, verbs, URMA, messages."""
_AT = {path: at for at, path in enumerate(PATHS)}
_KINDS = len(Transaction)
LEDGER_SIZE = len(PATHS) * (2 * _KINDS + 1) + len(PLANES)
Int64 = npt.NDArray[np.int64]


class Ledger:
    """Counters of one rank, or of several added up.

    Args:
        row: int64 [LEDGER_SIZE] the counters live in; zeros of its own by default.

    Attributes:
        counts, nbytes: int64 [paths, kinds], transactions and the control bytes they put on links.
        calls: int64 [paths], calls of the program into that path.
        wire: int64 [planes], all bytes charged to links, control bytes included, exchanges left out.
    """

    def __init__(self, row: Int64 | None = None) -> None:
        row = np.zeros(LEDGER_SIZE, np.int64) if row is None else row
        table = len(PATHS) * _KINDS
        self.counts: Int64 = row[:table].reshape(len(PATHS), _KINDS)
        self.nbytes: Int64 = row[table : 2 * table].reshape(len(PATHS), _KINDS)
        self.calls: Int64 = row[2 * table : 2 * table + len(PATHS)]
        self.wire: Int64 = row[2 * table + len(PATHS) :]

    def add(self, path: str, kind: Transaction, count: int = 1, nbytes: int = 0) -> None:
        """Count transactions of a path; `nbytes` in all, of those that travel as bytes of their own. Raises
        KeyError, no such path."""
        at = _AT[path]
        self.counts[at, kind] += count
        self.nbytes[at, kind] += nbytes

    def call(self, path: str, count: int = 1) -> None:
        """Count calls of the program into a path."""
        self.calls[_AT[path]] += count

    def moved(self, plane: int, nbytes: int) -> None:
        """Count bytes charged to a plane's links."""
        self.wire[plane] += nbytes

    def as_dict(self) -> dict[str, Any]:
        """Return what is not zero: {path: {"calls": n, kind: {"count": n, "bytes": n}}} and
        {"wire_bytes": {plane: n}}."""
        result: dict[str, Any] = {}
        for at, path in enumerate(PATHS):
            used = {
                kind.name.lower(): {"count": int(self.counts[at, kind]), "bytes": int(self.nbytes[at, kind])}
                for kind in Transaction
                if self.counts[at, kind]
            }
            if used or self.calls[at]:
                result[path] = {"calls": int(self.calls[at]), **used}
        result["wire_bytes"] = {PLANES[p]: int(self.wire[p]) for p in Plane if self.wire[p]}
        return result


def total(rows: Int64) -> Ledger:
    """Return the sum of the ledgers of some ranks, rows int64 [ranks, LEDGER_SIZE]."""
    return Ledger(rows.sum(axis=0))
