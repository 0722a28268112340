"""xDeepServe's selection of redundant experts, and the placement of their replicas.

counts: int64 [experts, slices], the rows each expert got in each slice of time. With r[e] replicas of expert
e, which share its rows evenly, a slice lasts as long as its hottest replica works. The objective of a layer:

    L = sum over slices of max over experts of counts[e, t] / r[e]

Source: xDeepServe (arXiv 2508.02520), section 4.5.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from emulator.errors import UsageError
from serving.placement import EMPTY

__all__ = ["choose_replicas", "objective", "place_replicas"]

Counts = NDArray[np.int64]


def objective(counts: Counts, replicas: Counts) -> float:
    """L, rows; replicas: int64 [experts], at least 1 each."""
    return float((counts / replicas[:, None]).max(axis=0).sum())


def choose_replicas(counts: Counts, redundant: int, most: int) -> list[int]:
    """Return the experts that get one more replica each, in the order in which they are chosen.

    Each round takes, among the experts that are the hottest of some slice, the one whose replica lowers L
    most; of equals the one with more rows in all, then the lower index.

    Args:
        redundant: replicas to add.
        most: replicas an expert may have in all; the ranks it can be on.

    Raises:
        UsageError: counts not a table, negative counts, or more replicas than fit.
    """
    _check(counts, redundant, most)
    replicas = np.ones(len(counts), np.int64)
    totals, chosen = counts.sum(axis=1), []
    for _ in range(redundant):
        shares = np.where((replicas < most)[:, None], counts / replicas[:, None], -1.0)
        gains = _gains(shares, counts, replicas)
        best = int(np.lexsort((np.arange(len(gains)), -totals, -gains))[0])
        replicas[best] += 1
        chosen.append(best)
    return chosen


def _gains(shares: NDArray[np.float64], counts: Counts, replicas: Counts) -> NDArray[np.float64]:
    """How much one more replica of each expert lowers L; -inf where it is the hottest of no slice."""
    hottest = shares.argmax(axis=0)
    slices = np.arange(shares.shape[1])
    top = shares[hottest, slices]
    rest = shares.copy()
    rest[hottest, slices] = -1.0
    after = np.maximum(rest.max(axis=0), counts[hottest, slices] / (replicas[hottest] + 1))
    gains = np.full(len(shares), -np.inf)
    gains[hottest] = 0.0
    np.add.at(gains, hottest, top - np.minimum(after, top))
    return gains


def place_replicas(home: Counts, chosen: list[int], loads: NDArray[np.float64]) -> Counts:
    """Put the chosen replicas into free slots of `home`, the heaviest first, each on the least loaded rank.

    Args:
        home: int64 [ranks, slots], the expert in each physical slot, EMPTY for a free one.
        chosen: experts that get a replica more, one entry for each.
        loads: float64 [experts], rows of each expert in all.

    Returns:
        int64 [ranks, slots]. A rank holds an expert at most once; of equally loaded ones the lowest takes it.

    Raises:
        UsageError: no rank with a free slot is without that expert.
    """
    placed = home.copy()
    share = loads / np.maximum(
        1, np.bincount(home[home != EMPTY], minlength=len(loads)) + _times(chosen, len(loads))
    )
    on_rank = np.where(home == EMPTY, 0.0, share[np.maximum(home, 0)]).sum(axis=1)
    for expert in sorted(chosen, key=lambda e: (-share[e], e)):
        open_to = (placed == EMPTY).any(axis=1) & ~(placed == expert).any(axis=1)
        if open_to.any():
            rank = int(np.where(open_to, on_rank, np.inf).argmin())
            placed[rank, int((placed[rank] == EMPTY).argmax())] = expert
            on_rank[rank] += share[expert]
        else:
            _exchange(placed, home, expert, share, on_rank)
    return placed


def _exchange(
    placed: Counts, home: Counts, expert: int, share: NDArray[np.float64], on_rank: NDArray[np.float64]
) -> None:
    """Only ranks that hold `expert` have free slots: one of them takes a replica from a rank without it."""
    for rank in np.flatnonzero((placed == EMPTY).any(axis=1)):
        for other, slot in np.argwhere((placed != EMPTY) & (home == EMPTY)):
            moved = placed[other, slot]
            if expert not in placed[other] and moved not in placed[rank]:
                placed[rank, int((placed[rank] == EMPTY).argmax())] = moved
                placed[other, slot] = expert
                on_rank[rank] += share[moved]
                on_rank[other] += share[expert] - share[moved]
                return
    raise UsageError(f"expert {expert}: no free slot is left for a replica; ask for fewer redundant experts")


def _times(held: list[int] | Counts, experts: int) -> Counts:
    return np.bincount(np.array(held, np.int64), minlength=experts)


def _check(counts: Counts, redundant: int, most: int) -> None:
    if counts.ndim != 2 or not counts.size or counts.min() < 0:
        raise UsageError(
            f"expert counts must be a table [experts, slices] of numbers from 0, not {counts.shape}"
        )
    room = len(counts) * (most - 1)
    if not 0 <= redundant <= room:
        raise UsageError(
            f"{redundant} redundant experts: 0 to {room} fit ({len(counts)} experts, {most} ranks)"
        )
