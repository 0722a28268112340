"""A rank's scheduler that decides nothing: step by step it does what a record says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from emulator.errors import UsageError
from serving.dispatch import Dispatcher
from serving.job import ReplayJob, read_schedule
from serving.request import Request, RequestSpec
from serving.scheduler import Scheduler, SchedulerLimits, Segment, make_segment


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
    job: ReplayJob, specs: Sequence[RequestSpec], limits: SchedulerLimits, rank: int
) -> tuple[Scheduler, Dispatcher]:
    """A rank's scheduler and dispatcher: live ones, or those of the job's recorded schedule."""

    def is_refused(spec: RequestSpec) -> bool:
        return limits.refusal(spec) is not None

    if job.decode is not None:
        return Scheduler(limits), Dispatcher(
            specs, is_refused, [i // job.max_seqs for i in range(len(specs))]
        )
    if not job.schedule:
        return Scheduler(limits), Dispatcher(specs, is_refused)
    assigned, rows = read_schedule(job.schedule)
    return FixedScheduler(limits, rows[rows[:, 1] == rank]), Dispatcher(specs, is_refused, assigned.tolist())
