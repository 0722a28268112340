"""Who drafts, and what of a draft is accepted: pure.

`OwnDrafter` takes what the MTP layers say. `ConfiguredDrafter` takes the true next token of a recorded run
with a given probability, else a wrong one; the layers are computed all the same, and verification is real in
either case. The draw is a hash of (seed, request, position, depth): no state, so the same in every layout.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from emulator.errors import UsageError

__all__ = ["ConfiguredDrafter", "Drafter", "OwnDrafter", "SpeculationCounts", "accepted", "parse_acceptance"]

MOST_LAYERS = 2


class Drafter(Protocol):
    """Gives the drafts that are verified."""

    def drafts(self, request: int, position: int, own: Sequence[int]) -> list[int]:
        """Drafts for outputs position, position + 1, … of a request; `own` are the MTP layers'."""


class OwnDrafter:
    """What the layers say."""

    def drafts(self, request: int, position: int, own: Sequence[int]) -> list[int]:
        """See `Drafter`."""
        return list(own)


@dataclass(frozen=True)
class ConfiguredDrafter:
    """Drafts that are right as often as asked.

    acceptance: of the first draft, of the second if the first was accepted, …. recorded: outputs of each
    request without speculation. seed: of the draws.
    """

    acceptance: tuple[float, ...]
    recorded: Mapping[int, Sequence[int]]
    vocab: int
    seed: int = 0

    def drafts(self, request: int, position: int, own: Sequence[int]) -> list[int]:
        """See `Drafter`. Beyond the end of the record a draft is the layer's own."""
        truth = self.recorded.get(request, ())
        chosen = []
        for depth, (rate, mine) in enumerate(zip(self.acceptance, own, strict=False)):
            at = position + depth
            if at >= len(truth):
                chosen.append(mine)
                continue
            draw, offset = _draw(self.seed, request, at, depth)
            wrong = (truth[at] + 1 + offset % (self.vocab - 1)) % self.vocab
            chosen.append(int(truth[at]) if draw < rate else int(wrong))
        return chosen


def _draw(seed: int, request: int, position: int, depth: int) -> tuple[float, int]:
    """A number from 0 up to 1, and a large one."""
    digest = hashlib.sha256(f"mtp:{seed}:{request}:{position}:{depth}".encode()).digest()
    return int.from_bytes(digest[:8], "little") / 2**64, int.from_bytes(digest[8:16], "little")


def accepted(drafts: Sequence[int], sampled: Sequence[int]) -> int:
    """How many drafts the model itself gave: the length of their common beginning."""
    count = 0
    while count < min(len(drafts), len(sampled)) and drafts[count] == sampled[count]:
        count += 1
    return count


@dataclass
class SpeculationCounts:
    """Counted, never computed: verification steps, tokens they gave, and per depth how often a draft was
    looked at (all before it accepted) and accepted."""

    steps: int = 0
    tokens: int = 0
    tried: list[int] = field(default_factory=lambda: [0] * MOST_LAYERS)
    taken: list[int] = field(default_factory=lambda: [0] * MOST_LAYERS)

    def note(self, num_drafts: int, taken: int, tokens: int) -> None:
        """One verification step: of `num_drafts` drafts the first `taken` were accepted."""
        self.steps += 1
        self.tokens += tokens
        for depth in range(min(num_drafts, taken + 1)):
            self.tried[depth] += 1
            self.taken[depth] += depth < taken

    def add(self, other: "SpeculationCounts") -> None:
        """Count another's besides."""
        self.steps += other.steps
        self.tokens += other.tokens
        self.tried = [a + b for a, b in zip(self.tried, other.tried, strict=True)]
        self.taken = [a + b for a, b in zip(self.taken, other.taken, strict=True)]

    @property
    def acceptance(self) -> list[float]:
        """Accepted of tried, of each depth that was tried."""
        return [taken / tried for taken, tried in zip(self.taken, self.tried, strict=True) if tried]

    @property
    def standard_errors(self) -> list[float]:
        """Of each `acceptance`: how far chance alone takes it from what is configured, usually."""
        tried = [count for count in self.tried if count]
        return [math.sqrt(a * (1 - a) / count) for a, count in zip(self.acceptance, tried, strict=True)]

    @property
    def tokens_per_step(self) -> float:
        """Tokens a verification step gave; 0 without any."""
        return self.tokens / self.steps if self.steps else 0.0


def parse_acceptance(text: str, num_layers: int) -> tuple[float, ...]:
    """Read `--mtp-acceptance a1[,a2]`.

    Raises:
        UsageError: not as many numbers from 0 to 1 as there are draft layers.
    """
    try:
        rates = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--mtp-acceptance {text}: give numbers like 0.9 or 0.9,0.7") from None
    if len(rates) != num_layers or not all(0 <= rate <= 1 for rate in rates):
        raise UsageError(
            f"--mtp-acceptance {text}: give {num_layers} number{'s' * (num_layers > 1)} from 0 to 1, one for "
            "each draft layer (--mtp)"
        )
    return rates
