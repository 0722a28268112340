"""Where every expert lives: pure arithmetic for any number of ranks, one table for all layers.

A physical slot is `rank * slots_per_rank + local`. Routed experts are split evenly over the ranks in order
(the first ranks hold one each when there are more ranks than experts). With `--shared-experts placed` copies
of the shared expert, one for every top-k routed experts of load, take the last ranks for themselves where
that makes the busiest rank less busy, else the emptiest ranks; redundant replicas then fill what is
emptiest. For 288 ranks this is CloudMatrix's EP288: 256 routed, 32 shared and one
spare slot a die (source: xDeepServe, section 7.1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.errors import UsageError

EMPTY = -1


@dataclass(frozen=True)
class PlacementOptions:
    """shared: "local" (every rank computes it for its own tokens) or "placed" (as a 9th row a token)."""

    shared: str = "local"
    redundant: int = 0

    def __post_init__(self) -> None:
        if self.shared not in ("local", "placed"):
            raise UsageError(f"--shared-experts {self.shared!r} is not known; choose local or placed")
        if self.redundant < 0:
            raise UsageError(f"--redundant-experts {self.redundant} must be at least 0")


@dataclass(frozen=True)
class Placement:
    """Experts on ranks.

    slot_expert: int64[ranks, slots] logical expert in each physical slot, EMPTY for a spare one; the shared
    expert, where placed, has the logical index num_routed. replica_slots: int64[experts, most replicas]
    physical slots of each expert (columns beyond num_replicas[e] repeat earlier ones). num_replicas:
    int64[experts].
    """

    num_routed: int
    options: PlacementOptions
    slot_expert: NDArray[np.int64]
    replica_slots: NDArray[np.int64]
    num_replicas: NDArray[np.int64]

    @property
    def num_ranks(self) -> int:
        return len(self.slot_expert)

    @property
    def slots_per_rank(self) -> int:
        return int(self.slot_expert.shape[1])

    @property
    def routed_ranks(self) -> int:
        """Ranks that routed experts were spread over: all but those made for a copy of the shared one."""
        return int((self.slot_expert[:, 0] != self.num_routed).sum())

    @property
    def shared_placed(self) -> bool:
        return self.options.shared == "placed"

    def experts_on(self, rank: int) -> list[int]:
        """Logical experts of one rank in slot order, spare slots left out."""
        return [int(e) for e in self.slot_expert[rank] if e != EMPTY]

    def slots_for(
        self, experts: NDArray[np.int64], positions: NDArray[np.int64], rank: int
    ) -> NDArray[np.int64]:
        """Physical slots of routed rows.

        experts: int64[T, K] logical; positions: int64[T] of the tokens in their sequences. The replica is
        (position + rank) mod replicas: no communication, spread over ranks that decode one token each, and
        without influence on any result.
        """
        replica = (positions[:, None] + rank) % self.num_replicas[experts]
        slots: NDArray[np.int64] = self.replica_slots[experts, replica]
        return slots


def home_rank(expert: int, num_ranks: int, num_routed: int) -> int:
    """Where a routed expert lives before any replica is made."""
    return expert if num_ranks >= num_routed else expert * num_ranks // num_routed


def place_experts(num_ranks: int, num_routed: int, top_k: int, options: PlacementOptions) -> Placement:
    """Place `num_routed` experts (and copies of the shared one) on `num_ranks` ranks.

    Raises:
        UsageError: more redundant replicas asked for than distinct ranks can hold.
    """
    held: list[list[int]] = [[] for _ in range(num_ranks)]
    copies = _shared_copies(num_ranks, num_routed, top_k) if options.shared == "placed" else 0
    routed_ranks = num_ranks - _ranks_apart(num_ranks, num_routed, top_k, copies)
    for expert in range(num_routed):
        held[home_rank(expert, routed_ranks, num_routed)].append(expert)
    if options.shared == "placed":
        for _ in range(copies):
            rank = min(
                (r for r in range(num_ranks) if num_routed not in held[r]), key=lambda r: (len(held[r]), -r)
            )
            held[rank].append(num_routed)
    # The spare slot per die takes replicas first; only more replicas than that deepen every rank.
    slots = max(len(experts) for experts in held) + 1
    _add_replicas(held, num_routed + (options.shared == "placed"), options.redundant)
    slots = max(slots, *(len(experts) for experts in held))
    return _tabulate(held, slots, num_routed, options)


def _shared_copies(num_ranks: int, num_routed: int, top_k: int) -> int:
    """One copy for every top_k + 1 ranks (a token sends top_k routed rows and one shared), at least one."""
    return max(1, min(num_ranks // (top_k + 1), num_routed // top_k))


def _ranks_apart(num_ranks: int, num_routed: int, top_k: int, copies: int) -> int:
    """How many ranks hold a copy of the shared expert and nothing else: as many as there are copies, if the
    busiest rank has fewer rows then than with routed experts beside every copy; else none."""
    if not copies or copies >= num_ranks:
        return 0
    copy_rows, expert_rows = num_ranks / copies, num_ranks * top_k / num_routed
    beside = copy_rows + num_routed // num_ranks * expert_rows
    apart = max(copy_rows, -(-num_routed // (num_ranks - copies)) * expert_rows)
    return copies if apart < beside else 0


def _add_replicas(held: list[list[int]], num_experts: int, redundant: int) -> None:
    most = num_experts * len(held) - sum(len(experts) for experts in held)
    if redundant > most:
        raise UsageError(
            f"--redundant-experts {redundant} on {len(held)} ranks: a rank holds an expert at most once, "
            f"so the most is {most}"
        )
    added, expert = 0, 0
    while added < redundant:
        free = [rank for rank in range(len(held)) if expert not in held[rank]]
        if free:
            held[min(free, key=lambda rank: (len(held[rank]), rank))].append(expert)
            added += 1
        expert = (expert + 1) % num_experts


def _tabulate(held: list[list[int]], slots: int, num_routed: int, options: PlacementOptions) -> Placement:
    slot_expert = np.full((len(held), slots), EMPTY, dtype=np.int64)
    for rank, experts in enumerate(held):
        slot_expert[rank, : len(experts)] = experts
    num_experts = num_routed + (options.shared == "placed")
    return placement_of(slot_expert, num_routed, num_experts, options)


def placement_of(
    slot_expert: NDArray[np.int64], num_routed: int, num_experts: int, options: PlacementOptions
) -> Placement:
    """The placement that has these experts in its slots. Nobody may route to one that is nowhere."""
    where: list[list[int]] = [[] for _ in range(num_experts)]
    for slot, expert in enumerate(slot_expert.reshape(-1).tolist()):
        if expert != EMPTY:
            where[expert].append(slot)
    most = max(len(replicas) for replicas in where)
    replica_slots = np.array([[w[i % len(w)] if w else EMPTY for i in range(most)] for w in where], np.int64)
    num_replicas = np.array([len(w) for w in where], dtype=np.int64)
    return Placement(num_routed, options, slot_expert, replica_slots, num_replicas)


def with_spares(placement: Placement, spares: int) -> Placement:
    """The same with so many more ranks that hold nothing."""
    empty = np.full((spares, placement.slots_per_rank), EMPTY, dtype=np.int64)
    slots = np.concatenate([placement.slot_expert, empty])
    return placement_of(slots, placement.num_routed, len(placement.num_replicas), placement.options)
