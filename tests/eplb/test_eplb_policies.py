"""Both policies against their published examples, and against slow definitions on random loads."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import UsageError
from serving.eplb.assess import ideal_rows, spread_rows
from serving.eplb.greedy import choose_replicas, objective, place_replicas
from serving.eplb.hierarchical import pack, rebalance, replicate
from serving.placement import EMPTY

README_LOADS = [
    [90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86],
    [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27],
]
README_SLOTS = [
    [5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1],
    [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1],
]
loads_of = st.lists(st.integers(0, 500), min_size=2, max_size=8)


@pytest.mark.parametrize("layer", [0, 1])
def test_deepseek_example(layer: int) -> None:
    """Fails if groups are packed in their order, or a replica goes to the largest load instead of share."""
    slots = rebalance(np.array(README_LOADS[layer], float), replicas=16, groups=4, nodes=2, dies=8)
    assert slots.tolist() == README_SLOTS[layer]


def test_xdeepserve_example() -> None:
    counts = np.array([[40, 10, 20], [10, 50, 20], [5, 5, 21], [5, 5, 9]])
    replicas = np.ones(4, np.int64)
    assert objective(counts, replicas) == 111
    chosen = choose_replicas(counts, 3, most=4)
    assert chosen == [1, 0, 2]
    lower = []
    for expert in chosen:
        replicas[expert] += 1
        lower.append(objective(counts, replicas))
    assert lower == [86, 66, 55.5]


@given(st.data())
def test_each_choice_is_the_best_of_the_hottest(data: st.DataObject) -> None:
    experts, slices = data.draw(st.integers(2, 6)), data.draw(st.integers(1, 4))
    row = st.lists(st.integers(0, 60), min_size=slices, max_size=slices)
    counts = np.array(data.draw(st.lists(row, min_size=experts, max_size=experts)), np.int64)
    redundant = data.draw(st.integers(0, 5))
    replicas = np.ones(experts, np.int64)
    for expert in choose_replicas(counts, redundant, most=redundant + 1):
        shares = counts / replicas[:, None]
        hot = {int(shares[:, t].argmax()) for t in range(slices)}

        def after(e: int) -> float:
            more = replicas.copy()
            more[e] += 1
            return objective(counts, more)

        assert expert in hot
        assert after(expert) == pytest.approx(min(after(e) for e in hot))
        replicas[expert] += 1


@given(loads_of, st.integers(1, 4), st.integers(1, 3))
def test_packs_are_full_and_no_pack_could_give_its_lightest_away(
    loads: list[int], packs: int, each: int
) -> None:
    items = (loads * (packs * each))[: packs * each]
    packed = pack(np.array(items, float), packs)
    assert sorted(packed.ravel().tolist()) == list(range(len(items)))
    weights = [sum(items[i] for i in held) for held in packed]
    assert max(weights) - min(weights) <= max(items)


@given(loads_of, st.integers(0, 6))
def test_replicas_lower_the_heaviest_share_as_far_as_any_split_can(loads: list[int], more: int) -> None:
    experts, count = replicate(np.array(loads, float), len(loads) + more)
    assert np.bincount(experts, minlength=len(loads)).tolist() == count.tolist()
    splits = (s for s in itertools.product(range(1, more + 2), repeat=min(len(loads), 3)) if len(loads) <= 3)
    best = min(
        (max(w / k for w, k in zip(loads, s, strict=True)) for s in splits if sum(s) == len(loads) + more),
        default=None,
    )
    if best is not None:
        assert max(w / k for w, k in zip(loads, count, strict=True)) == pytest.approx(best)


@given(st.data())
def test_placement_fills_free_slots_once_a_rank_and_rows_are_conserved(data: st.DataObject) -> None:
    ranks = data.draw(st.integers(2, 6))
    experts = data.draw(st.integers(1, ranks))
    loads = np.array(data.draw(st.lists(st.integers(0, 99), min_size=experts, max_size=experts)), np.int64)
    home = np.full((ranks, 2), EMPTY, np.int64)
    home[np.arange(experts), 0] = np.arange(experts)
    chosen = choose_replicas(loads[:, None], data.draw(st.integers(0, experts)), most=2)
    placed = place_replicas(home, chosen, loads.astype(float))
    assert (placed[home != EMPTY] == home[home != EMPTY]).all()
    held = [[e for e in row if e != EMPTY] for row in placed.tolist()]
    assert all(len(row) == len(set(row)) for row in held)
    assert sorted(sum(held, [])) == sorted([*range(experts), *chosen])
    rows = spread_rows(loads, placed)
    got = np.zeros(experts, np.int64)
    np.add.at(got, placed[placed != EMPTY], rows[placed != EMPTY])
    assert got.tolist() == loads.tolist()
    shares = [rows[placed == e] for e in range(experts)]
    assert all(s.max() - s.min() <= 1 for s in shares)
    assert ideal_rows(int(loads.sum()), ranks).sum() == loads.sum()


def test_a_heavier_replica_goes_to_a_less_loaded_rank() -> None:
    """Fails if ranks are filled in their order."""
    home = np.array([[0, EMPTY], [1, EMPTY], [2, EMPTY], [3, EMPTY]])
    placed = place_replicas(home, [0, 1], np.array([90.0, 60.0, 50.0, 10.0]))
    assert placed.tolist() == [[0, 1], [1, EMPTY], [2, EMPTY], [3, 0]]


def test_what_cannot_be_balanced_is_refused() -> None:
    with pytest.raises(UsageError, match=r"12 experts are not shared equally by 5 groups"):
        rebalance(np.ones(12), 16, 5, 1, 8)
    with pytest.raises(UsageError, match=r"8 replicas for 12 experts"):
        rebalance(np.ones(12), 8, 4, 2, 8)
    with pytest.raises(UsageError, match=r"9 redundant experts: 0 to 8 fit \(4 experts, 3 ranks\)"):
        choose_replicas(np.ones((4, 1), np.int64), 9, most=3)
    with pytest.raises(UsageError, match=r"expert 0: no free slot"):
        place_replicas(np.array([[0], [1]]), [0], np.array([1.0, 1.0]))
