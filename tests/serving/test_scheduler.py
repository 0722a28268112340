"""Continuous batching: budgets, chunks, admission and refusal, without any device."""

import numpy as np
import pytest

from emulator.errors import UsageError
from serving.request import Request, RequestSpec
from serving.scheduler import Scheduler, SchedulerLimits


def limits(**changes: int) -> SchedulerLimits:
    values = {
        "batched_tokens": 100,
        "max_seqs": 8,
        "context": 10_000,
        "priced_context": 100_000,
        "kv_blocks": 1_000,
        "block_tokens": 16,
        "priced_kv_tokens": 1_000_000,
    }
    return SchedulerLimits(**(values | changes))


def request(request_id: int, priced: int, output: int = 2, scale: int = 1) -> Request:
    prompt = np.arange(-(-priced // scale), dtype=np.int64)
    return Request(RequestSpec(request_id, 0, prompt, priced, scale, output, False, 0))


def run_step(scheduler: Scheduler, now_ps: int = 0) -> list[tuple[int, int, int, int]]:
    """One step with made-up tokens: (request, start, count, priced count) of every segment."""
    segments = scheduler.schedule()
    scheduler.complete(segments)
    for segment in segments:
        if segment.samples:
            segment.request.append_output(7, now_ps)
    scheduler.retire()
    return [(s.request.spec.request_id, s.start, s.count, s.priced_count) for s in segments]


def test_prompt_is_cut_into_chunks_of_the_budget_then_decoded() -> None:
    scheduler = Scheduler(limits())
    one = request(0, 250, output=3)
    assert scheduler.add(one)
    assert scheduler.outstanding == 252
    steps = []
    while scheduler.has_work:
        steps += run_step(scheduler)
    assert steps == [(0, 0, 100, 100), (0, 100, 100, 100), (0, 200, 50, 50), (0, 250, 1, 1), (0, 251, 1, 1)]
    assert one.outputs == [7, 7, 7]
    assert one.num_ends == 1
    assert (scheduler.outstanding, scheduler.kv_blocks_used, scheduler.priced_kv_used) == (0, 0, 0)


def test_decodes_go_first_and_prefill_takes_the_rest_of_the_budget() -> None:
    scheduler = Scheduler(limits())
    scheduler.add(request(0, 30, output=9))
    assert run_step(scheduler) == [(0, 0, 30, 30)]
    scheduler.add(request(1, 150))
    scheduler.add(request(2, 60))
    assert run_step(scheduler) == [(0, 30, 1, 1), (1, 0, 99, 99)]
    assert run_step(scheduler) == [(0, 31, 1, 1), (1, 99, 51, 51), (2, 0, 48, 48)]


@pytest.mark.parametrize("scale", [1, 4, 64])
@pytest.mark.parametrize("priced", [1, 64, 65, 1000, 1024])
def test_chunks_charge_every_priced_token_once_at_any_scale(scale: int, priced: int) -> None:
    scheduler = Scheduler(limits(batched_tokens=200))
    scheduler.add(request(0, 50, output=40))
    run_step(scheduler)
    one = request(1, priced, output=1, scale=scale)
    scheduler.add(one)
    position, charged = 0, 0
    while not one.is_done:
        segments = [s for s in scheduler.schedule() if s.request is one]
        assert sum(s.priced_count for s in segments) <= 199
        for segment in segments:
            assert segment.start == position
            assert segment.priced_start == charged
            shares = segment.shares()
            assert sum(shares) == segment.priced_count
            assert len(shares) == segment.count
            position += segment.count
            charged += segment.priced_count
            scheduler.complete([segment])
            if segment.samples:
                one.append_output(1, 0)
    assert charged == priced
    assert position == one.spec.prompt_tokens


def test_admission_waits_for_the_kv_of_a_whole_life() -> None:
    scheduler = Scheduler(limits(kv_blocks=5))
    for i in range(2):
        scheduler.add(request(i, 30, output=19))  # 48 tokens of KV = 3 blocks
    run_step(scheduler)
    assert [r.spec.request_id for r in scheduler.running] == [0]
    while scheduler.running and scheduler.running[0].spec.request_id == 0:
        run_step(scheduler)
    run_step(scheduler)
    assert [r.spec.request_id for r in scheduler.running] == [1]


def test_priced_kv_bounds_admission_too() -> None:
    scheduler = Scheduler(limits(priced_kv_tokens=150))
    for i in range(2):
        scheduler.add(request(i, 100, scale=4))
    assert run_step(scheduler) == [(0, 0, 25, 100)]
    assert run_step(scheduler) == [(0, 25, 1, 1)]
    assert run_step(scheduler) == [(1, 0, 25, 100)]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"context": 101}, "exceed the context of 101"),
        ({"priced_context": 101}, "exceed the priced context of 101"),
        ({"kv_blocks": 6}, "tokens of KV exceed"),
        ({"priced_kv_tokens": 100}, "tokens of KV exceed"),
    ],
)
def test_a_request_that_never_fits_fails_alone(changes: dict[str, int], words: str) -> None:
    scheduler = Scheduler(limits(**changes))
    bad, good = request(0, 100), request(1, 90)
    assert not scheduler.add(bad)
    assert bad.num_ends == 1 and bad.error is not None and words in bad.error
    assert scheduler.add(good)
    while scheduler.has_work:
        run_step(scheduler)
    assert good.error is None and len(good.outputs) == 2
    assert scheduler.outstanding == 0


def test_a_request_that_just_fits_is_served() -> None:
    scheduler = Scheduler(limits(context=102, priced_context=102, kv_blocks=7, priced_kv_tokens=101))
    assert scheduler.add(request(0, 100))


@pytest.mark.parametrize("scale", [1, 16, 64])
def test_no_step_exceeds_the_bound_that_sizes_the_buffers(scale: int) -> None:
    rng = np.random.default_rng(11)
    bounds = limits(batched_tokens=128)
    scheduler = Scheduler(bounds)
    for i in range(60):
        scheduler.add(request(i, int(rng.integers(1, 400)), int(rng.integers(1, 20)), scale))
    seen = 0
    while scheduler.has_work:
        segments = scheduler.schedule()
        assert sum(s.priced_count for s in segments) <= 128
        seen = max(seen, sum(s.count for s in segments))
        scheduler.complete(segments)
        for segment in segments:
            if segment.samples:
                segment.request.append_output(0, 0)
        scheduler.retire()
    assert 1 < seen <= bounds.max_step_tokens(scale)


def test_a_budget_below_the_scale_is_refused() -> None:
    with pytest.raises(UsageError, match="--max-num-batched-tokens 32 is below the token scale 64"):
        limits(batched_tokens=32).max_step_tokens(64)
