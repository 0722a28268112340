"""What a rank did to windows, one record a line of its program: what the race checker reads.

Written only with `check_races`, to `rank-<r>.check` in the run's trace directory, beside the rank's trace.
A record takes no virtual time and changes nothing. Accesses name bytes of the *home*'s heap; synchronisation
names what was waited for. Left out: what is done with `window.local` once it is plain memory (see
`checked.py`).
"""

from __future__ import annotations

import enum
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

CHECK_DTYPE = np.dtype(
    [
        ("time_ps", "<i8"),  # virtual time of the record: of an access its issue, of a wait its return
        ("low", "<i8"),  # first byte in the home's heap; of a message: its number between the two ranks
        ("high", "<i8"),  # one past the last byte
        ("value", "<i8"),  # of the signal; waited for; an atomic's old value
        ("seen", "<i8"),  # a wait's: the word when it returned; an atomic's: the new value
        ("index", "<i8"),  # DONE, SOURCE: the record number of the operation it is about
        ("kind", "<i4"),  # a Kind
        ("home", "<i4"),  # whose memory; of a message: the other end
        ("word", "<i4"),  # signal word of the home, -1 for none
        ("op", "<i4"),  # of the signal: SET or ADD of the engine; of a wait: the comparison
        ("order", "<i4"),  # place order of a put: 0 none, 1 relaxed, 3 strong
        ("spare", "<i4"),
    ]
)
"""One record of a rank's file; its number is its place in the file."""


class Kind(enum.IntEnum):
    """What a record says happened."""

    PUT = 1
    """Write of the home's bytes, complete later; with a word also a signal."""
    GET = 2
    """Blocking read of the home's bytes."""
    GET_NBI = 3
    """Read of the home's bytes that samples later."""
    ATOMIC = 4
    """Atomic on the home's bytes; with `op` 1 it found `value` and left `seen`, with 0 nobody looked."""
    LOAD = 5
    """Read of my own bytes at this point."""
    STORE = 6
    """Write of my own bytes at this point."""
    WAIT = 7
    """My word compared as asked (wait, test or read)."""
    RESET = 8
    """I set my own word to `value`."""
    FENCE = 9
    QUIET = 10
    BARRIER = 11
    """All ranks met; says nothing about completion (a QUIET record does)."""
    DONE = 12
    """Operation `index` of mine is complete."""
    SEND = 13
    """Message number `low` to `home` left."""
    RECEIVE = 14
    """Message number `low` from `home` is here."""
    SOURCE = 15
    """The source of operation `index` was changed before it was complete."""


class CheckFile:
    """The record file of one rank, written as it happens: a run that fails leaves what led to it."""

    def __init__(self, directory: str, rank: int) -> None:
        path = os.path.join(directory, f"rank-{rank}.check")
        self._file = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o644)
        self._count = 0

    def add(self, kind: Kind, time_ps: int, **fields: int) -> int:
        """Append one record; returns its number."""
        record = np.zeros(1, CHECK_DTYPE)
        record["word"] = -1
        record["kind"], record["time_ps"] = kind, time_ps
        for name, value in fields.items():
            record[name] = value
        return self.append(record)

    def append(self, records: npt.NDArray[Any]) -> int:
        """Append several; returns the number of the first."""
        os.write(self._file, records.tobytes())
        self._count += records.size
        return self._count - records.size

    def close(self) -> None:
        """End the file."""
        os.close(self._file)


def read_check_files(directory: str | Path) -> list[npt.NDArray[Any]]:
    """Read the files of a run, by rank.

    Raises:
        FileNotFoundError: there is none, or that of a rank is missing.
    """
    ranks = sorted(int(path.stem[5:]) for path in Path(directory).glob("rank-*.check"))
    if not ranks or ranks != list(range(len(ranks))):
        raise FileNotFoundError(f"{directory}: files rank-0.check to rank-N.check are needed, found {ranks}")
    return [np.fromfile(Path(directory) / f"rank-{rank}.check", CHECK_DTYPE) for rank in ranks]
