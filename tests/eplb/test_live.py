"""Decisions of live balancing, without ranks: new tables, what moves, and that no expert is ever nowhere."""

import numpy as np
import pytest

from emulator.errors import UsageError
from serving.eplb.live import (
    distinct_loads,
    imbalance,
    keep_places,
    moves_between,
    rebalanced,
    rows_by_rank,
    without_changed,
)
from serving.eplb.options import EplbOptions
from serving.placement import EMPTY, PlacementOptions, place_experts


def tables(ranks: int, experts: int, redundant: int, shared: str) -> tuple[np.ndarray, np.ndarray]:
    """Home and the beginning's table, int64 [ranks, slots] each."""
    now = place_experts(ranks, experts, 4, PlacementOptions(shared, redundant)).slot_expert
    alone = place_experts(ranks, experts, 4, PlacementOptions(shared))
    home = np.full(now.shape, EMPTY)
    for rank in range(ranks):
        held = alone.experts_on(rank)
        home[rank, : len(held)] = held
    return home, now


@pytest.mark.parametrize("policy", ["xdeepserve", "deepseek"])
@pytest.mark.parametrize("shared", ["local", "placed"])
@pytest.mark.parametrize("ranks", [2, 3, 7, 16])
def test_a_move_never_leaves_an_expert_without_a_slot(ranks: int, shared: str, policy: str) -> None:
    """Seeds in the order of the loop; fails where `without_changed` gives `new`, or homes may move."""
    for seed in range(8):
        rng = np.random.default_rng((seed, ranks))
        redundant = int(rng.integers(1, 2 * ranks + 1))
        home, now = tables(ranks, 16, redundant, shared)
        for _ in range(3):
            counts = rng.zipf(1.5, (16, 4)).clip(0, 10_000)
            new = rebalanced(counts, home, now, redundant, policy)
            between = without_changed(now, new)
            for table in (between, new):
                assert set(table[table != EMPTY]) == set(now[now != EMPTY]), (seed, policy)
                for row in table:
                    held = row[row != EMPTY]
                    assert len(set(held)) == len(held), f"seed {seed}: an expert twice on a rank"
            assert (new != EMPTY).sum() == (home != EMPTY).sum() + redundant
            assert ((between == now) | (between == EMPTY)).all()
            moved = moves_between(now[None], new[None])
            assert all(now[m.rank, m.slot] != m.expert == new[m.rank, m.slot] for m in moved)
            assert {(0, m.expert) for m in moved} == set(distinct_loads(moved))
            now = new


def test_the_hot_expert_gets_the_replicas_and_the_busiest_rank_less() -> None:
    home, now = tables(4, 16, 4, "local")
    counts = np.full((16, 1), 10)
    counts[9] = 1000
    for policy in ("xdeepserve", "deepseek"):
        new = rebalanced(counts, home, now, 4, policy)
        assert (new == 9).sum() == 4, policy  # on every rank
        before, after = (imbalance(counts.T, t[None]) for t in (now, new))
        assert before > 3 and after < 1.05, (policy, before, after)
        assert rows_by_rank(counts[:, 0], new).sum() == pytest.approx(counts.sum())
        assert (rebalanced(counts, home, new, 4, policy) == new).all()  # what is good is left alone


def test_without_rows_nothing_moves_and_places_are_kept() -> None:
    home, now = tables(4, 16, 4, "local")
    assert rebalanced(np.zeros((16, 2), np.int64), home, now, 4, "xdeepserve") is now
    new = now.copy()
    free = np.argwhere(home[0] == EMPTY)[:, 0]
    new[0, free] = new[0, free[::-1]]  # the same experts, in other slots
    assert (keep_places(now, new, home) == now).all()


@pytest.mark.parametrize(("policy", "interval"), [("best", 3), ("deepseek", 0), ("xdeepserve", -1)])
def test_bad_options_are_refused(policy: str, interval: int) -> None:
    with pytest.raises(UsageError, match="--eplb"):
        EplbOptions(policy, interval)


def test_rows_count_in_slices_of_an_interval() -> None:
    options = EplbOptions(interval=10, slices=4)
    assert [options.slice_of(step) for step in (0, 2, 3, 5, 9, 10, 99)] == [0, 0, 1, 2, 3, 3, 3]
