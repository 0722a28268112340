"""Where experts live after ranks have died: pure, so that all survivors work out the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from emulator.errors import UsageError
from serving.placement import EMPTY, Placement, placement_of


@dataclass(frozen=True)
class Relocation:
    """A placement among the living, and the experts each rank has to load for it."""

    placement: Placement
    loads: dict[int, list[int]]


def widened(placement: Placement) -> Placement:
    """The same experts where every rank has a slot for each, so that any may come to it later.

    A slot is a number and costs nothing until an expert is in it.
    """
    num_experts = len(placement.num_replicas)
    slots = np.full((placement.num_ranks, num_experts), EMPTY, np.int64)
    slots[:, : placement.slots_per_rank] = placement.slot_expert[:, :num_experts]
    return placement_of(slots, placement.num_routed, num_experts, placement.options)


def without(placement: Placement, dead: Sequence[int], living: Sequence[int]) -> Relocation:
    """The placement once `dead` ranks are gone.

    Experts with a replica on a living rank are served there; the others are loaded anew, each by the rank
    that holds the fewest by then, the lowest of these.

    Args:
        placement: the one until now, with a free slot for every expert (`widened`).
        dead: ranks that are gone.
        living: all others.

    Raises:
        UsageError: no rank lives.
    """
    if not living:
        raise UsageError("no rank lives that could hold the experts")
    slots = placement.slot_expert.copy()
    slots[list(dead)] = EMPTY
    held = {rank: int((slots[rank] != EMPTY).sum()) for rank in living}
    loads: dict[int, list[int]] = {}
    for expert in range(len(placement.num_replicas)):
        if (slots == expert).any():
            continue
        rank = min(living, key=lambda r: (held[r], r))
        slots[rank, int(np.flatnonzero(slots[rank] == EMPTY)[0])] = expert
        held[rank] += 1
        loads.setdefault(rank, []).append(expert)
    num_experts = len(placement.num_replicas)
    return Relocation(placement_of(slots, placement.num_routed, num_experts, placement.options), loads)
