"""Recovery in place, its decisions alone: experts, requests, replayed tokens, KV, what was emitted, times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from emulator.errors import UsageError
from emulator.faults import Fault
from launch.recovery_options import TIMES_FILE, recovery_times
from serving.dispatch import Dispatcher
from serving.model import preset_config
from serving.model.kv_cache import PagedKV
from serving.placement import EMPTY, PlacementOptions, place_experts
from serving.recovery.beats import watcher
from serving.recovery.pages import PageFaults
from serving.recovery.placement import widened, without
from serving.recovery.stream import TokenStream
from serving.recovery.times import read_times
from serving.request import Request, RequestSpec
from serving.scheduler import Scheduler, SchedulerLimits

_LIMITS = SchedulerLimits(64, 8, 1000, 100_000, 1000, 16, 1 << 40)


class _Clock:
    now_ps = 5

    def sleep_ps(self, ps: int) -> None:
        self.now_ps += ps


def _spec(request: int, prompt: int = 4, output: int = 3, scale: int = 1) -> RequestSpec:
    return RequestSpec(request, 0, np.arange(prompt), prompt * scale, scale, output, False, 0)


@pytest.mark.parametrize("shared", ["local", "placed"])
@pytest.mark.parametrize("redundant", [0, 5])
def test_every_expert_lives_on_whatever_dies(shared: str, redundant: int) -> None:
    """Found by it: an expert left on the dead; one loaded although a replica lives; two in one slot."""
    placement = widened(place_experts(6, 16, 4, PlacementOptions(shared, redundant)))
    living = list(range(6))
    for seed, dead in enumerate(np.random.default_rng(7).permutation(6)[:5].tolist()):
        living.remove(dead)
        before, relocation = placement, without(placement, [dead], living)
        placement = relocation.placement
        assert (placement.slot_expert[dead] == EMPTY).all(), seed
        held = {rank: placement.experts_on(rank) for rank in living}
        assert {e for experts in held.values() for e in experts} == set(range(len(placement.num_replicas)))
        loaded = {e for experts in relocation.loads.values() for e in experts}
        elsewhere = {e for rank in living for e in before.experts_on(rank)}
        assert loaded == set(before.experts_on(dead)) - elsewhere
        counts = [len(held[rank]) for rank in relocation.loads]
        assert not counts or max(counts) - min(map(len, held.values())) <= 1 + redundant
        for expert, slots in enumerate(placement.replica_slots.tolist()):
            assert {placement.slot_expert.reshape(-1)[s] for s in slots} == {expert}
    with pytest.raises(UsageError, match="no rank lives"):
        without(placement, living, [])


def test_requests_of_the_dead_are_handed_out_again_once_and_first() -> None:
    """Found by it: a request that had ended handed out again; one handed out to a dead rank; one twice."""
    specs = [_spec(i) for i in range(6)]
    dispatcher = Dispatcher(
        specs[:5] + [RequestSpec(5, 10**12, np.arange(4), 4, 1, 3, False, 0)], lambda _: False
    )
    loads = np.zeros(3, np.int64)
    first = dispatcher.assign(loads, 0)
    assert [rank for rank, _ in first] == [0, 1, 2, 0, 1]
    assert [s.request_id for s in dispatcher.lose([1], lambda spec: spec.request_id == 1)] == [4]
    assert dispatcher.next_arrival_ps == 0
    assert dispatcher.lose([0], lambda _: False) == [specs[0], specs[3]]  # 4 waits already
    again = dispatcher.assign(np.array([0, 0, 50]), 10**12)
    assert [(rank, spec.request_id) for rank, spec in again] == [(2, 4), (2, 0), (2, 3), (2, 5)]
    assert dispatcher.next_arrival_ps is None
    assert [s.request_id for s in dispatcher.lose([2], lambda _: False)] == [0, 2, 3, 4, 5]


@pytest.mark.parametrize(("prompt", "emitted", "scale"), [(4, 0, 1), (4, 2, 1), (150, 3, 1), (20, 9, 7)])
def test_a_taken_over_request_is_computed_to_its_end_with_each_output_answered_once(
    prompt: int, emitted: int, scale: int
) -> None:
    """Found by it: a replayed token fed twice or not; an output whose logits are not checked."""
    spec = _spec(0, prompt, 12, scale)
    request = Request(spec, outputs=list(range(100, 100 + emitted)), token_times_ps=[1] * emitted)
    request.replayed = emitted
    scheduler, fed, answered = Scheduler(_LIMITS), [], []
    assert scheduler.add(request)
    while not request.is_done:
        (segment,) = scheduler.schedule()
        assert segment.priced_count <= 64 and sum(segment.shares()) == segment.priced_count
        fed += request.input_tokens(segment.count).tolist()
        answered += list(segment.answers)
        scheduler.complete([segment])
        assert segment.samples == (
            segment.answers[-1:] == range(len(request.outputs), len(request.outputs) + 1)
        )
        if segment.samples:
            request.append_output(100 + len(request.outputs), 2)
    assert fed == [*range(prompt), *range(100, 111)] and answered == list(range(12))
    assert scheduler.retire() == [request]
    assert scheduler.outstanding == scheduler.kv_blocks_used == scheduler.priced_kv_used == 0


def test_a_step_taken_back_leaves_the_cache_as_it_was() -> None:
    """Found by it: a roll back that keeps one token, or a page of it."""
    kv = PagedKV(preset_config("tiny"), 8, 4)
    kv.append("a", 6)
    kv.append("a", 7)
    kv.append("b", 3)
    kv.truncate("a", 6)
    kv.truncate("b", 0)
    kv.truncate("c", 0)
    assert kv.length("a") == 6 and kv.sequences() == ("a",) and kv.num_free_pages == 6
    kv.check_integrity()
    with pytest.raises(UsageError, match="has 6 tokens, not 7"):
        kv.truncate("a", 7)
    kv.free("a")
    kv.check_integrity()
    assert kv.pages_allocated == kv.pages_freed


def test_lost_pages_are_wrong_until_given_back_and_their_requests_begin_anew() -> None:
    """Found by it: a page given away with what was lost in it; a request that goes on with its old length."""
    kv, faults = PagedKV(preset_config("tiny"), 4, 4), []
    for sequence in (0, 1):
        kv.append(sequence, 6)
    lost = PageFaults(kv, _Clock(), faults)
    lost.strike(Fault(kind="page_fault", rank=0, at_ps=5, blocks=3))
    (told,) = faults
    assert told["at_ps"] == 5 and len(told["pages"]) == 3 and told["recomputed"] == [0, 1]
    assert bool((kv.pages[:, told["pages"], :, :-1] != 0).all())
    assert list(lost.take()) == [0, 1] and list(lost.take()) == []
    for sequence in (0, 1):
        kv.free(sequence)
    kv.check_integrity()
    assert not bool(kv.pages[:, :, :, :-1].any())
    scheduler, request = Scheduler(_LIMITS), Request(_spec(0, output=9))
    scheduler.add(request)
    for _ in range(3):
        scheduler.complete(scheduler.schedule())
        request.append_output(1, 1)
    assert scheduler.start_over(0) and not scheduler.start_over(0)
    assert (request.num_computed, request.replayed, scheduler.running) == (0, 3, [])
    assert scheduler.outstanding == request.spec.priced_total and scheduler.kv_blocks_used == 0


def test_what_was_emitted_outlives_the_rank(tmp_path: Path) -> None:
    specs = [_spec(0), _spec(1, output=2)]
    TokenStream(tmp_path, specs, create=True)
    rank = TokenStream(tmp_path, specs)
    request = Request(specs[1])
    for token in (7, 9):
        request.append_output(token, 10 * token)
        rank.emit(3, request, f"{token}" * 64)
    reader = TokenStream(tmp_path, specs)
    assert reader.of(0).tokens == [] and not reader.has_ended(specs[0])
    (ending,) = reader.endings()
    assert (ending["id"], ending["tokens"], ending["times_ps"]) == (1, [7, 9], [70, 90])
    assert (ending["rank"], ending["logits_sha256"]) == (3, "9" * 64)
    early = Request(specs[0])
    early.abort()
    rank.end(2, early)
    first, _ = reader.endings()
    assert reader.has_ended(specs[0]) and (first["id"], first["finish"], first["rank"]) == (0, "abort", 2)


def test_each_is_watched_by_its_shell_shells_by_the_control_the_control_by_another() -> None:
    """Found by it: a node that watches itself, so that nobody misses all of it; the dead as watchers."""
    assert [watcher(r, range(6), 3) for r in range(6)] == [1, 0, 0, 0, 3, 3]
    assert [watcher(r, [1, 2, 4, 5], 3) for r in (1, 2, 4, 5)] == [2, 1, 1, 4]
    assert watcher(3, [3], 3) == 3


def test_times_and_ways_that_cannot_be_are_refused() -> None:
    times = read_times(TIMES_FILE, period_ps=10, timeout_ps=30)
    assert times.recovery_ps(2) == times.in_place_ps + 2 * times.expert_ps
    with pytest.raises(UsageError, match="time-out of 1.9e-11 s must be at least two periods of 1e-11 s"):
        read_times(TIMES_FILE, period_ps=10, timeout_ps=19)
    with pytest.raises(UsageError, match="time-out of 0.3 s must be at least two periods of 1 s"):
        recovery_times("in-place", None, 0.3)
    with pytest.raises(UsageError, match="--recovery 'inplace' is not known; nearest: in-place"):
        recovery_times("inplace")
