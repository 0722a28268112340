"""What follows a death, as commands take it."""

from __future__ import annotations

from pathlib import Path

import serving
from emulator.errors import UsageError
from emulator.faults.names import nearest
from serving.recovery.times import RecoveryTimes, read_times

TIMES_FILE = Path(str(serving.__file__)).parent / "recovery.toml"
WAYS = ("in-place", "restart")


def recovery_times(way: str) -> RecoveryTimes | None:
    """The times of recovery in place; None for a restart. Raises UsageError for another word."""
    if way not in WAYS:
        raise UsageError(f"--recovery {way!r} is not known; nearest: {nearest(way, WAYS)}")
    return read_times(TIMES_FILE) if way == "in-place" else None
