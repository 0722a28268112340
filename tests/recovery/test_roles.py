"""Who serves, its decisions alone: spares stand in, ranks come and go, experts follow or stay lost."""

from __future__ import annotations

import numpy as np
import pytest

from serving.placement import EMPTY, PlacementOptions, place_experts, with_spares
from serving.recovery.placement import joined, widened, without
from serving.recovery.roles import NO_WISH, Roles, RolesChanged, Wish, decode, exchange_wishes


def _held(placement: object, rank: int) -> list[int]:
    return sorted(placement.experts_on(rank))  # type: ignore[attr-defined]


def test_spares_stand_in_lowest_first_and_only_for_ranks_that_served() -> None:
    """Found by it: a spare that stands in for a spare; a dead spare called in; two for one."""
    roles = Roles(0, list(range(8)), {5, 6, 7})
    assert roles.members == [0, 1, 2, 3, 4]
    assert roles.lose([6, 2]) == {2: 5} and roles.members == [0, 1, 3, 4, 5] and roles.out == {7}
    assert roles.lose([1, 3]) == {1: 7} and roles.members == [0, 4, 5, 7] and roles.out == set()


def test_wishes_are_granted_alike_and_never_empty_the_pod() -> None:
    """Found by it: the last serving rank leaves; one that is gone comes in; a wish granted twice."""
    words = np.array([w.encode() for w in (Wish(False, 1), Wish(True, 3), Wish(True, 3))] + [NO_WISH])
    wishes = decode(words)
    assert wishes == [Wish(False, 1), Wish(True, 3)]
    roles = Roles(1, [0, 1, 2, 3], {3}, wishes=[Wish(False, 1), Wish(True, 1)])
    assert roles.grant(wishes) == ([3], [1]) and roles.out == {1} and roles.wishes == [Wish(True, 1)]
    assert roles.grant([Wish(True, 7), Wish(False, 1)]) == ([], [])
    alone = Roles(0, [0, 2], {2})
    assert alone.grant([Wish(False, 0)]) == ([], []) and alone.members == [0]


def test_a_wish_is_told_by_the_sign_and_agreed_in_a_second_exchange() -> None:
    calls: list[int] = []

    def exchange(word: int) -> np.ndarray:  # type: ignore[type-arg]
        calls.append(word)
        return np.array([5, -(1 << 63) + 9], np.int64) if len(calls) == 1 else np.array([0, 3], np.int64)

    with pytest.raises(RolesChanged) as told:
        exchange_wishes(exchange, 5, Roles(0, [0, 1]))
    assert told.value.wishes == (Wish(False, 1),) and calls == [5, NO_WISH]
    assert exchange_wishes(lambda w: np.array([w, 9]), 5, Roles(0, [0, 1])).tolist() == [5, 9]


def test_who_joins_takes_experts_off_the_fullest_and_what_nobody_holds() -> None:
    """Found by it: an expert in two places or none after a move; a joiner left empty."""
    placement = widened(with_spares(place_experts(4, 16, 4, PlacementOptions("local", 0)), 1))
    assert _held(placement, 4) == []
    came = joined(placement, [4], [0, 1, 2, 3, 4])
    held = [_held(came.placement, rank) for rank in range(5)]
    assert sorted(e for mine in held for e in mine) == list(range(16))
    assert max(map(len, held)) - min(map(len, held)) <= 1 and sorted(came.loads[4]) == held[4]
    stood_in = without(placement, [2], [0, 1, 3, 4], {2: 4})
    assert _held(stood_in.placement, 4) == _held(placement, 2) and list(stood_in.loads) == [4]
    alone = without(placement, [2, 3], [0, 1, 4], {3: 4}, reloads=False)  # a spare for one of two
    assert _held(alone.placement, 4) == _held(placement, 3) and list(alone.lost) == _held(placement, 2)
    gone = without(placement, [2], [0, 1, 3], reloads=False)
    assert gone.loads == {} and list(gone.lost) == _held(placement, 2)
    assert (gone.placement.num_replicas == 0).sum() == 4 and (gone.placement.slot_expert[2] == EMPTY).all()
    later = without(gone.placement, [1], [0, 3], lost=gone.lost)
    assert list(later.lost) == list(gone.lost) and {e for m in later.loads.values() for e in m} == {
        4,
        5,
        6,
        7,
    }
    again = joined(later.placement, [4], [0, 3, 4])
    assert set(gone.lost) <= set(_held(again.placement, 4)) and (again.placement.num_replicas == 1).all()
