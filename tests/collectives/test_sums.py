"""Sums of published vectors: compiled as in steps, to the bit, in either parity and for short vectors."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from collectives.reduction import fold as fold_in_steps
from collectives.store import SharedStore
from collectives.sums import _BEGUN, _DONE, Sums
from emulator.solo import solo_device

DEVICE = solo_device()
SEED = 7


def of_all(path: str, unit: int, kind: str, compiled: bool) -> list[Sums]:
    """The sums of three ranks in one process."""
    made = [SharedStore(path, 3, rank).sums(unit) for rank in range(3)]
    for sums in made:
        if compiled:
            sums.compile(DEVICE, "sum", kind)
    return made


@pytest.mark.skipif(DEVICE.compiled is None, reason="needs the compiled core")
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize(("count", "every"), [(1, 0), (2, 1), (50, 0), (5000, 1), (30_000, 0), (70_001, 1)])
def test_compiled_sums_are_those_in_steps(tmp_path, kind, count, every):
    """Who adds up: one rank all, or each its own. Mutation: the last floats of a row are not added."""
    dtype = np.dtype(np.float32 if kind == "float32" else np.int16)
    unit, rng = -(-count // 3) * dtype.itemsize, np.random.default_rng(SEED)
    both = [of_all(f"{tmp_path}/{c}", unit, kind, c) for c in (False, True)]
    for call in (3, 4, 5):
        data = [(rng.standard_normal(count) * 100).astype(np.float32) for _ in range(3)]
        if kind == "bfloat16":
            data = [(values.view(np.int32) >> 16).astype(np.int16) for values in data]
        got = [_reduced(sums, call, data, kind, every) for sums in both]
        assert np.array_equal(got[0].view(np.uint8), got[1].view(np.uint8)), f"seed {SEED}, call {call}"


def _reduced(all_sums: list[Sums], call: int, data: list[np.ndarray], kind: str, every: int) -> np.ndarray:
    """What each rank takes of one reduction, one after the other."""

    def fold(rows: np.ndarray) -> np.ndarray:
        return fold_in_steps(rows.view(data[0].dtype), "sum", kind)

    for sums, values in zip(all_sums, data, strict=True):
        sums.publish(call, values.view(np.uint8))
    if every:
        for sums in all_sums:
            sums.add_mine(call, fold)
    else:
        all_sums[1].add_all(call, fold)
    taken = [np.zeros_like(data[0]) for _ in all_sums]
    for sums, array in zip(all_sums, taken, strict=True):
        sums.take(call, array)
    return np.stack(taken)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_chunk_that_somebody_began_and_left_is_added_up_by_who_needs_it(tmp_path, compiled):
    """Whoever began may be asleep or dead. Mutation: `add_all` without its second pass."""
    if compiled and DEVICE.compiled is None:
        pytest.skip("needs the compiled core")
    count, call = 30_000, 3
    all_sums = of_all(f"{tmp_path}/s", count // 3 * 4, "float32", compiled)
    assert all_sums[0]._parts.chunks > 1
    data = [np.full(count, 10**rank, np.float32) for rank in range(3)]
    for sums, values in zip(all_sums, data, strict=True):
        sums.publish(call, values.view(np.uint8))
    for chunk in (0, all_sums[0]._parts.chunks - 1):
        all_sums[2]._marks.of_rank(call, chunk, 0).view(np.int64)[_BEGUN] = call
    all_sums[1].add_all(call, lambda rows: fold_in_steps(rows.view(np.float32), "sum", "float32"))
    taken = np.zeros(count, np.float32)
    all_sums[0].take(call, taken)
    assert (taken == 111).all()


def _publish(all_sums: list[Sums], call: int) -> None:
    """Three ranks publish vectors of three chunks; two of them pledge to come."""
    assert all_sums[0]._parts.chunks == 3
    for rank, sums in enumerate(all_sums):
        sums.publish(call, np.full(18_000, 10**rank, np.float32).view(np.uint8))
    for sums in all_sums[:2]:
        sums.pledge(call)


def _taken(sums: Sums, call: int) -> np.ndarray:
    taken = np.zeros(18_000, np.float32)
    sums.take(call, taken)
    return taken


@pytest.mark.skipif(DEVICE.compiled is None, reason="needs the compiled core")
def test_the_chunk_of_who_pledged_is_left_to_it(tmp_path):
    """Rank 0 does its own chunk and that of rank 2, who has not pledged, and sleeps until rank 1 has done its
    own. Mutations: `pledged` says no (rank 0 does all); the last chunk wakes nobody (0.1 s too late)."""
    all_sums = of_all(f"{tmp_path}/s", 6_000 * 4, "float32", True)
    late = min(_until_the_first_ends(all_sums, call) for call in range(3, 8))  # of five: the host may be busy
    assert late < 0.09


def _until_the_first_ends(all_sums: list[Sums], call: int) -> float:
    """Seconds from where rank 1 comes to the end of rank 0."""
    _publish(all_sums, call)
    marks, ended = all_sums[0]._marks_of(call), []

    def first() -> None:
        all_sums[0].add_all(call, lambda rows: rows[0])
        ended.append(_taken(all_sums[0], call))

    thread = threading.Thread(target=first)
    thread.start()
    while list(marks[:, _DONE]) != [call, 0, call] and thread.is_alive():
        time.sleep(0.001)
    assert list(marks[:, _BEGUN]) == [call, 0, call] and not ended
    began = time.monotonic()
    all_sums[1].add_all(call, lambda rows: rows[0])
    thread.join(60)
    assert (ended[0] == 111).all()
    return time.monotonic() - began


@pytest.mark.skipif(DEVICE.compiled is None, reason="needs the compiled core")
def test_who_pledged_and_does_not_come_is_waited_for_a_little(tmp_path):
    """Dead, frozen, or ended by an error of its own. Mutation: no second pass after the wait (wrong sums);
    without its end the test hangs."""
    call, began = 4, time.monotonic()
    all_sums = of_all(f"{tmp_path}/s", 6_000 * 4, "float32", True)
    _publish(all_sums, call)
    all_sums[0].add_all(call, lambda rows: rows[0])
    assert 0.09 < time.monotonic() - began < 5
    assert (_taken(all_sums[0], call) == 111).all()
