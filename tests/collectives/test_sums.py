"""Sums of published vectors: compiled as in steps, to the bit, in either parity and for short vectors."""

from __future__ import annotations

import numpy as np
import pytest

from collectives.reduction import fold as fold_in_steps
from collectives.store import SharedStore
from collectives.sums import _BEGUN, Sums
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
