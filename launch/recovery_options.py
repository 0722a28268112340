"""What follows a death, as commands take it."""

from __future__ import annotations

from dataclasses import dataclass
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

Spares = Annotated[
    int,
    typer.Option(min=0, help="With --recovery in-place: so many of the ranks serve once another has died."),
]


Reload = Annotated[
    bool,
    typer.Option(
        help="Whether survivors load a dead rank's experts; else requests that need one end with an error."
    ),
]
Degraded = Annotated[
    bool,
    typer.Option("--allow-degraded", help="Leave lost experts out of routing; flags whom that touches."),
]


@dataclass(frozen=True)
class Policy:
    """What follows a death: the times of recovery in place (None: the pod restarts), spares, and what becomes
    of experts no living rank holds (`serving.recovery.masks.LostExperts`)."""

    times: RecoveryTimes | None = None
    spares: int = 0
    lost_experts: str = "load"


def policy(num_ranks: int, times: RecoveryTimes | None, spares: int, reload: bool, degraded: bool) -> Policy:
    """The policy that options ask for. Raises UsageError: what only recovery in place has; no rank serves."""
    if times is None and (degraded or not reload or spares):
        raise UsageError("--spares, --no-reload, --allow-degraded: only with --recovery in-place")
    if spares and spares >= num_ranks:
        raise UsageError(f"--spares {spares} of {num_ranks} ranks: at most {num_ranks - 1}, one has to serve")
    return Policy(times, spares, "mask" if degraded else "load" if reload else "fail")


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
