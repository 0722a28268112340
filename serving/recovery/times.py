"""What detection and recovery take in virtual time. Pure."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from emulator.errors import UsageError

PS_PER_S = 1_000_000_000_000
_KEYS = {
    "period_ps": ("heartbeat", "period_s"),
    "timeout_ps": ("heartbeat", "timeout_s"),
    "in_place_ps": ("in_place", "collocated_s"),
    "expert_ps": ("in_place", "reload_expert_s"),
    "ask_again_ps": ("front_end", "ask_again_s"),
}


@dataclass(frozen=True)
class RecoveryTimes:
    """period_ps, timeout_ps: of the beats. in_place_ps: from the declaration to serving again. expert_ps: to
    load one expert (all its layers) from the checkpoint; a rank loads one after the other. ask_again_ps:
    after which a token the front end has not acknowledged is sent again."""

    period_ps: int
    timeout_ps: int
    in_place_ps: int
    expert_ps: int
    ask_again_ps: int

    def __post_init__(self) -> None:
        if not 0 < 2 * self.period_ps <= self.timeout_ps:
            raise UsageError(
                f"heartbeats: the time-out of {self.timeout_ps / PS_PER_S:g} s must be at least two periods "
                f"of {self.period_ps / PS_PER_S:g} s, and both above 0"
            )

    def recovery_ps(self, most_loaded: int) -> int:
        """From the declaration to serving again, where a rank loads at most so many experts."""
        return self.in_place_ps + most_loaded * self.expert_ps


def read_times(path: Path, **changes: int) -> RecoveryTimes:
    """Read the times, ps. Raises UsageError: missing, or a time-out below the period.

    Args:
        path: the TOML file.
        changes: fields that replace the file's.
    """
    try:
        table = tomllib.loads(path.read_text())
        fields = {
            name: round(float(table[section][key]["value"]) * PS_PER_S)
            for name, (section, key) in _KEYS.items()
        }
    except (OSError, KeyError, TypeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path}: heartbeat and in_place times are needed: {error}") from None
    return RecoveryTimes(**(fields | changes))
