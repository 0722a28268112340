"""What follows a death, as commands take it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import serving
from emulator.errors import UsageError
from emulator.faults.names import nearest
from serving.recovery.times import PS_PER_S, RecoveryTimes, read_times

TIMES_FILE = Path(str(serving.__file__)).parent / "recovery.toml"
WAYS = ("in-place", "restart")
LONGEST_S = 1e5


Way = Annotated[
    str,
    typer.Option(help="After a death under a plan: in-place (the others go on) or restart (the whole pod)."),
]
Period = Annotated[
    float | None, typer.Option(help="With --recovery in-place: virtual seconds between a rank's beats (1).")
]
Timeout = Annotated[
    float | None, typer.Option(help="... and after which a rank that is not heard of is declared dead (3).")
]


def recovery_times(
    way: str, period_s: float | None = None, timeout_s: float | None = None
) -> RecoveryTimes | None:
    """The times of recovery in place; None for a restart.

    Raises:
        UsageError: another word; a time-out below two periods; beats without recovery in place.
    """
    if way not in WAYS:
        raise UsageError(f"--recovery {way!r} is not known; nearest: {nearest(way, WAYS)}")
    for option, value in (("--heartbeat-period", period_s), ("--heartbeat-timeout", timeout_s)):
        if value is not None and not 0 < value <= LONGEST_S:
            raise UsageError(f"{option} {value:g}: more than 0 and at most {LONGEST_S:g} virtual seconds")
    given = {"period_ps": period_s, "timeout_ps": timeout_s}
    changes = {name: round(value * PS_PER_S) for name, value in given.items() if value is not None}
    if way == "in-place":
        return read_times(TIMES_FILE, **changes)
    if changes:
        raise UsageError("--heartbeat-period, --heartbeat-timeout: only with --recovery in-place")
    return None
