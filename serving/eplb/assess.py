"""What a placement of experts costs: rows on each die, and the time of one MoE layer of the priced model.

A layer takes as long as its busiest die: attention (the same on all), dispatch of the rows that die receives,
its experts, and combine of the rows it sends back. `native` has one replica of each expert, `balanced` the
chosen ones besides, `ideal` the same rows spread evenly over all dies, which no placement can beat.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.profile import Profile
from serving.exchange_price import estimate_ps
from serving.placement import EMPTY
from serving.pricing import PricedModel

__all__ = ["Load", "assess", "ideal_rows", "spread_rows"]

Table = NDArray[np.int64]


@dataclass(frozen=True)
class Load:
    """One layer under one placement; times in ps, rows of the busiest die and their mean over the dies."""

    most_rows: int
    mean_rows: float
    experts_ps: int
    layer_ps: int

    @property
    def imbalance(self) -> float:
        """Rows of the busiest die over the mean."""
        return self.most_rows / self.mean_rows if self.mean_rows else 1.0

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "imbalance": self.imbalance}


def spread_rows(rows: Table, slot_expert: Table) -> Table:
    """Share each expert's rows evenly among its replicas, the first ones taking what is left over.

    Args:
        rows: int64 [experts].
        slot_expert: int64 [ranks, slots], EMPTY for a free slot; every expert is somewhere.

    Returns:
        int64 [ranks, slots].
    """
    flat = slot_expert.ravel()
    held = flat != EMPTY
    order = np.flatnonzero(held)
    replicas = np.bincount(flat[held], minlength=len(rows))
    place = np.zeros(len(flat), np.int64)
    seen = np.zeros(len(rows), np.int64)
    for slot in order:
        place[slot] = seen[flat[slot]]
        seen[flat[slot]] += 1
    experts = np.maximum(flat, 0)
    many = np.maximum(1, replicas)[experts]
    shared = rows[experts] // many + (place < rows[experts] % many)
    spread: Table = np.where(held, shared, 0).reshape(slot_expert.shape)
    return spread


def ideal_rows(total: int, ranks: int) -> Table:
    """One slot a die, all rows spread evenly: int64 [ranks, 1]."""
    return (total // ranks + (np.arange(ranks) < total % ranks))[:, None]


def assess(priced: PricedModel, profile: Profile, slot_rows: Table, batch: int, kv_tokens: int) -> Load:
    """Price one MoE layer of a decode step.

    Args:
        slot_rows: int64 [ranks, slots], rows of each physical slot.
        batch: sequences on each die.
        kv_tokens: context each attends to.
    """
    ranks = len(slot_rows)
    on_die = slot_rows.sum(axis=1)
    most = int(on_die.max())
    busiest = np.flatnonzero(on_die >= 0.9 * most)
    experts_ps = max(priced.experts_ps(slot_rows[die]) for die in busiest)
    attention = sum(priced.layer_kernels(np.full(batch, kv_tokens)).values()) + priced.router_ps(batch)
    moved = estimate_ps(profile, priced.dispatch_costs(batch, ranks), ranks, most)
    moved += estimate_ps(profile, priced.combine_costs(most, ranks), ranks, most)
    return Load(most, float(on_die.mean()), experts_ps, attention + moved + experts_ps)
