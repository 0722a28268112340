"""Colocated serving on one rank: every rank attends to its own requests and hosts its share of the experts.

A step, the same on all ranks:

    status exchange      everyone learns everyone's load and the latest clock
    requests and aborts  that have come from outside, alike on every rank (`serving.feed`)
    hand out arrivals    worked out alike on every rank (`serving.dispatch`)
    nobody has work?     sleep to the next arrival, or end
    forward              own tokens, if any; a rank without tokens still hosts experts (`Forward.idle`)
    sample, retire       outputs appended, ended requests give their KV back
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from emulator.errors import InternalError
from emulator.faults import Faults, NoFaults
from serving.dispatch import Dispatcher
from serving.feed import LEADER, Abort, NoSource, Source
from serving.kv.cache import Transfer
from serving.ledger import TimeLedger, WorkLedger
from serving.outputs import NoOutlet, Outlet, StatsEvent
from serving.request import Mark, Request, RequestSpec
from serving.scheduler import Scheduler, Segment


class Clock(Protocol):
    """What the engine needs of a device's clock."""

    @property
    def now_ps(self) -> int: ...

    def sleep_ps(self, ps: int) -> None: ...


class StatusBoard(Protocol):
    """The exchange of one status word with all ranks."""

    def exchange(self, word: int) -> NDArray[np.int64]:
        """Give my word, return everyone's: int64[n]. Blocks in virtual time."""


class StepForward(Protocol):
    """One forward pass of the pod, seen from this rank."""

    def step(self, segments: Sequence[Segment]) -> torch.Tensor:
        """Compute a step; returns float32[rows, vocab] logits, those of each segment's `answers` in turn."""

    def idle(self) -> None:
        """Take part in a step without tokens of my own."""

    def move(self, transfers: Sequence[Transfer], found: Sequence[int]) -> None:
        """Before a step: move KV between tiers, and pay for prefixes found (priced tokens of each)."""

    def release(self, request_id: int) -> None:
        """Give back the KV of an ended request."""

    def roll_back(self, segments: Sequence[Segment]) -> None:
        """Take back a step that did not end."""


class Sampled(NamedTuple):
    """A chosen token, and its log probabilities where they are asked for."""

    token: int
    logprobs: Any = None


Sampler = Callable[[torch.Tensor, Request, int], Sampled]
"""(logits float32[vocab], request with its outputs before this one, output position) -> token; pure."""


class Speculating(Protocol):
    """Who verifies drafts and makes new ones (`serving.speculation`)."""

    def begin(self, segments: Sequence[Segment]) -> None: ...
    def takes(self, request: Request, position: int) -> bool: ...
    def settle(self, segments: Sequence[Segment], left_out: Collection[int]) -> None: ...
    def keep(self) -> None: ...
    def forget(self, request_id: int) -> None: ...


class _Answer(NamedTuple):
    """An output of a request, and the logits it was chosen from."""

    request: Request
    position: int
    row: torch.Tensor
    sampled: Sampled


