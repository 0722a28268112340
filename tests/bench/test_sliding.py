"""A full queue: what is under way, what is measured, and whom it suits. Without ranks."""

from __future__ import annotations

import random

import pytest

from emulator.errors import UsageError
from memsem.bench import BenchSpec
from memsem.bench.shapes import FORMATS, KINDS, OPERATIONS, Sample, keeps_full
from memsem.bench.sliding import POLL_BATCH, intervals, peak, slide

SERVICE, DELAY, CALL = 1000, 5000, 7
"""Of the model queue: time of a request at the unit, way there and back, caller's time of a post."""


class Queue:
    """One unit that serves requests in order; completions come `DELAY` after service; the caller's clock."""

    def __init__(self, draw: random.Random) -> None:
        self.now = self.free = 0
        self.flying: list[int] = []
        self.seen: list[int] = []
        self._draw = draw

    def post(self) -> None:
        self.now += CALL
        self.free = max(self.free, self.now) + SERVICE
        self.flying.append(self.free + DELAY)
        self.seen.append(len(self.flying))

    def take(self, most: int) -> int:
        """Anything from one completion on, as a poll may find it."""
        assert 1 <= most <= POLL_BATCH
        count = self._draw.randint(1, min(most, 3, len(self.flying)))
        self.now = max(self.now, self.flying[count - 1])
        del self.flying[:count]
        return count


def slid(depth: int, batches: int, seed: int) -> tuple[Queue, list[float], list[float]]:
    print("seed", seed)
    queue = Queue(random.Random(seed))
    return queue, *slide(queue.post, queue.take, lambda: queue.now, depth, batches)


@pytest.mark.parametrize("seed", range(20))
def test_the_queue_is_never_more_than_full_and_ends_empty(seed: int) -> None:
    depth, batches = 1 + seed, 5
    queue, starts, ends = slid(depth, batches, seed)
    assert len(queue.seen) == depth * batches and not queue.flying and max(queue.seen) == depth
    assert len(starts) == len(ends) == batches and starts[0] == 0 and ends[-1] == queue.now
    assert sum(intervals(starts, ends)) == ends[-1] - starts[0]
    assert peak(starts, ends) <= (ends[-1] - starts[0]) / batches


def test_the_unit_never_waits_when_the_queue_covers_the_way() -> None:
    """Waiting for each batch instead (depth and batches in a loop) gives 10 * (16 * SERVICE + DELAY)."""
    _, starts, ends = slid(16, 10, 1)
    assert ends[-1] == CALL + 160 * SERVICE + DELAY
    assert max(intervals(starts, ends)[1:]) <= (16 + 2) * SERVICE


def test_one_in_flight_waits_for_each() -> None:
    _, starts, ends = slid(1, 4, 1)
    assert intervals(starts, ends) == [CALL + SERVICE + DELAY] * 4


def test_nothing_to_do() -> None:
    assert slid(4, 0, 1)[1:] == ([], []) and intervals([], []) == [] and peak([], []) == 0


def test_peak_is_the_best_run_from_post_to_completion() -> None:
    """Runs: 10, (14)/2, 19/3; 10, 15/2; 9. (A completion-to-completion interval of 4 is no run.)"""
    assert peak([0, 4, 10], [10, 14, 19]) == pytest.approx(19 / 3)
    assert peak([0, 90], [100, 110]) == 20


def test_peak_of_a_sample() -> None:
    assert Sample(1000, (4e6, 2e6), 10).peak_bytes_per_s == 1000 * 10 / 2e-6
    assert Sample(1000, (4e6, 2e6), 10, peak_ps=3e6).peak_bytes_per_s == pytest.approx(1000 * 10 / 3e-6)


def test_only_perftests_figures_of_verbs_are_of_a_full_queue() -> None:
    words = [(kind, path, form) for kind in KINDS for path in OPERATIONS for form in FORMATS]
    full = {(kind, "verbs", form) for kind in ("bw", "rate") for form in ("perftest", "json")}
    assert {word for word in words if keeps_full(*word)} == full


@pytest.mark.parametrize(("kind", "path", "op"), [("lat", "verbs", "write"), ("bw", "mem", "put")])
def test_others_cannot_be_asked_for(kind: str, path: str, op: str) -> None:
    with pytest.raises(UsageError, match="keep a queue full"):
        BenchSpec(kind, op, path, "mte", "same-node", (8,), sliding=True)
