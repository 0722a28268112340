"""Placement: every expert lives somewhere, evenly, on any number of ranks; replicas on distinct ranks."""

import numpy as np
import pytest

from emulator.errors import UsageError
from serving.placement import EMPTY, Placement, PlacementOptions, place_experts


def place(num_ranks: int, experts: int = 256, **options: object) -> Placement:
    return place_experts(num_ranks, experts, 8, PlacementOptions(**options))  # type: ignore[arg-type]


def copies(placement: Placement) -> int:
    return int(placement.num_replicas[256])


@pytest.mark.parametrize(
    ("num_ranks", "most"), [(32, 10.7), (48, 9.6), (144, 9.0), (160, 10.0), (288, 9.0), (320, 10.0)]
)
def test_a_die_with_a_copy_of_the_shared_expert_is_no_busier_than_the_others(
    num_ranks: int, most: float
) -> None:
    """Rows a die gets of 9 a token, even routing. Shown to fail with copies beside routed experts."""
    placement = place(num_ranks, shared="placed")
    rows = [
        sum(
            num_ranks * 8 / 256 if e < 256 else num_ranks / copies(placement)
            for e in placement.experts_on(rank)
        )
        for rank in range(num_ranks)
    ]
    assert max(rows) == pytest.approx(most, abs=0.05)


@pytest.mark.parametrize("shared", ["local", "placed"])
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5, 7, 8, 32, 64, 100, 255, 256, 257, 288, 300, 384, 768])
def test_every_expert_is_placed_and_loads_differ_by_at_most_one(num_ranks: int, shared: str) -> None:
    placement = place(num_ranks, shared=shared)
    held = [placement.experts_on(rank) for rank in range(num_ranks)]
    assert {e for experts in held for e in experts} == set(range(256 + (shared == "placed")))
    assert all(len(set(experts)) == len(experts) for experts in held)
    sizes = [len(experts) for experts in held if experts != [256]]
    assert max(sizes) - min(sizes) <= 1
    for expert in range(len(placement.num_replicas)):
        slots = placement.replica_slots[expert, : placement.num_replicas[expert]]
        assert len(set(slots.tolist())) == len(slots)
        assert (placement.slot_expert.reshape(-1)[slots] == expert).all()
    assert (placement.slot_expert != EMPTY).sum() == placement.num_replicas.sum()


def test_ep288_is_256_routed_and_32_shared_with_one_spare_slot_a_die() -> None:
    placement = place(288, shared="placed")
    assert placement.slots_per_rank == 2
    assert (placement.slot_expert[:, 1] == EMPTY).all()
    assert placement.slot_expert[:256, 0].tolist() == list(range(256))
    assert (placement.slot_expert[256:, 0] == 256).all()
    assert placement.num_replicas.tolist() == [1] * 256 + [32]


def test_shared_copies_follow_the_load_and_take_the_highest_of_the_emptiest_ranks() -> None:
    for num_ranks, copies in [(1, 1), (8, 1), (9, 1), (17, 1), (18, 2), (64, 7), (287, 31), (384, 32)]:
        assert place(num_ranks, shared="placed").num_replicas[256] == copies
    holders = np.flatnonzero((place(64, shared="placed").slot_expert == 256).any(axis=1))
    assert holders.tolist() == list(range(57, 64))


@pytest.mark.parametrize(("num_ranks", "redundant"), [(2, 15), (3, 20), (3, 32), (5, 60)])
def test_no_rank_holds_an_expert_twice(num_ranks: int, redundant: int) -> None:
    placement = place(num_ranks, experts=16, redundant=redundant)
    held = [placement.experts_on(rank) for rank in range(num_ranks)]
    assert all(len(set(experts)) == len(experts) for experts in held)
    assert sum(map(len, held)) == 16 + redundant


def test_further_ranks_hold_nothing_or_replicas_as_asked() -> None:
    bare = place(384)
    assert (bare.slot_expert[256:] == EMPTY).all()
    some = place(384, redundant=100)
    assert some.slot_expert[256:356, 0].tolist() == list(range(100))
    assert (some.slot_expert[356:] == EMPTY).all()
    assert some.slots_per_rank == 2
    full = place(384, redundant=384)
    assert (full.slot_expert[:, 0] != EMPTY).all()
    assert set(full.num_replicas.tolist()) == {2, 3}


def test_replicas_rotate_with_position_and_rank() -> None:
    placement = place(384, redundant=256)
    experts = np.array([[3, 200], [3, 200], [3, 200]])
    positions = np.array([0, 1, 2])
    a, b = (placement.slots_for(experts, positions, rank) for rank in (0, 1))
    assert (placement.slot_expert.reshape(-1)[a] == experts).all()
    assert (a[0] == a[2]).all() and (a[0] != a[1]).all()
    assert (b[0] == a[1]).all()
    assert a.dtype == np.int64


def test_single_replica_is_always_chosen() -> None:
    placement = place(4)
    experts = np.arange(256).reshape(32, 8)
    slots = placement.slots_for(experts, np.arange(32), 3)
    assert (placement.slot_expert.reshape(-1)[slots] == experts).all()
    assert (slots // placement.slots_per_rank == experts * 4 // 256).all()


def test_more_replicas_than_ranks_can_hold_are_refused() -> None:
    assert place(2, experts=16, redundant=16).num_replicas.tolist() == [2] * 16
    with pytest.raises(UsageError, match="the most is 16"):
        place(2, experts=16, redundant=17)


@pytest.mark.parametrize("options", [{"shared": "both"}, {"redundant": -1}])
def test_bad_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        PlacementOptions(**options)  # type: ignore[arg-type]