@dataclass
class RankRecord:
    """Everything one rank has to say at the end."""

    time: TimeLedger = field(default_factory=TimeLedger)
    work: WorkLedger = field(default_factory=WorkLedger)
    steps: int = 0
    asleep_ps: int = 0
    """Virtual time without work in the whole pod, part of `waiting`."""
    requests: list[Request] = field(default_factory=list)
    logits: dict[int, Any] = field(default_factory=dict)
    schedule: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(step, request, tokens, priced tokens) of every segment computed here."""
    decode: list[dict[str, Any]] = field(default_factory=list)
    """Measured decode steps (`serving.decode.forward.StepTimes`), where the job asks for them."""
    page_faults: list[dict[str, Any]] = field(default_factory=list)
    """Pages of KV lost here (`serving.recovery.pages`)."""
    recoveries: list[dict[str, Any]] = field(default_factory=list)
    speculation: dict[str, Any] = field(default_factory=dict)
    """What this rank's drafts came to (`serving.speculation`)."""
    """Deaths this rank has gone on after (`serving.recovery.in_place`)."""
    balancing: list[dict[str, Any]] = field(default_factory=list)
    """Rounds of balancing experts (`serving.eplb.balancer`)."""
    cache: dict[str, int] = field(default_factory=dict)
    """Counts of a paged cache (`serving.paged.CacheCounts`, and what its tiers moved)."""
    keep: bool = True
    """Whether requests and schedule are remembered to the end; an open server would grow with them."""
    delivery: dict[str, int] = field(default_factory=dict)
    """What became of the tokens sent to the front end (`serving.recovery.outbox`)."""
    points: list[tuple[int, int, str]] = field(default_factory=list)
    """When requests entered their states (`serving.recovery.points`), where the job asks for it."""

    def as_dict(self, rank: int, end_ps: int) -> dict[str, Any]:
        return {
            "rank": rank,
            "end_ps": end_ps,
            "steps": self.steps,
            "asleep_ps": self.asleep_ps,
            "time_ps": self.time.ps,
            "work": asdict(self.work),
            "requests": [self.ending(rank, request) for request in self.requests],
            "schedule": self.schedule,
            **({"decode": self.decode} if self.decode else {}),
            **({"page_faults": self.page_faults} if self.page_faults else {}),
            **({"recoveries": self.recoveries} if self.recoveries else {}),
            **({"speculation": self.speculation} if self.speculation else {}),
            **({"balancing": self.balancing} if self.balancing else {}),
            **({"cache": self.cache} if self.cache else {}),
            **({"delivery": self.delivery} if self.delivery else {}),
            **({"points": self.points} if self.points else {}),
        }

    def ending(self, rank: int, request: Request) -> dict[str, Any]:
        """How a request stands on this rank."""
        request_id = request.spec.request_id
        return {
            "id": request_id,
            "rank": rank,
            "tokens": request.outputs,
            "times_ps": request.token_times_ps,
            "logits_sha256": self.logits[request_id].hexdigest() if request_id in self.logits else "",
            "error": request.error,
            "ends": request.num_ends,
            **({"finish": "abort"} if request.finish == "abort" else {}),
            **(self._paged_ending(request) if self.cache else {}),
        }

    def _paged_ending(self, request: Request) -> dict[str, Any]:
        """What differs from request to request where KV is shared, given up, or aborted."""
        spec = request.spec
        return {
            "charged": spec.priced_position(request.num_computed),
            "finish": request.finish,
            "stop_reason": request.stop_reason,
            "preemptions": request.preemptions,
            "cached": request.cached,
            "arrival_ps": spec.arrival_ps,
        }


