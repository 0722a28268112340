"""Who sends how many rows to whom: seeded, with some dies' experts more popular than others'. Pure.

Each token goes to 8 distinct routed experts and to one shared expert. Up to 288 dies hold 256 routed and 32
shared experts, spread evenly; every die beyond holds one replica more, which counts as an expert of its own.
A die's experts are as popular as a lognormal draw whose largest is `imbalance` times the middle one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
ROUTED, SHARED, TOPK = 256, 32, 8


@dataclass(frozen=True)
class Routing:
    """Routing of one case. imbalance: of the busiest die; 1 is none."""

    ranks: int
    imbalance: float
    seed: int = 0

    @property
    def slots_per_die(self) -> int:
        """Experts a die computes."""
        return -(-(ROUTED + SHARED) // self.ranks)

    @property
    def routed(self) -> int:
        """Routed experts, those that replicas stand for included."""
        return max(ROUTED, self.ranks - SHARED)

    def die_of(self) -> Int64:
        """The die of each routed expert, then of each shared one, int64 [routed + 32]."""
        routed, shared = np.arange(self.routed), np.arange(SHARED)
        if self.ranks < ROUTED + SHARED:
            return np.concatenate([routed * self.ranks // self.routed, shared * self.ranks // SHARED])
        return np.concatenate([routed, self.routed + shared])

    def logits(self, layer: int) -> npt.NDArray[np.float64]:
        """Log popularity of each routed expert in `layer`, float64 [routed]; the same on every rank."""
        if self.imbalance == 1:
            return np.zeros(self.routed)
        draw = np.random.default_rng((self.seed, 0x90B, layer)).normal(size=self.ranks)
        by_die: npt.NDArray[np.float64] = math.log(self.imbalance) * draw / draw.max()
        return by_die[self.die_of()[: self.routed]]

    def dies(self, rank: int, layer: int, tokens: int) -> Int64:
        """The dies of each token of a rank, int64 [tokens, 9]: 8 distinct routed experts, one shared."""
        rng = np.random.default_rng((self.seed, layer, rank))
        scores = self.logits(layer) + rng.gumbel(size=(tokens, self.routed))
        chosen = np.argpartition(-scores, TOPK, axis=1)[:, :TOPK]
        die_of = self.die_of()
        shared = np.full((tokens, 1), die_of[self.routed + rank % SHARED])
        return np.hstack([die_of[chosen], shared])

    def rows_to(self, rank: int, layer: int, tokens: int) -> npt.NDArray[np.int32]:
        """Rows a rank sends to each die, int32 [ranks]."""
        return np.bincount(self.dies(rank, layer, tokens).ravel(), minlength=self.ranks).astype(np.int32)
