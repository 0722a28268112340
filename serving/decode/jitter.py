"""How unevenly the dies of a pod run: a pure function of (seed, rank, step, layer), never of a clock.

Three sources, each added to a rank's own computing, so that the others wait for it at their next exchange:

    launch    once a step, before the first layer: the host starts the captured graph late
    noise     every block of every layer takes a little more or less than its price, by nothing on average
    stall     rarely, a block is held up by the host (garbage collection, an unpinned core)

Sources: launch jitter and its cures, arXiv 2508.02520v6 4.4; the sizes are in the priced model's file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from emulator.profile import Profile, exact

ATTENTION, EXPERTS, LAUNCH = 1, 2, 3
"""Blocks of a layer: what precedes its dispatch, what precedes its combine; and the start of a step."""

_MASK: Final = (1 << 64) - 1
_UNIT: Final = 1.0 / (1 << 53)


@dataclass(frozen=True)
class Jitter:
    """Sizes of the sources; all zero is a machine without jitter.

    launch_ps: mean of an exponential delay. attention_noise, expert_noise: standard deviation of a block,
    relative to its price.
    stall_probability: of one block of one layer; a stall lasts stall_floor_ps and an exponential time of mean
    stall_mean_ps.
    """

    seed: int = 0
    launch_ps: int = 0
    attention_noise: float = 0.0
    expert_noise: float = 0.0
    stall_probability: float = 0.0
    stall_floor_ps: int = 0
    stall_mean_ps: int = 0

    @classmethod
    def from_entries(cls, entries: Profile, seed: int) -> Jitter:
        """The jitter of a priced model's file, section `jitter`."""
        return cls(
            seed,
            entries.ps("jitter.launch_us"),
            float(exact(entries.value("jitter.attention_noise"))),
            float(exact(entries.value("jitter.expert_noise"))),
            float(exact(entries.value("jitter.stall_probability"))),
            entries.ps("jitter.stall_floor_us"),
            entries.ps("jitter.stall_mean_us"),
        )

    def launch_delay_ps(self, rank: int, step: int) -> int:
        """How late this rank starts the step."""
        if not self.launch_ps:
            return 0
        return round(self.launch_ps * self._exponential(rank, step, 0, LAUNCH, 0))

    def block_delay_ps(self, price_ps: int, rank: int, step: int, layer: int, block: int) -> int:
        """What a block takes beyond its price; noise can make it negative, at most by the price."""
        delay = 0
        noise = self.attention_noise if block == ATTENTION else self.expert_noise
        if noise:
            draws = sum(self._uniform(rank, step, layer, block, i) for i in range(4))
            # Four uniforms: mean 2, variance 1/3; bounded, and no function of the C library is involved.
            delay = round(price_ps * noise * (draws - 2.0) * math.sqrt(3.0))
        if self.stall_probability and self._uniform(rank, step, layer, block, 4) < self.stall_probability:
            delay += self.stall_floor_ps
            delay += round(self.stall_mean_ps * self._exponential(rank, step, layer, block, 5))
        return max(delay, -price_ps)

    def _exponential(self, *where: int) -> float:
        return -math.log(1.0 - self._uniform(*where))

    def _uniform(self, *where: int) -> float:
        """A number in [0, 1) that depends on the seed and `where` only."""
        state = self.seed & _MASK
        for word in where:
            state = _mixed(state ^ _mixed(word))
        return (state >> 11) * _UNIT


def _mixed(x: int) -> int:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014), a bijection of 64-bit words."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