class ServingEngine:
    """The step loop of one rank.

    Attributes:
        faults: who is told the states requests go through.
        ended: called with each request that has ended here.
        emitted: called with each request that has given a token, and the hash of its logits so far.
        lost: requests whose KV has been lost since it was asked last.
        between_steps: called on every rank before a step, with the time all agree on.
        refused: requests that cannot be served exactly any more, and why; they end with that error.
        strict: an output computed again must be what it was.
        leads: whether this rank speaks for requests that no rank has.
        open_request: makes the request that is handed to this rank.
        source: where requests come from beside the dispatcher's workload.
        outlet: who is told every token and every end.
        stops: called after each output; ends the request where that output does.
        count: completes the record when all is over.
        close: gives back what its parts hold of the machine; the next job on this device needs it.

    Args:
        rank: this rank; receives the requests the dispatcher gives it.
        progress: called once a step with (requests ended here, now_ps); for display only.
    """

    def __init__(
        self,
        rank: int,
        clock: Clock,
        status: StatusBoard,
        forward: StepForward,
        scheduler: Scheduler,
        dispatcher: Dispatcher,
        sampler: Sampler,
        record: RankRecord,
        progress: Callable[[int, int], None],
    ) -> None:
        self._rank, self._clock, self._status, self._forward = rank, clock, status, forward
        self._scheduler, self._dispatcher, self._sampler = scheduler, dispatcher, sampler
        self._record, self._progress = record, progress
        self._num_ended = 0
        self.faults: Faults = NoFaults()
        self.ended: Callable[[Request], None] | None = None
        self.emitted: Callable[[Request, str], None] | None = None
        self.open_request: Callable[[RequestSpec], Request] = Request
        self.lost: Callable[[], Sequence[int]] = tuple
        self.between_steps: Callable[[int], None] = lambda now_ps: None
        self.source: Source = NoSource()
        self.hold_clock: Callable[[], None] = lambda: None
        """Called on all ranks when the pod has nothing to do, and `start_clock` when something may have come:
        under the wall clock no emulated time is slept between them."""
        self.start_clock: Callable[[], None] = lambda: None
        self.outlet: Outlet = NoOutlet()
        self.stops: Callable[[Request], None] = lambda request: None
        self.count: Callable[[], None] = lambda: None
        self.close: Callable[[], None] = lambda: None
        self.refused: Callable[[], Mapping[int, str]] = dict
        self.strict = True
        self.leads: Callable[[], bool] = lambda: rank == LEADER
        self._in_flight: Sequence[Segment] = ()
        self._struck: set[int] = set()
        """Requests whose KV was lost while their outputs were given."""
        self._marks: list[tuple[Request, Mark]] = []
        """How far answers were before a step whose outputs are not given yet."""
        self.speculation: Speculating | None = None
        self._boundary_ps: dict[int, int] = {}
        """Of requests not yet handed out that came at a step's boundary: when that was here. No word of the
        exchange before it was given later, on any rank; the shared clock is rounded down."""

    def run(self) -> None:
        """Serve until no rank has work and no request is to come."""
        idle = False
        while True:
            if idle:
                self.hold_clock()
            self.source.announce(idle, self._clock.now_ps)
            loads, now_ps = self._exchange_status()
            if idle:
                self.start_clock()
            self._listen(now_ps)
            self._hand_out(loads, now_ps)
            idle = not loads.any() and self._dispatcher.next_arrival_ps is None
            if idle and self.source.closed:
                return
            if not loads.any() and (arrival_ps := self._dispatcher.next_arrival_ps) is not None:
                self._sleep_until(arrival_ps)
                self._hand_out(loads, arrival_ps)
            if loads.any():
                self.between_steps(now_ps)
                self._step()
            self.outlet.flush(self._stats)
            self._progress(self._num_ended, self._clock.now_ps)

    def _exchange_status(self) -> tuple[NDArray[np.int64], int]:
        start_ps = self._clock.now_ps
        words = self._status.exchange(self._dispatcher.pack(self._scheduler, start_ps))
        self._record.time.add("waiting", self._clock.now_ps - start_ps)
        return self._dispatcher.unpack(words)

    def _listen(self, now_ps: int) -> None:
        """Let in what has come from outside."""
        for command in self.source.take(now_ps):
            if isinstance(command, Abort):
                self._abort(command.request_id)
            elif command.refused is None:
                self._dispatcher.add(command.spec)
                if command.now:
                    self._boundary_ps[command.spec.request_id] = self._clock.now_ps
            else:
                self._end_unserved(Request(command.spec), command.refused)

    def _abort(self, request_id: int) -> None:
        spec = self._dispatcher.cancel(request_id)
        if spec is not None:
            self._boundary_ps.pop(request_id, None)
            self._end_unserved(self.open_request(spec), None)
        elif (request := self._scheduler.abort(request_id)) is not None:
            self.faults.point("abort", request=request_id)
            self._release(request_id)
            self._end(request)

    def _end_unserved(self, request: Request, reason: str | None) -> None:
        """End a request that no rank has yet: the leader says so."""
        if not self.leads():
            return
        if reason is None:
            self.faults.point("abort", request=request.spec.request_id)
            request.abort()
        else:
            request.fail(reason)
        self._remember(request)
        self._end(request)

    def _stats(self) -> StatsEvent:
        return self._scheduler.stats(self._rank, self._clock.now_ps)

    def _sleep_until(self, time_ps: int) -> None:
        start_ps = self._clock.now_ps
        if time_ps > start_ps:
            self._clock.sleep_ps(time_ps - start_ps)
        self._record.time.add("waiting", self._clock.now_ps - start_ps)
        self._record.asleep_ps += self._clock.now_ps - start_ps

    def _hand_out(self, loads: NDArray[np.int64], now_ps: int) -> None:
        for rank, spec in self._dispatcher.assign(loads, now_ps):
            boundary_ps = self._boundary_ps.pop(spec.request_id, None)
            if rank == self._rank:
                arrived = spec if boundary_ps is None else replace(spec, arrival_ps=boundary_ps)
                request = self.open_request(arrived)
                self._remember(request)
                if self._scheduler.add(request):
                    self.faults.point("queued", request=spec.request_id)
                else:
                    self._num_ended += 1
                    self.outlet.ended(request)

    def _remember(self, request: Request) -> None:
        if self._record.keep:
            self._record.requests.append(request)

    def _step(self) -> None:
        self._start_over()
        segments = self._scheduler.schedule()
        for request_id in self._scheduler.take_preempted():
            self.faults.point("preemption", request=request_id)
        self._forward.move(self._scheduler.take_transfers(), self._scheduler.take_found())
        self._record.steps += 1
        if self.faults.active:
            self._announce(segments)
            segments = _others(segments, self._start_over())
        if not segments:
            self._forward.idle()
            return
        self._in_flight = segments
        logits = self._forward.step(segments)
        lost = self._start_over()
        whole = self._in_flight = _others(segments, lost)
        self._scheduler.complete(whole)
        if self.speculation is None:
            self._in_flight = ()
            self._answer(segments, logits, lost)
        else:
            self._verify(self.speculation, segments, logits, lost)
        self._note(segments)
        self._struck.update(self.lost())
        self._scheduler.commit(_others(whole, self._struck))
        for request in self._scheduler.retire():
            self._finish(request)

    def _answer(self, segments: Sequence[Segment], logits: torch.Tensor, lost: set[int]) -> None:
        """Sample what a step's rows answer, and give it; nothing of requests that are lost."""
        refused = self.refused()
        for request, position, row in _asked(segments, logits):
            if request.spec.request_id not in lost and request.spec.request_id not in refused:
                self._give(self._chosen(request, position, row))
        _refuse(segments, refused)

    def _verify(
        self, speculation: Speculating, segments: Sequence[Segment], logits: torch.Tensor, lost: set[int]
    ) -> None:
        """As `_answer`, as far as drafts hold; then the draft layers run. Outputs are given when all has
        ended: until then the step may be taken back."""
        refused = self.refused()
        left_out = lost | refused.keys()
        speculation.begin(segments)
        self._marks = [(segment.request, segment.request.mark()) for segment in segments]
        answers = []
        for request, position, row in _asked(segments, logits):
            if request.spec.request_id in left_out or not speculation.takes(request, position):
                continue
            answers.append(self._chosen(request, position, row))
            if position == len(request.outputs):
                self._append(request, answers[-1].sampled.token)
        _refuse(segments, refused)
        speculation.settle(segments, left_out)
        self._in_flight = ()
        self._take_back_outputs()
        for answer in answers:
            self._give(answer)
        _refuse(segments, refused)
        speculation.keep()

    def _take_back_outputs(self) -> None:
        for request, mark in self._marks:
            request.return_to(mark)
        self._marks.clear()

    def _start_over(self) -> set[int]:
        """Requests whose KV is lost begin anew, from what is known of them; their numbers."""
        lost, self._struck = self._struck | set(self.lost()), set()
        for request_id in sorted(lost):
            if self._scheduler.start_over(request_id):
                self._release(request_id)
                self._record.logits.pop(request_id, None)
        return lost

    def _release(self, request_id: int) -> None:
        """A request's KV is nobody's any more."""
        self._forward.release(request_id)
        if self.speculation is not None:
            self.speculation.forget(request_id)

    def announce(self, state: str) -> None:
        """Tell that every request that runs here is in this state."""
        for request in list(self._scheduler.running) if self.faults.active else ():
            self.faults.point(state, request=request.spec.request_id)

    def _announce(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            state = "decode" if segment.decode else "prefill"
            self.faults.point(state, request=segment.request.spec.request_id)

    def _finish(self, request: Request) -> None:
        self.faults.point("finishing", request=request.spec.request_id)
        self._release(request.spec.request_id)
        self._end(request)

    def _end(self, request: Request) -> None:
        self._num_ended += 1
        self.outlet.ended(request)
        if not self._record.keep:
            self._record.logits.pop(request.spec.request_id, None)
        if self.ended is not None:
            self.ended(request)

    def roll_back(self) -> None:
        """Take back the step that was under way, if one was."""
        segments, self._in_flight = self._in_flight, ()
        self._take_back_outputs()
        self._forward.roll_back(segments)
        self._scheduler.roll_back(segments)

    def give_up(self, reason: str) -> None:
        """End every request of mine that has not ended, with an error; its KV is given back."""
        self.roll_back()
        for request in self._scheduler.abandon(reason):
            self._release(request.spec.request_id)
            self._num_ended += 1

    def _chosen(self, request: Request, position: int, row: torch.Tensor) -> _Answer:
        """Sample one output; one that was given before must come out again."""
        request_id = request.spec.request_id
        self.faults.point("sampling", request=request_id)
        sampled = self._sampler(row, request, position)
        if position < len(request.outputs) and self.strict and sampled.token != request.outputs[position]:
            raise InternalError(
                f"request {request_id}: output {position} is {sampled.token} here and was "
                f"{request.outputs[position]} on the rank that gave it",
                rank=self._rank,
            )
        return _Answer(request, position, row, sampled)

    def _append(self, request: Request, token: int) -> None:
        request.append_output(token, self._clock.now_ps)
        self.stops(request)

    def _give(self, answer: _Answer) -> None:
        """Count an output, and tell it to whoever waits for it, unless it was given before."""
        request = answer.request
        digest = self._record.logits.setdefault(request.spec.request_id, hashlib.sha256())
        digest.update(answer.row.numpy().tobytes())
        if answer.position < len(request.outputs):
            return
        self._append(request, answer.sampled.token)
        self.outlet.token(request, answer.sampled.logprobs)
        if self.emitted is not None:
            self.emitted(request, digest.hexdigest())

    def _note(self, segments: Sequence[Segment]) -> None:
        step = self._record.steps - 1
        for segment in segments if self._record.keep else ():
            request_id = segment.request.spec.request_id
            self._record.schedule.append((step, request_id, segment.count, segment.priced_count))
        self._record.work.functional_tokens += sum(segment.count for segment in segments)
        self._record.work.priced_tokens += sum(segment.priced_count for segment in segments)


def _asked(segments: Sequence[Segment], logits: torch.Tensor) -> Iterator[tuple[Request, int, torch.Tensor]]:
    """Request, output position and logits of each row that answers something."""
    answers = ((segment.request, at) for segment in segments for at in segment.answers)
    for (request, position), row in zip(answers, logits, strict=True):
        yield request, position, row


def _refuse(segments: Sequence[Segment], refused: Mapping[int, str]) -> None:
    for segment in segments if refused else ():
        if (reason := refused.get(segment.request.spec.request_id)) is not None:
            segment.request.fail(reason)


def _others(segments: Sequence[Segment], lost: set[int]) -> list[Segment]:
    """The segments of all requests but these."""
    return [segment for segment in segments if segment.request.spec.request_id not in lost]
