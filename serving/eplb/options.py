"""How experts are balanced while serving: what a user may choose."""

from __future__ import annotations

from dataclasses import dataclass

from emulator.errors import UsageError

POLICIES = ("xdeepserve", "deepseek")


@dataclass(frozen=True)
class EplbOptions:
    """How to balance while serving.

    policy: who gets replicas. interval: steps between two reports. slices: parts of an interval in which rows
    are counted apart.
    """

    policy: str = "xdeepserve"
    interval: int = 32
    slices: int = 4

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise UsageError(f"--eplb {self.policy}: choose {' or '.join(POLICIES)}")
        if self.interval < 1:
            raise UsageError(f"--eplb-step-interval {self.interval}: at least one step")
        if self.slices < 1:
            raise UsageError(f"--eplb-slices {self.slices}: at least one")

    def slice_of(self, step: int) -> int:
        """In which slice the `step`-th step since the last report counts."""
        return min(self.slices - 1, step * self.slices // self.interval)


def eplb_options(policy: str | None, interval: int | None) -> EplbOptions | None:
    """What the options of a command ask for, None for no balancing. Raises UsageError."""
    if policy is None:
        if interval is not None:
            raise UsageError(f"--eplb-step-interval {interval} is of balancing: give --eplb as well")
        return None
    return EplbOptions(policy) if interval is None else EplbOptions(policy, interval)
