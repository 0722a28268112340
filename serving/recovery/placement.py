"""Where experts live after ranks have died: pure, so that all survivors work out the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.errors import UsageError
from serving.placement import EMPTY, Placement, placement_of


@dataclass(frozen=True)
class Relocation:
    """A placement among the living, the experts each rank has to load for it, and those nobody holds."""

    placement: Placement
    loads: dict[int, list[int]]
    lost: tuple[int, ...] = ()


def widened(placement: Placement) -> Placement:
    """The same experts where every rank has a slot for each, so that any may come to it later.

    A slot is a number and costs nothing until an expert is in it.
    """
    num_experts = len(placement.num_replicas)
    slots = np.full((placement.num_ranks, num_experts), EMPTY, np.int64)
    slots[:, : placement.slots_per_rank] = placement.slot_expert[:, :num_experts]
    return placement_of(slots, placement.num_routed, num_experts, placement.options)


def without(
    placement: Placement,
    gone: Sequence[int],
    serving: Sequence[int],
    stand_in: Mapping[int, int] | None = None,
    reloads: bool = True,
    lost: Sequence[int] = (),
) -> Relocation:
    """The placement once `gone` ranks serve no more.

    A spare that stands in for one of them loads what it held. Other experts are served by a replica where
    there is one, else loaded anew, each by the rank that holds the fewest by then, the lowest of these.

    Args:
        placement: the one until now, with a free slot for every expert (`widened`).
        gone: ranks that serve no more.
        serving: all that do from now on.
        stand_in: {gone: spare}; the spares are among `serving`.
        reloads: False: who is no spare loads nothing; experts without a replica are lost.
        lost: experts that nobody holds, and nobody is to load.

    Raises:
        UsageError: no rank serves.
    """
    if not serving:
        raise UsageError("no rank lives that could hold the experts")
    slots = placement.slot_expert.copy()
    loads: dict[int, list[int]] = {}
    for dead, spare in (stand_in or {}).items():
        slots[spare] = slots[dead]
        loads[spare] = placement.experts_on(dead)
    slots[list(gone)] = EMPTY
    missing = set(lost)
    held = {rank: int((slots[rank] != EMPTY).sum()) for rank in serving}
    for expert in range(len(placement.num_replicas)):
        if (slots == expert).any():
            missing.discard(expert)
            continue
        if expert in missing or not reloads:
            missing.add(expert)
            continue
        rank = min(serving, key=lambda r: (held[r], r))
        slots[rank, int(np.flatnonzero(slots[rank] == EMPTY)[0])] = expert
        held[rank] += 1
        loads.setdefault(rank, []).append(expert)
    return _relocated(placement, slots, loads, missing)


def joined(placement: Placement, come: Sequence[int], serving: Sequence[int]) -> Relocation:
    """The placement once `come` serve, too: the first loads what nobody holds, then each loads experts of the
    fullest ranks, until none of these has more than one more than it.

    Args:
        placement: the one until now.
        come: ranks without experts.
        serving: all that serve from now on, with them.
    """
    slots = placement.slot_expert.copy()
    loads: dict[int, list[int]] = {}
    for rank in come:
        for expert in range(len(placement.num_replicas)):
            if not (slots == expert).any():
                slots[rank, int(np.flatnonzero(slots[rank] == EMPTY)[0])] = expert
                loads.setdefault(rank, []).append(expert)
        while True:
            held = {r: int((slots[r] != EMPTY).sum()) for r in serving}
            giver = min(serving, key=lambda r: (-held[r], r))
            if held[giver] <= held[rank] + 1:
                break
            mine = {int(expert) for expert in slots[rank]}
            given = [i for i, e in enumerate(slots[giver].tolist()) if e != EMPTY and e not in mine]
            if not given:
                break
            expert = int(slots[giver, given[-1]])
            slots[giver, given[-1]] = EMPTY
            slots[rank, int(np.flatnonzero(slots[rank] == EMPTY)[0])] = expert
            loads.setdefault(rank, []).append(expert)
    return _relocated(placement, slots, loads)


def _relocated(
    placement: Placement, slots: NDArray[np.int64], loads: dict[int, list[int]], lost: Iterable[int] = ()
) -> Relocation:
    num_experts = len(placement.num_replicas)
    made = placement_of(slots, placement.num_routed, num_experts, placement.options)
    return Relocation(made, loads, tuple(sorted(lost)))
