"""A rank's scheduler that decides nothing: step by step it does what a record says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from emulator.errors import UsageError
from serving.balance import (
    Balancer,
    DecodeKV,
    LeastTokens,
    PrefillCost,
    PromptView,
    RandomGroup,
    RoundRobin,
    check_policy,
)
from serving.dispatch import Dispatcher, OpenDispatcher
from serving.job import ReplayJob, read_schedule
from serving.paged import PagedOptions, PagedScheduler, make_cache
from serving.prefix_price import PrefillPrice
from serving.request import Request, RequestSpec
from serving.scheduler import Scheduler, SchedulerLimits, Segment, make_segment

_MOST_VIEWED = 1 << 20
"""Blocks whose places a dispatcher remembers."""


class FixedScheduler(Scheduler):
    """Requests of one rank, scheduled as recorded.

    Args:
        rows: int32[n, 5], this rank's rows (step, rank, request, tokens, priced tokens) in order.

    `schedule` raises UsageError where a row asks for what the request or the rank does not have.
    """

    def __init__(self, limits: SchedulerLimits, rows: NDArray[np.int32]) -> None:
        super().__init__(limits)
        self._rows: dict[int, list[list[int]]] = {}
        for step, _, *what in rows.tolist():
            self._rows.setdefault(step, []).append(what)
        self._step = 0

    def schedule(self) -> list[Segment]:
        """This step's recorded batch; empty where the rank had nothing to do."""
        rows = self._rows.get(self._step, [])
        segments = [self._segment(*row) for row in rows]
        if len({request for request, _, _ in rows}) < len(rows):
            raise UsageError(f"step {self._step} has a request twice")
        if sum(segment.priced_count for segment in segments) > self.limits.batched_tokens:
            raise UsageError(f"step {self._step} exceeds {self.limits.batched_tokens} batched tokens")
        self._step += 1
        return segments

    def _segment(self, request_id: int, count: int, priced_count: int) -> Segment:
        request = self._running(request_id)
        left = request.spec.prompt_tokens - request.num_computed if request.in_prefill else 1
        if not 1 <= count <= left:
            raise UsageError(f"step {self._step}: request {request_id} has {left} tokens, not {count}")
        segment = make_segment(request, count)
        if segment.priced_count != priced_count:
            raise UsageError(
                f"step {self._step}: request {request_id}: {count} tokens are worth "
                f"{segment.priced_count}, not {priced_count}"
            )
        return segment

    def _running(self, request_id: int) -> Request:
        for request in self.running:
            if request.spec.request_id == request_id:
                return request
        for request in self.waiting:
            if request.spec.request_id == request_id:
                if len(self.running) == self.limits.max_seqs or not self.has_room(request.spec):
                    raise UsageError(f"step {self._step}: no room for request {request_id}")
                self.waiting.remove(request)
                self.admit(request)
                return request
        raise UsageError(f"step {self._step}: request {request_id} is not served here, or has ended")


def deciders(
    job: ReplayJob,
    specs: Sequence[RequestSpec],
    limits: SchedulerLimits,
    rank: int,
    prefill: PrefillPrice | None = None,
) -> tuple[Scheduler, Dispatcher]:
    """A rank's scheduler and dispatcher: live ones, or those of the job's recorded schedule.

    Args:
        prefill: prices that the prefill scheduler weighs with.
    """
    if job.schedule:
        assigned, rows = read_schedule(job.schedule)
        fixed = FixedScheduler(limits, rows[rows[:, 1] == rank])
        return fixed, Dispatcher(specs, lambda s: limits.refusal(s) is not None, assigned.tolist())
    scheduler = _scheduler(job, limits)

    def is_refused(spec: RequestSpec) -> bool:
        return scheduler.refusal(spec) is not None

    if job.decode is not None:
        return scheduler, Dispatcher(specs, is_refused, [i // job.max_seqs for i in range(len(specs))])
    balancer = make_balancer(job, limits, prefill)
    if job.is_open:
        return scheduler, OpenDispatcher(is_refused, balancer)
    return scheduler, Dispatcher(specs, is_refused, None, balancer)


def _scheduler(job: ReplayJob, limits: SchedulerLimits) -> Scheduler:
    paging = job.paging
    if paging is None:
        return Scheduler(limits)
    options = PagedOptions(paging.reuse, paging.chunked, paging.dram_blocks)
    return PagedScheduler(limits, make_cache(limits, options, paging.block_size), options)


def make_balancer(job: ReplayJob, limits: SchedulerLimits, prefill: PrefillPrice | None) -> Balancer:
    """The balancer a job asks for. Raises UsageError: an unknown one."""
    check_policy(job.balancing)
    if job.balancing == "round-robin":
        return RoundRobin()
    if job.balancing == "random":
        return RandomGroup(job.seed)
    if job.balancing == "decode-kv":
        return DecodeKV(job.max_seqs, limits.priced_kv_tokens)
    if job.balancing == "prefill-cost" and prefill is not None:
        view = None
        if job.paging is not None and job.paging.reuse:
            blocks = limits.priced_kv_tokens // job.paging.block_size + job.paging.dram_blocks
            most = min(_MOST_VIEWED, job.num_ranks * blocks)
            view = PromptView(job.num_ranks, job.paging.block_size, most)
        return PrefillCost(prefill.cost, job.batched_tokens, view)
    return LeastTokens()
