"""Balancing while serving, as pure decisions: new tables from counted rows, what has to move, and when.

Every rank keeps the same tables and goes through the same phases at the same step boundaries, whether it has
requests or not:

    COUNT     rows are counted; after `interval` steps every rank reports to rank 0
    REPORTED  rank 0 has all reports one boundary later, plans, and sends the plan
    PREFETCH  everyone has the plan; weights go from storage to memory, as long as that takes
    LOAD      the slots that change are out of the tables; their weights go from memory into them
    LOADED    every rank has its weights; at the next boundary the new tables hold: COUNT

Source: xDeepServe (arXiv 2508.02520), section 4.5: prefetch, disable, load, restore.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from emulator.errors import UsageError
from serving.eplb.greedy import choose_replicas, place_replicas
from serving.eplb.hierarchical import replicate
from serving.placement import EMPTY

Table = NDArray[np.int64]


class Move(NamedTuple):
    """An expert that comes into a slot: moe_index of the layer, rank and slot on it."""

    layer: int
    rank: int
    slot: int
    expert: int


def rebalanced(counts: Table, home: Table, now: Table, redundant: int, policy: str) -> Table:
    """Return one layer's new table: every expert stays at home, replicas go where they are worth most.

    Args:
        counts: int64 [experts, slices], rows; a placed shared expert is none of them.
        home: int64 [ranks, slots], one replica of each expert (and the shared ones), the rest EMPTY.
        now: int64 [ranks, slots], the table in force; what stays on a rank keeps its slot.
        redundant: replicas to place.
    """
    if not counts.any():
        return now
    experts, totals = len(counts), counts.sum(axis=1).astype(np.float64)
    if policy == "deepseek":
        chosen = [int(e) for e in replicate(totals, experts + redundant)[0][experts:]]
        chosen = _no_more_than(chosen, len(home) - 1, totals)
    else:
        chosen = choose_replicas(counts, redundant, len(home))
    most = int(home.max())
    loads = totals if most < experts else np.append(totals, _shared_rows(totals, counts, home))
    try:
        new = place_replicas(home, chosen, loads)
    except UsageError:  # these replicas do not fit together: others take the slots
        new = _filled(home, chosen, loads)
    return keep_places(now, new, home)


def _filled(home: Table, chosen: list[int], loads: NDArray[np.float64]) -> Table:
    """As many replicas as are chosen, the heaviest first; where one has no rank left, the next heaviest
    expert that has takes its slot."""
    placed = home.copy()
    count = np.ones(len(loads)) + np.bincount(np.array(chosen), minlength=len(loads))
    by_share = [int(e) for e in np.argsort(-loads / count, kind="stable")]
    for expert in sorted(chosen, key=by_share.index):
        for candidate in (expert, *by_share):
            open_to = (placed == EMPTY).any(axis=1) & ~(placed == candidate).any(axis=1)
            if open_to.any():
                rank = int(open_to.argmax())
                placed[rank, int((placed[rank] == EMPTY).argmax())] = candidate
                break
    return placed


def _shared_rows(totals: NDArray[np.float64], counts: Table, home: Table) -> float:
    """Rows of the shared expert where it is placed: one a token, and a token has as many routed ones as it
    chooses; taken as the mean over experts of what is counted."""
    return float(totals.mean()) * int((home == len(counts)).sum())


def _no_more_than(chosen: list[int], most: int, totals: NDArray[np.float64]) -> list[int]:
    """The same number of replicas, none of an expert on more ranks than there are."""
    count, kept = np.zeros(len(totals), np.int64), []
    order = [int(e) for e in np.argsort(-totals, kind="stable")]
    for expert in chosen:
        at = expert if count[expert] < most else next(e for e in order if count[e] < most)
        count[at] += 1
        kept.append(at)
    return kept


def keep_places(now: Table, new: Table, home: Table) -> Table:
    """The experts of `new` on each rank, those that are there already in the slots they have.

    Args:
        now, new, home: int64 [ranks, slots]; what is in `home` is in the same slot in all of them.
    """
    placed = home.copy()
    for rank in range(len(home)):
        free = home[rank] == EMPTY
        coming = [int(e) for e in new[rank][free] if e != EMPTY]
        for slot in np.flatnonzero(free):
            if int(now[rank, slot]) in coming:
                placed[rank, slot] = now[rank, slot]
                coming.remove(int(now[rank, slot]))
        for slot, expert in zip(np.flatnonzero(placed[rank] == EMPTY), coming, strict=False):
            placed[rank, slot] = expert
    return placed


def moves_between(now: Table, new: Table) -> list[Move]:
    """What has to come into which slots, int64 [layers, ranks, slots] each; in order."""
    changed = np.argwhere((now != new) & (new != EMPTY))
    return [Move(int(i), int(r), int(s), int(new[i, r, s])) for i, r, s in changed]


def without_changed(now: Table, new: Table) -> Table:
    """`now`, with the slots that change out of use."""
    return np.where(now == new, now, EMPTY)


def distinct_loads(moves: list[Move]) -> list[tuple[int, int]]:
    """(layer, expert) of the weights that are read from storage, each once, in order."""
    return sorted({(move.layer, move.expert) for move in moves})


def rows_by_rank(counts: Table, table: Table) -> NDArray[np.float64]:
    """Rows of routed experts each rank gets if replicas share evenly: float64 [ranks].

    counts: int64 [experts]. table: int64 [ranks, slots].
    """
    held = (table != EMPTY) & (table < len(counts))
    experts = np.where(held, table, 0)
    replicas = np.bincount(table[held], minlength=len(counts))
    share = counts / np.maximum(1, replicas)
    rows: NDArray[np.float64] = np.where(held, share[experts], 0.0).sum(axis=1)
    return rows


def imbalance(counts: Table, tables: Table) -> float:
    """Rows of the busiest rank over the mean, the mean over layers.

    counts: int64 [layers, experts]. tables: int64 [layers, ranks, slots].
    """
    ratios = []
    for rows, table in zip(counts, tables, strict=True):
        on_rank = rows_by_rank(rows, table)
        ratios.append(on_rank.max() / on_rank.mean() if on_rank.any() else 1.0)
    return float(np.mean(ratios)) if ratios else 1.0
