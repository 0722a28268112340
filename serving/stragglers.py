"""Ranks that fall behind: slow dies, pauses of the garbage collector, launches that come late.

All of it is in a rank's own computing, so the others wait for it at their next exchange: one rank's pause is
everybody's. What happens follows from options and seed, never from a clock of the host. `superpod decode` has
jitter fitted to a measured machine (`serving.decode.jitter`); these are knobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from emulator.errors import UsageError
from serving.decode.jitter import Jitter

__all__ = ["StragglerClock", "Stragglers", "parse_stragglers"]

_PS_PER_S, _PS_PER_MS, _PS_PER_US = 10**12, 10**9, 10**6
_MOST_US = 1e9


class ComputeClock(Protocol):
    @property
    def now_ps(self) -> int: ...

    def compute(self, ps: int | None = None, *, label: int = 0) -> None: ...


@dataclass(frozen=True)
class Stragglers:
    """Who falls behind, and how.

    slow: (rank, factor): all this rank computes takes so many times its price. pauses: (rank, at_ps,
    length_ps): the first computing from then on takes so much longer. launch_ps: mean of an exponential delay
    of everything a rank starts.
    """

    slow: tuple[tuple[int, float], ...] = ()
    pauses: tuple[tuple[int, int, int], ...] = ()
    launch_ps: int = 0

    def check(self, num_ranks: int) -> None:
        """Raise UsageError where a rank does not exist."""
        for option, ranks in (("--slow-die", self.slow), ("--gc-pause", self.pauses)):
            for rank, *_ in ranks:
                if not 0 <= rank < num_ranks:
                    raise UsageError(
                        f"{option} {rank}=…: there is no rank {rank}; take one of 0 to {num_ranks - 1}"
                    )

    def later(self, ps: int) -> Stragglers:
        """The same where time begins at `ps`."""
        return replace(self, pauses=tuple((rank, at + ps, length) for rank, at, length in self.pauses))


class StragglerClock:
    """A rank's clock as its forward pass sees it."""

    def __init__(self, clock: ComputeClock, rank: int, stragglers: Stragglers, seed: int) -> None:
        self._clock, self._rank = clock, rank
        self._factor = 1.0
        for slow, factor in stragglers.slow:
            self._factor *= factor if slow == rank else 1.0
        self._pauses = sorted((at, length) for who, at, length in stragglers.pauses if who == rank)
        self._jitter = Jitter(seed, stragglers.launch_ps)
        self._number = 0

    @property
    def now_ps(self) -> int:
        return self._clock.now_ps

    def compute(self, ps: int | None = None, *, label: int = 0) -> None:
        """Charge priced work, ps, and what it takes longer here."""
        taken = round((ps or 0) * self._factor)
        self._number += 1
        taken += self._jitter.launch_delay_ps(self._rank, self._number)
        while self._pauses and self._pauses[0][0] <= self._clock.now_ps:
            taken += self._pauses.pop(0)[1]
        self._clock.compute(taken, label=label)


def parse_stragglers(slow: Sequence[str], pauses: Sequence[str], launch_us: float) -> Stragglers | None:
    """Read `--slow-die RANK=FACTOR`, `--gc-pause RANK=SECONDS:MS` and `--launch-jitter US`; None for none.

    Raises:
        UsageError: not of that form, or a value that cannot be.
    """
    if not 0 <= launch_us < _MOST_US:
        raise UsageError(f"--launch-jitter {launch_us:g}: a delay of 0 to {_MOST_US:g} µs is wanted")
    found = Stragglers(launch_ps=round(launch_us * _PS_PER_US))
    for text in slow:
        rank, (factor,) = _numbers("--slow-die", text, "RANK=FACTOR, as 3=1.5", 1)
        if factor <= 0:
            raise UsageError(f"--slow-die {text}: the factor must be above 0")
        found = replace(found, slow=(*found.slow, (rank, factor)))
    for text in pauses:
        rank, (at_s, length_ms) = _numbers("--gc-pause", text, "RANK=SECONDS:MS, as 3=0.5:100", 2)
        if at_s < 0 or length_ms <= 0:
            raise UsageError(f"--gc-pause {text}: the time must not be negative, and the length above 0")
        pause = (rank, round(at_s * _PS_PER_S), round(length_ms * _PS_PER_MS))
        found = replace(found, pauses=(*found.pauses, pause))
    return None if found == Stragglers() else found


def _numbers(option: str, text: str, form: str, count: int) -> tuple[int, list[float]]:
    rank, _, rest = text.partition("=")
    try:
        values = [float(part) for part in rest.split(":")]
        if len(values) != count or not all(abs(value) < 1e9 for value in values):
            raise ValueError
        return int(rank), values
    except ValueError:
        raise UsageError(f"{option} {text}: give {form}") from None
