"""Continuous batching on one rank, as pure decisions: no device, no MPI, no clock.

A step's budget is counted in *priced* tokens. Running decodes come first (one token each, so no started
answer stalls, and the drafts of those that follow as far as the budget goes), what is left goes to prefills
in order of arrival, cut into chunks. A request is admitted when the KV blocks of its whole life are free, so
nothing is ever preempted (`serving.paged` takes blocks on demand).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from emulator.errors import InternalError, UsageError
from serving.kv.cache import Transfer
from serving.outputs import StatsEvent
from serving.request import Request, RequestSpec


@dataclass(frozen=True)
class SchedulerLimits:
    """Bounds of one rank.

    batched_tokens: priced tokens a step. max_seqs: requests running at once. context: functional positions
    the model has; priced_context: of the priced model. kv_blocks of block_tokens functional tokens each, and
    priced_kv_tokens, are the cache's size in the two currencies; both must have room.
    """

    batched_tokens: int
    max_seqs: int
    context: int
    priced_context: int
    kv_blocks: int
    block_tokens: int
    priced_kv_tokens: int
    drafts: int = 0

    def max_step_tokens(self, scale: int) -> int:
        """Most functional tokens one step can hold; sizes the dispatch buffers.

        Every running request brings at most one token worth less than `scale` (a decode, or its prompt's
        remainder); all others are worth `scale`.
        """
        if self.batched_tokens < scale:
            raise UsageError(
                f"--max-num-batched-tokens {self.batched_tokens} is below the token scale {scale}: no prompt "
                f"token would ever fit into a step; the least is {scale}"
            )
        return min(self.batched_tokens, self.max_seqs * (1 + self.drafts) + self.batched_tokens // scale)

    def blocks(self, spec: RequestSpec) -> int:
        """KV blocks a request holds at its end."""
        return -(-spec.total_tokens // self.block_tokens)

    def refusal(self, spec: RequestSpec) -> str | None:
        """Why a request can never be served here, or None."""
        if spec.prompt_tokens + spec.max_output > self.context:
            return (
                f"{spec.prompt_tokens} prompt and {spec.max_output} output tokens exceed the context of "
                f"{self.context}"
            )
        if spec.priced_prompt + spec.max_output > self.priced_context:
            return (
                f"{spec.priced_prompt} prompt and {spec.max_output} output tokens exceed the priced context "
                f"of {self.priced_context}"
            )
        if self.blocks(spec) > self.kv_blocks or spec.priced_total > self.priced_kv_tokens:
            return f"{spec.priced_total} tokens of KV exceed the rank's {self.priced_kv_tokens}"
        return None


@dataclass(frozen=True)
class Segment:
    """A run of consecutive tokens of one request inside a step's batch.

    start, count: functional positions; priced_start, priced_count: what they are charged as. `samples` says
    that the last position's logits give a new output token. shares(i) of the tokens sum to priced_count.
    """

    request: Request
    start: int
    count: int
    priced_start: int
    priced_count: int
    samples: bool
    decode: bool

    @property
    def answers(self) -> range:
        """Output positions whose logits its last rows give: one where it samples, more where outputs of
        another rank are replayed."""
        first, least = self.request.spec.prompt_tokens - 1, self.request.answered
        return range(max(least, self.start - first), max(least, self.start + self.count - first))

    def shares(self) -> list[int]:
        """Priced tokens each functional token stands for: `count` values."""
        spec = self.request.spec
        edges = [spec.priced_position(self.start + i) for i in range(self.count + 1)]
        return [after - before for before, after in zip(edges, edges[1:], strict=False)]


class Scheduler:
    """Requests of one rank: `add`, then per step `schedule`, `complete`, `reject`, `commit` and `retire`."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self.limits = limits
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.kv_blocks_used = 0
        self.priced_kv_used = 0
        self.outstanding = 0

    def refusal(self, spec: RequestSpec) -> str | None:
        """Why a request can never be served here, or None."""
        return self.limits.refusal(spec)

    def add(self, request: Request) -> bool:
        """Queue a request, or fail it alone when it can never fit; True if queued."""
        reason = self.refusal(request.spec)
        if reason is not None:
            request.fail(reason)
            return False
        self.waiting.append(request)
        self.outstanding += request.outstanding
        return True

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def schedule(self) -> list[Segment]:
        """Choose this step's batch; empty only when there is nothing to do."""
        self._admit()
        budget = self.limits.batched_tokens
        segments = []
        decodes = [request for request in self.running if not request.in_prefill]
        for later, request in zip(range(len(decodes) - 1, -1, -1), decodes, strict=True):
            if budget >= 1:
                segments.append(decode_segment(request, budget - later))
                budget -= segments[-1].count
        for request in self.running:
            if request.in_prefill and (segment := prefill_segment(request, budget)) is not None:
                segments.append(segment)
                budget -= segment.priced_count
        if self.has_work and not segments:
            raise InternalError("scheduler has requests but no work for this step")
        return segments

    def complete(self, segments: Sequence[Segment]) -> None:
        """Account for a computed step. Call before the sampled tokens are appended to their requests."""
        for segment in segments:
            segment.request.num_computed += segment.count
            self.outstanding -= segment.priced_count

    def reject(self, request: Request, count: int) -> None:
        """The last `count` tokens of a request were wrong drafts: they are not computed."""
        self._return_to(request, request.num_computed - count)

    def _return_to(self, request: Request, num_computed: int) -> None:
        before = request.outstanding
        request.num_computed = num_computed
        self.outstanding += request.outstanding - before

    def commit(self, segments: Sequence[Segment]) -> None:
        """A step has ended, its outputs are appended and wrong drafts rejected."""

    def retire(self) -> list[Request]:
        """Drop the requests that have ended, give their KV back, and return them."""
        ended = [request for request in self.running if request.is_done]
        for request in ended:
            self._let_go(request)
        if ended:
            self.running = [request for request in self.running if not request.is_done]
        return ended

    def abort(self, request_id: int) -> Request | None:
        """End a request in whatever state it is, between two steps; None if none of that number is left.

        Its KV counts as free; a request that held some has `num_computed` above 0.
        """
        for place, request in enumerate(self.waiting):
            if request.spec.request_id == request_id:
                del self.waiting[place]
                self.outstanding -= request.outstanding
                request.abort()
                return request
        for place, request in enumerate(self.running):
            if request.spec.request_id == request_id:
                del self.running[place]
                self._let_go(request)
                request.abort()
                return request
        return None

    def _let_go(self, request: Request) -> None:
        """A running request's KV is free, and what it had still to compute is not to be done."""
        self.kv_blocks_used -= self.limits.blocks(request.spec)
        self.priced_kv_used -= request.spec.priced_total
        self.outstanding -= request.outstanding

    def start_over(self, request_id: int) -> bool:
        """A running request whose KV is lost waits again, before all others, to be computed from its prompt
        and its outputs; False if none of that number runs."""
        found = [r for r in self.running if r.spec.request_id == request_id and not r.is_done]
        if not found:
            return False
        request = found[0]
        self.running = [r for r in self.running if r is not request]
        self.kv_blocks_used -= self.limits.blocks(request.spec)
        self.priced_kv_used -= request.spec.priced_total
        self.outstanding -= request.outstanding
        request.num_computed, request.replayed, request.drafts = 0, len(request.outputs), []
        self.outstanding += request.outstanding
        self.waiting.appendleft(request)
        return True

    def abandon(self, reason: str) -> list[Request]:
        """Fail every request that has not ended; return those that hold KV."""
        for request in self.waiting:
            request.fail(reason)
        running, self.running = self.running, []
        for request in running:
            self._let_go(request)
            if not request.is_done:
                request.fail(reason)
        self.waiting.clear()
        self.outstanding = 0
        return [request for request in running if request.num_computed]

    def roll_back(self, segments: Sequence[Segment]) -> None:
        """A step did not end: what was taken for it alone goes back, and what it computed is not computed."""
        for segment in segments:
            self._return_to(segment.request, segment.start)

    def take_preempted(self) -> Sequence[int]:
        """Requests that have given up their KV for this step's batch."""
        return ()

    def take_transfers(self) -> Sequence[Transfer]:
        """What must be moved between tiers of the cache before this step's batch is computed."""
        return ()

    def take_found(self) -> Sequence[int]:
        """Priced tokens of each prefix that was found in the cache for this step's batch."""
        return ()

    @property
    def num_requests(self) -> int:
        """Requests that run or wait."""
        return len(self.running) + len(self.waiting)

    @property
    def kv_reserved(self) -> int:
        """Priced tokens of KV that running and waiting requests come to hold at their ends."""
        return self.priced_kv_used + sum(request.spec.priced_total for request in self.waiting)

    def stats(self, rank: int, now_ps: int) -> StatsEvent:
        """How this rank stands."""
        return StatsEvent(
            rank=rank,
            now_ps=now_ps,
            waiting=len(self.waiting),
            running=len(self.running),
            kv_used=self.priced_kv_used,
            kv_total=self.limits.priced_kv_tokens,
            preemptions=0,
            cache_queries=0,
            cache_hits=0,
        )

    def has_room(self, spec: RequestSpec) -> bool:
        """Whether the KV of a request's whole life is free."""
        limits = self.limits
        if self.kv_blocks_used + limits.blocks(spec) > limits.kv_blocks:
            return False
        return self.priced_kv_used + spec.priced_total <= limits.priced_kv_tokens

    def admit(self, request: Request) -> None:
        """Let a request run; its KV counts as used from now on."""
        self.kv_blocks_used += self.limits.blocks(request.spec)
        self.priced_kv_used += request.spec.priced_total
        self.running.append(request)

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.limits.max_seqs:
            if not self.has_room(self.waiting[0].spec):
                return
            self.admit(self.waiting.popleft())


def make_segment(request: Request, count: int) -> Segment:
    """The next `count` tokens of a request (of its prompt, or one generated token)."""
    spec, start = request.spec, request.num_computed
    decode, end = not request.in_prefill, start + count
    priced_start = spec.priced_position(start)
    priced_count = spec.priced_position(end) - priced_start
    samples = decode or end == request.known_tokens
    return Segment(request, start, count, priced_start, priced_count, samples, decode)


def decode_segment(request: Request, room: int) -> Segment:
    """A decode's last output, and its drafts as far as there is room for tokens; others are forgotten."""
    request.drafts = request.drafts[: max(0, room - 1)]
    return make_segment(request, 1 + len(request.drafts))


def prefill_segment(request: Request, budget: int) -> Segment | None:
    """The longest chunk of what is known worth at most `budget` priced tokens; None if not one token fits."""
    spec = request.spec
    start = request.num_computed
    priced_start = spec.priced_position(start)
    after = budget - max(0, spec.priced_prompt - priced_start)  # for what is replayed: one priced token each
    if after >= 0:
        count = min(request.known_tokens - start, max(0, spec.prompt_tokens - start) + after)
    else:
        count = budget // spec.scale
    return make_segment(request, count) if count >= 1 else None
