"""The paged scheduler alone: budgets kept, nobody lost, everybody ends once, no block leaked.

Mutations seen to fail here: the victim keeps its segment; a preempted request forgets its outputs;
`answered` not set (outputs are asked for twice); blocks of an aborted request not freed; a hit that covers
the whole prompt; rejected drafts that stay counted, or whose blocks stay held; a block committed before what
its draft rows look at is known (`KVCache.ahead` left out of `commit`).
"""

import random
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.paged import PagedOptions, PagedScheduler, make_cache
from serving.request import Request, RequestSpec
from serving.scheduler import SchedulerLimits, Segment


def limits(**changes: int) -> SchedulerLimits:
    values = {
        "batched_tokens": 64,
        "max_seqs": 4,
        "context": 10_000,
        "priced_context": 100_000,
        "kv_blocks": 40,
        "block_tokens": 8,
        "priced_kv_tokens": 320,
    }
    return SchedulerLimits(**(values | changes))


def make(options: PagedOptions | None = None, span: int = 8, **changes: int) -> PagedScheduler:
    bounds, chosen = limits(**changes), options or PagedOptions()
    return PagedScheduler(bounds, make_cache(bounds, chosen, span), chosen)


def request(
    request_id: int, prompt: int, output: int = 2, scale: int = 1, priority: int = 0, shared: int = 0
) -> Request:
    """A prompt whose first `shared` tokens are everybody's."""
    own = request_id * 1000 + np.arange(-(-prompt // scale))
    ids = np.where(np.arange(len(own)) < shared, np.arange(len(own)), own)
    spec = RequestSpec(
        request_id, 0, ids.astype(np.int64), prompt, scale, output, False, 0, priority=priority
    )
    return Request(spec)


@dataclass
class Run:
    """Plays the engine: each output is a function of request and position, each asked for once."""

    scheduler: PagedScheduler
    answered: dict[int, list[int]] = field(default_factory=dict)
    ended: list[int] = field(default_factory=list)
    draws: random.Random = field(default_factory=lambda: random.Random(0))
    """Which drafts are right."""
    rejected: int = 0

    def step(self) -> list[tuple[int, int, int]]:
        bounds = self.scheduler.limits
        segments = self.scheduler.schedule()
        self.scheduler.take_transfers()
        self.scheduler.take_found()
        self.check(segments)
        self.scheduler.complete(segments)
        for segment in segments:
            self.verify(segment)
        self.scheduler.commit(segments)
        for one in self.scheduler.retire():
            assert one.spec.request_id not in self.ended
            self.ended.append(one.spec.request_id)
        self.scheduler.kv.check_integrity()
        assert len(self.scheduler.running) <= bounds.max_seqs
        return [(s.request.spec.request_id, s.start, s.count) for s in segments]

    def check(self, segments: list[Segment]) -> None:
        bounds = self.scheduler.limits
        assert sum(s.priced_count for s in segments) <= bounds.batched_tokens
        assert len({s.request.spec.request_id for s in segments}) == len(segments)
        for s in segments:
            assert s.start == s.request.num_computed
            held = len(self.scheduler.kv.tables[s.request.spec.request_id]) * bounds.block_tokens
            assert held >= s.start + s.count
            assert sum(s.shares()) == s.priced_count

    def verify(self, segment: Segment) -> None:
        """Answer as far as drafts are right, reject the others, and draft anew."""
        one, first = segment.request, len(segment.request.outputs)
        for position in segment.answers:
            before = position - first - 1
            if before < 0 or one.drafts[before] == one.outputs[-1]:
                self.answer(one, position)
            else:
                break
        if segment.decode and (wrong := segment.count - (len(one.outputs) - first)):
            self.rejected += wrong
            self.scheduler.reject(one, wrong)
        assert len(one.drafts) == segment.count - 1 or not segment.decode
        left = one.spec.max_output - len(one.outputs) - 1
        if self.scheduler.limits.drafts and one.outputs and left > 0 and not one.in_prefill:
            truth = [one.spec.request_id * 10_000 + len(one.outputs) + i for i in range(left)]
            guess = [token if self.draws.random() < 0.6 else -1 for token in truth]
            one.drafts = guess[: self.scheduler.limits.drafts]
        else:
            one.drafts = []

    def answer(self, one: Request, position: int) -> None:
        asked = self.answered.setdefault(one.spec.request_id, [])
        assert position == len(one.outputs), "an output is asked for twice"
        asked.append(position)
        one.append_output(one.spec.request_id * 10_000 + position, 0)

    def all(self) -> None:
        for _ in range(10_000):
            if not self.scheduler.has_work:
                break
            self.step()
        assert not self.scheduler.has_work
        assert self.scheduler.outstanding == 0
        self.scheduler.kv.check_integrity(idle=True)


def test_blocks_are_taken_as_tokens_come() -> None:
    run = Run(make())
    run.scheduler.add(request(0, 20, output=14))
    assert run.step() == [(0, 0, 20)]
    assert len(run.scheduler.kv.tables[0]) == 3
    for _ in range(5):
        run.step()
    assert len(run.scheduler.kv.tables[0]) == 4
    run.all()


def test_without_blocks_the_last_one_gives_up_and_goes_on_where_it_was() -> None:
    scheduler = make(kv_blocks=6, priced_kv_tokens=48)
    run = Run(scheduler)
    first, second = request(0, 16, output=20), request(1, 16, output=20)
    scheduler.add(first)
    scheduler.add(second)
    while not second.preemptions:
        run.step()
    given = len(second.outputs)
    while not any(begun := [s for s in run.step() if s[0] == 1]):
        pass
    assert begun == [(1, 0, 16 + given)]  # prompt and outputs come back at once
    run.all()
    assert run.ended == [0, 1]
    assert scheduler.counts.preemptions >= 1 and first.preemptions == 0 < second.preemptions
    assert second.outputs == [10_000 + i for i in range(20)]
    assert run.answered == {0: list(range(20)), 1: list(range(20))}
    charged = scheduler.counts
    assert charged.dropped > 0 and charged.cached == 0


def test_a_higher_priority_takes_the_blocks_of_a_lower_one() -> None:
    scheduler = make(kv_blocks=5, priced_kv_tokens=40)
    run = Run(scheduler)
    low, high = request(0, 16, output=20, priority=5), request(1, 16, output=20, priority=1)
    scheduler.add(low)
    run.step()
    scheduler.add(high)
    run.all()
    assert run.ended == [1, 0]
    assert low.preemptions >= 1 and high.preemptions == 0


def test_a_prefix_that_is_there_is_not_computed_again() -> None:
    scheduler = make(PagedOptions(reuse=True))
    run = Run(scheduler)
    scheduler.add(request(0, 40, shared=24))
    run.all()
    scheduler.add(request(1, 40, shared=24))
    assert run.step() == [(1, 24, 16)]
    run.all()
    counts = scheduler.counts
    assert (counts.queried, counts.hit, counts.cached) == (80, 24, 24)


def test_a_prompt_that_is_wholly_there_still_computes_its_last_token() -> None:
    scheduler = make(PagedOptions(reuse=True))
    run = Run(scheduler)
    for number in range(2):
        scheduler.add(request(number, 16, output=1, shared=16))
        run.all()
    assert scheduler.counts.hit == 8


def test_without_chunks_a_prompt_waits_for_a_step_that_holds_it() -> None:
    scheduler = make(PagedOptions(chunked=False))
    run = Run(scheduler)
    for number in range(3):
        scheduler.add(request(number, 40, output=3))
    too_long = request(3, 65)
    assert not scheduler.add(too_long)
    assert "exceeds the 64 of a step" in str(too_long.error) and too_long.num_ends == 1
    assert run.step() == [(0, 0, 40)]
    assert run.step() == [(0, 40, 1), (1, 0, 40)]
    run.all()
    assert sorted(run.ended) == [0, 1, 2]


@pytest.mark.parametrize("when", ["waiting", "prefill", "decode", "preempted", "ended", "unknown"])
def test_abort_in_every_state_ends_once_and_gives_everything_back(when: str) -> None:
    scheduler = make(kv_blocks=8, priced_kv_tokens=64, max_seqs=2)
    run = Run(scheduler)
    one, other = request(0, 20, output=6), request(1, 16, output=40)
    if when == "waiting":
        scheduler.add(one)
    elif when == "prefill":
        one = request(0, 60, output=2)
        scheduler.limits = limits(kv_blocks=8, priced_kv_tokens=64, batched_tokens=32)
        scheduler.add(one)
        run.step()
        assert 0 < one.num_computed < 60
    elif when == "decode":
        scheduler.add(one)
        run.step()
        run.step()
        assert one.outputs
    elif when == "preempted":
        scheduler.add(other)
        one = request(0, 16, output=40)
        scheduler.add(one)
        while not one.preemptions:
            run.step()
        assert one in scheduler.waiting and one.outputs
    elif when == "ended":
        scheduler.add(one)
        run.all()
    aborted = scheduler.abort(0)
    assert (aborted is one) == (when in ("waiting", "prefill", "decode", "preempted"))
    if aborted is not None:
        assert (one.finish, one.num_ends, one.error) == ("abort", 1, None)
        assert scheduler.abort(0) is None
    run.all()


def test_a_stop_token_ends_a_request_early_and_its_load_is_gone() -> None:
    scheduler = make()
    one = request(0, 10, output=50)
    scheduler.add(one)
    run = Run(scheduler)
    run.step()
    one.stop(7)
    assert scheduler.retire() == [one]
    assert (one.finish, one.stop_reason, one.num_ends) == ("stop", 7, 1)
    assert scheduler.outstanding == 0
    run.all()


def test_a_step_taken_back_gives_its_blocks_back() -> None:
    scheduler = make(PagedOptions(reuse=True))
    run = Run(scheduler)
    scheduler.add(request(0, 40, output=3))
    segments = scheduler.schedule()
    scheduler.roll_back(segments)
    assert scheduler.kv.tables == {0: []}
    scheduler.kv.check_integrity()
    run.all()
    assert run.ended == [0]


@st.composite
def workloads(draw: st.DrawFn) -> list[tuple[int, int, int, int, int]]:
    """(step of arrival, prompt, output, priority, step of abort or -1) of each request."""
    one = st.tuples(
        st.integers(0, 30),
        st.integers(1, 120),
        st.integers(1, 30),
        st.integers(0, 2),
        st.one_of(st.just(-1), st.integers(0, 60)),
    )
    return draw(st.lists(one, min_size=1, max_size=14))


@settings(max_examples=150, deadline=None)
@given(
    workloads(),
    st.sampled_from([1, 4]),
    st.booleans(),
    st.booleans(),
    st.integers(20, 60),
    st.sampled_from([0, 10]),
    st.integers(0, 2),
)
def test_nobody_is_lost_and_nothing_leaks(
    work: list[tuple[int, int, int, int, int]],
    scale: int,
    reuse: bool,
    chunked: bool,
    blocks: int,
    dram: int,
    drafts: int,
) -> None:
    options = PagedOptions(reuse, chunked, dram if reuse else 0)
    scheduler = make(
        options,
        8,
        kv_blocks=blocks,
        priced_kv_tokens=blocks * 8,
        block_tokens=8 // scale,
        batched_tokens=40,
        drafts=drafts,
    )
    run = Run(scheduler)
    requests = {
        i: request(i, prompt, output, scale, priority, shared=24 // scale)
        for i, (_, prompt, output, priority, _) in enumerate(work)
    }
    aborted, computed = set(), 0
    last = max([arrival for arrival, *_ in work] + [abort for *_, abort in work])
    for step in range(5_000):
        for i, (arrival, *_, abort) in enumerate(work):
            if step == arrival:
                scheduler.add(requests[i])
            if step == abort and step >= arrival and scheduler.abort(i) is not None:
                aborted.add(i)
        if scheduler.has_work:
            before = {i: r.num_computed for i, r in requests.items()}
            for i, start, count in run.step():
                spec = requests[i].spec
                computed += spec.priced_position(start + count) - spec.priced_position(start)
                assert start >= before[i] or scheduler.counts.preemptions
        elif step > last:
            break
    counts = scheduler.counts
    for i, one in requests.items():
        assert one.num_ends == 1, (i, one)
        if i in aborted or one.error:
            continue
        assert i in run.ended
        assert one.outputs == [i * 10_000 + p for p in range(one.spec.max_output)]
    ended = sum(one.spec.priced_position(one.num_computed) for one in requests.values())
    assert computed + counts.cached - counts.dropped - run.rejected == ended
    assert counts.aborted == len(aborted)
    run.all()
