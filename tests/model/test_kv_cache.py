"""The paged cache: pages are lent once and come back; what is broken is found."""

import numpy as np
import psutil
import pytest

from emulator.errors import InternalError, UsageError
from serving.model import Model, PagedKV, Segment, preset_config

CONFIG = preset_config("tiny")


def test_pages_grow_with_the_sequence() -> None:
    kv = PagedKV(CONFIG, num_pages=5, page_size=4)
    assert kv.append("a", 3) == Segment("a", 0, 3)
    assert kv.append("a", 1) == Segment("a", 3, 1)
    assert kv.num_free_pages == 4
    assert kv.append("a", 1) == Segment("a", 4, 1)
    assert (kv.num_free_pages, kv.length("a"), kv.length("b")) == (3, 5, 0)
    kv.free("a")
    assert (kv.num_free_pages, kv.pages_allocated, kv.pages_freed) == (5, 2, 2)
    kv.check_integrity()


def test_full_cache_refuses_and_changes_nothing() -> None:
    kv = PagedKV(CONFIG, num_pages=3, page_size=4)
    kv.append("a", 5)
    assert kv.can_append([("a", 3), ("b", 4)])
    assert not kv.can_append([("a", 4), ("b", 4)])
    with pytest.raises(UsageError, match="'b' needs 2 more pages of 4 tokens, 1 of 3 are free"):
        kv.append("b", 5)
    assert kv.sequences() == ("a",)
    kv.check_integrity()


def test_misuse_is_named() -> None:
    kv = PagedKV(CONFIG, num_pages=3, page_size=4)
    with pytest.raises(UsageError, match="'x' is not in the cache"):
        kv.free("x")
    with pytest.raises(UsageError, match="cannot append 0 tokens"):
        kv.append("x", 0)
    with pytest.raises(UsageError, match="at least one page"):
        PagedKV(CONFIG, num_pages=0)


def test_random_use_keeps_integrity() -> None:
    seed = 4
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    kv = PagedKV(CONFIG, num_pages=40, page_size=3)
    for step in range(400):
        sequence = int(rng.integers(8))
        if rng.random() < 0.3 and kv.length(sequence):
            kv.free(sequence)
        elif kv.can_append([(sequence, 5)]):
            kv.append(sequence, 5)
        kv.check_integrity()
        slots = [slot for s in kv.sequences() for slot in kv.slots(Segment(s, 0, kv.length(s)))]
        assert len(set(slots)) == len(slots) == sum(kv.length(s) for s in kv.sequences()), step
    for sequence in kv.sequences():
        kv.free(sequence)
    kv.check_integrity()
    assert kv.pages_allocated == kv.pages_freed > 0


def test_only_pages_in_use_cost_memory() -> None:
    """Hundreds of ranks reserve caches they never fill."""
    before = psutil.Process().memory_info().rss
    kv = PagedKV(CONFIG, num_pages=200_000, page_size=16)
    kv.append("a", 1000)
    assert kv.pages.numel() * 4 > 500e6
    assert psutil.Process().memory_info().rss - before < 50e6


@pytest.mark.parametrize("damage", ["lost", "twice", "length", "counter", "padding", "ones"])
def test_damage_is_found(damage: str) -> None:
    kv = PagedKV(CONFIG, num_pages=6, page_size=4)
    kv.append("a", 7)
    kv.append("b", 2)
    kv.check_integrity()
    if damage == "lost":
        kv._free.pop()
    elif damage == "twice":
        kv._tables["b"][0] = kv._tables["a"][0]
    elif damage == "length":
        kv._lengths["a"] = 9
    elif damage == "counter":
        kv.pages_freed += 1
    elif damage == "padding":
        kv.pages[0, 0, 1, 2] = 3.0
    else:
        kv.pages[1, 2, 3, -1] = 0.0
    with pytest.raises(InternalError, match="KV cache"):
        kv.check_integrity()


def test_plan_refuses_nonsense(tiny: Model) -> None:
    kv = PagedKV(CONFIG, num_pages=2000, page_size=16)
    with pytest.raises(UsageError, match="at least one segment"):
        tiny.plan([], kv)
    with pytest.raises(UsageError, match="twice in one step"):
        tiny.plan([kv.append("a", 1), kv.append("a", 1)], kv)
    with pytest.raises(UsageError, match="'long' reaches 16385 tokens; the context is 16384"):
        tiny.plan([kv.append("long", 16385)], kv)
