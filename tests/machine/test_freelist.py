"""First fit, given back in any order, against a map of single units."""

import numpy as np
import pytest

from emulator.freelist import FreeList


def test_nothing_given_back_is_a_cursor() -> None:
    free = FreeList(256)
    assert [free.carve(n, 64) for n in (10, 64, 0, 1)] == [0, 64, 64, 128]
    assert (free.free, free.largest) == (256 - 75, 127)
    assert free.carve(128, 64) is None


@pytest.mark.parametrize("seed", range(20))
def test_random_pieces_never_overlap_and_all_come_back(seed: int) -> None:
    print(f"seed {seed}")
    rng, free, used, held = np.random.default_rng(seed), FreeList(500), np.zeros(500, bool), []
    for _ in range(300):
        if held and rng.random() < 0.45:
            start, size = held.pop(rng.integers(len(held)))
            free.release(start, size)
            used[start : start + size] = False
        else:
            size, align = int(rng.integers(1, 60)), int(rng.choice([1, 8, 64]))
            fits = [s for s in range(0, 500 - size + 1, align) if not used[s : s + size].any()]
            start = free.carve(size, align)
            assert start == (fits[0] if fits else None)
            if start is not None:
                used[start : start + size] = True
                held.append((start, size))
        assert free.free == 500 - used.sum()
    for start, size in held:
        free.release(start, size)
    assert free.largest == 500


@pytest.mark.parametrize(("start", "size"), [(0, 1), (9, 2), (19, 2), (-1, 1), (12, 500), (20, 1)])
def test_what_is_not_taken_cannot_be_given_back(start: int, size: int) -> None:
    free = FreeList(100)
    free.carve(30)
    free.release(0, 10)
    free.release(20, 10)
    with pytest.raises(ValueError, match="is not taken"):
        free.release(start, size)
    free.release(10, 10)
    assert free.largest == 100
