"""Continuous batching over a paged cache: blocks on demand, prefix reuse, priorities, preemption. Pure.

    1. running decodes, then running prefills, in order of (priority, arrival)
    2. requests that wait, in the same order, as long as budget, places and blocks last, and unless somebody
       was preempted in this step

Where a running request finds no block, the last in that order gives up its own: it waits again, and what it
had is computed anew from prompt and outputs (or found in the cache). Drafts are left out before anybody gives
anything up for them. The first in order always goes on, so everything ends. Source for the order of things:
vLLM's V1 scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from emulator.errors import InternalError
from serving.kv.blocks import BlockPool
from serving.kv.cache import KVCache, Match, Transfer
from serving.outputs import StatsEvent
from serving.request import Request, RequestSpec
from serving.scheduler import (
    Scheduler,
    SchedulerLimits,
    Segment,
    decode_segment,
    make_segment,
    prefill_segment,
)

__all__ = ["CacheCounts", "PagedOptions", "PagedScheduler", "make_cache"]


@dataclass(frozen=True)
class PagedOptions:
    """How the cache is used.

    reuse: keep and match prefixes. chunked: a prompt may be computed over several steps. dram_blocks: blocks
    of the DRAM pool of this rank; 0: none.
    """

    reuse: bool = False
    chunked: bool = True
    dram_blocks: int = 0


@dataclass
class CacheCounts:
    """Priced tokens and events of one rank's cache and scheduler.

    queried: tokens of prompts looked up. hit: of these found. loaded: of these found in DRAM. cached: not
    computed because they were found, after preemptions too. dropped: computed or found, then given up.
    """

    queried: int = 0
    hit: int = 0
    loaded: int = 0
    cached: int = 0
    dropped: int = 0
    preemptions: int = 0
    aborted: int = 0


def make_cache(limits: SchedulerLimits, options: PagedOptions, span: int) -> KVCache:
    """The cache of one rank. `span`: priced tokens of a full block."""
    dram = None
    if options.dram_blocks:
        dram = BlockPool(options.dram_blocks, options.dram_blocks * span)
    hbm = BlockPool(limits.kv_blocks, limits.priced_kv_tokens)
    return KVCache(limits.block_tokens, hbm, dram, options.reuse, ahead=limits.drafts)


class PagedScheduler(Scheduler):
    """Requests of one rank over its cache. The same calls as `Scheduler`, and `take_transfers`."""

    def __init__(self, limits: SchedulerLimits, kv: KVCache, options: PagedOptions | None = None) -> None:
        super().__init__(limits)
        self.kv, self.options = kv, options or PagedOptions()
        self.counts = CacheCounts()
        self._order: dict[int, tuple[int, int]] = {}
        self._num_added = 0
        self._hashes: dict[int, list[bytes]] = {}
        self._found: list[int] = []
        self._preempted: list[int] = []

    # ---- from outside -----------------------------------------------------------------------------

    def add(self, request: Request) -> bool:
        """See `Scheduler.add`."""
        spec = request.spec
        if not super().add(request):
            return False
        self._order[spec.request_id] = (spec.priority, self._num_added)
        self._num_added += 1
        return True

    def refusal(self, spec: RequestSpec) -> str | None:
        """See `Scheduler.refusal`."""
        limits = self.limits
        if (reason := super().refusal(spec)) is not None:
            return reason
        if not self.options.chunked and spec.priced_prompt > limits.batched_tokens:
            return (
                f"a prompt of {spec.priced_prompt} tokens exceeds the {limits.batched_tokens} of a step, and "
                "prompts are not cut into chunks"
            )
        whole_blocks = spec.priced_position(limits.blocks(spec) * limits.block_tokens)
        if whole_blocks > limits.priced_kv_tokens:
            return f"{whole_blocks} tokens of KV in whole blocks exceed the rank's {limits.priced_kv_tokens}"
        return None

    def schedule(self) -> list[Segment]:
        """See `Scheduler.schedule`."""
        batch = _Batch(self.limits)
        before = self.counts.preemptions
        batch.decodes = sum(not request.in_prefill for request in self.running)
        for in_prefill in (False, True):
            for request in sorted(self.running, key=self._place):
                if request.in_prefill is in_prefill and request.spec.request_id in self.kv.tables:
                    batch.decodes -= not in_prefill
                    self._go_on(request, batch)
        if self.counts.preemptions == before:
            self._admit_into(batch)
        if self.has_work and not batch.segments:
            raise InternalError("scheduler has requests but no work for this step")
        return batch.segments

    def reject(self, request: Request, count: int) -> None:
        """See `Scheduler.reject`."""
        super().reject(request, count)
        self.kv.truncate(request.spec.request_id, request.num_computed)

    def commit(self, segments: Sequence[Segment]) -> None:
        """See `Scheduler.commit`. Blocks that are full now may be reused."""
        for segment in segments if self.options.reuse else ():
            request = segment.request
            self.kv.extend(request.spec.request_id, request.all_tokens())
            self.kv.commit(request.spec.request_id, request.num_computed)

    def take_transfers(self) -> list[Transfer]:
        """What must be moved between the tiers before this step's batch is computed."""
        return self.kv.take_transfers()

    def take_found(self) -> list[int]:
        """See `Scheduler.take_found`."""
        found, self._found = self._found, []
        return found

    def stats(self, rank: int, now_ps: int) -> StatsEvent:
        """See `Scheduler.stats`."""
        counts = self.counts
        return replace(
            super().stats(rank, now_ps),
            kv_used=self.kv.hbm.charged_held,
            preemptions=counts.preemptions,
            cache_queries=counts.queried,
            cache_hits=counts.hit,
        )

    def start_over(self, request_id: int) -> bool:
        """See `Scheduler.start_over`: everything is answered again, and must come out as it did."""
        found = [r for r in self.running if r.spec.request_id == request_id and not r.is_done]
        for request in found:
            self._withdraw(request)
            request.answered = 0
        return bool(found)

    def roll_back(self, segments: Sequence[Segment]) -> None:
        """See `Scheduler.roll_back`: blocks that were taken for it go back, too."""
        super().roll_back(segments)
        for segment in segments:
            self.kv.truncate(segment.request.spec.request_id, segment.start)

    def take_preempted(self) -> list[int]:
        """See `Scheduler.take_preempted`."""
        preempted, self._preempted = self._preempted, []
        return preempted

    def abandon(self, reason: str) -> list[Request]:
        """See `Scheduler.abandon`."""
        held = super().abandon(reason)
        self._order.clear()
        return held

    def abort(self, request_id: int) -> Request | None:
        """See `Scheduler.abort`."""
        request = super().abort(request_id)
        if request is not None:
            self.counts.aborted += 1
            self._order.pop(request_id, None)
            self._hashes.pop(request_id, None)
        return request

    def retire(self) -> list[Request]:
        """See `Scheduler.retire`."""
        ended = super().retire()
        for request in ended:
            self._order.pop(request.spec.request_id, None)
        return ended

    @property
    def kv_reserved(self) -> int:
        """Priced tokens of KV held, and what running and waiting requests may still come to hold."""
        ahead = sum(max(0, r.spec.priced_total - self._held(r)) for r in self.running)
        return self.kv.hbm.charged_held + ahead + sum(r.spec.priced_total for r in self.waiting)

    # ---- decisions --------------------------------------------------------------------------------

    def _place(self, request: Request) -> tuple[int, int]:
        return self._order[request.spec.request_id]

    def _held(self, request: Request) -> int:
        tokens = len(self.kv.tables[request.spec.request_id]) * self.limits.block_tokens
        return request.spec.priced_position(tokens)

    def _go_on(self, request: Request, batch: _Batch) -> None:
        """The next tokens of a running request, if the budget has room and blocks can be found."""
        segment = self._next_segment(request, batch)
        if segment is None:
            return
        request_id = request.spec.request_id
        self.kv.extend(request_id, request.all_tokens())
        while not self.kv.grow(request_id, segment.start + segment.count):
            if segment.decode and segment.count > 1:
                segment = decode_segment(request, 1)
                continue
            last = max(self.running, key=self._place)
            self._preempt(last, batch)
            if last is request:
                return
        batch.add(segment)

    def _next_segment(self, request: Request, batch: _Batch) -> Segment | None:
        room = batch.room(request.spec.scale)
        if not request.in_prefill:
            room = min(room, batch.budget - batch.decodes)
            return decode_segment(request, room) if batch.budget >= 1 and room >= 1 else None
        segment = prefill_segment(request, batch.budget)
        if segment is not None and segment.count > room:
            segment = make_segment(request, room) if room >= 1 else None
        whole = self.options.chunked or request.replayed  # what was given up may come back in parts
        if segment is None or not (whole or segment.samples):
            return None
        return segment

    def _preempt(self, request: Request, batch: _Batch) -> None:
        """Give up a request's blocks; it waits again, and its outputs are then fed like its prompt."""
        batch.drop(request)
        self.counts.preemptions += 1
        self._preempted.append(request.spec.request_id)
        request.preemptions += 1
        self._withdraw(request)
        request.answered = len(request.outputs)

    def _withdraw(self, request: Request) -> None:
        self.running.remove(request)
        self.kv.free(request.spec.request_id)
        self.counts.dropped += request.spec.priced_position(request.num_computed)
        self.outstanding -= request.outstanding
        request.num_computed, request.replayed, request.drafts = 0, len(request.outputs), []
        self._hashes.pop(request.spec.request_id, None)
        self.outstanding += request.outstanding
        self.waiting.appendleft(request)

    def _admit_into(self, batch: _Batch) -> None:
        while self.waiting and len(self.running) < self.limits.max_seqs and batch.budget >= 1:
            request = min(self.waiting, key=self._place)
            if not self._begin(request, batch):
                return

    def _begin(self, request: Request, batch: _Batch) -> bool:
        """Admit a request with its first chunk; False, and nothing is changed, where that cannot be."""
        spec, tokens = request.spec, request.all_tokens()
        match = self._match(request)
        request.num_computed = match.num_tokens
        segment = self._next_segment(request, batch)
        end = match.num_tokens if segment is None else segment.start + segment.count
        in_dram = match.num_in_dram
        if segment is None or not self.kv.open(spec.request_id, tokens, match, end, _spans(spec)):
            request.num_computed = 0
            return False
        self._count(request, match.num_tokens, in_dram)
        self._hashes.pop(spec.request_id, None)
        self.waiting.remove(request)
        self.running.append(request)
        batch.add(segment)
        return True

    def _match(self, request: Request) -> Match:
        """The cached prefix; the position before the first output asked for is always computed."""
        most = request.spec.prompt_tokens - 1 + request.answered
        if not self.options.reuse:
            return Match()
        request_id = request.spec.request_id
        if request_id not in self._hashes:  # it may wait for many steps
            known = request.all_tokens()[: most + self.kv.ahead]
            self._hashes[request_id] = self.kv.hashes(known, _spans(request.spec))
        return self.kv.match(self._hashes[request_id], most)

    def _count(self, request: Request, num_tokens: int, in_dram: int) -> None:
        spec, size = request.spec, self.limits.block_tokens
        found = spec.priced_position(num_tokens)
        self.outstanding -= found
        self.counts.cached += found
        if found:
            self._found.append(found)
        if request.preemptions or request.replayed:
            return
        request.cached = found
        if self.options.reuse:
            self.counts.queried += spec.priced_prompt
            self.counts.hit += found
            self.counts.loaded += found - spec.priced_position(num_tokens - in_dram * size)

    def _let_go(self, request: Request) -> None:
        self.kv.free(request.spec.request_id)
        self.outstanding -= request.outstanding


class _Batch:
    """What a step computes so far, and the budget that is left."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self._limits, self.budget, self.num_tokens = limits, limits.batched_tokens, 0
        self.decodes = 0
        """Running decodes that have not had their turn."""
        self.segments: list[Segment] = []

    def room(self, scale: int) -> int:
        """Functional tokens that the buffers of a step still have room for."""
        return self._limits.max_step_tokens(scale) - self.num_tokens

    def add(self, segment: Segment) -> None:
        self.segments.append(segment)
        self.budget -= segment.priced_count
        self.num_tokens += segment.count

    def drop(self, request: Request) -> None:
        """Take a request's segment back."""
        for segment in [s for s in self.segments if s.request is request]:
            self.segments.remove(segment)
            self.budget += segment.priced_count
            self.num_tokens -= segment.count


def _spans(spec: RequestSpec) -> Callable[[int, int], int]:
    """Priced tokens between two functional positions of a request."""
    return lambda first, end: spec.priced_position(end) - spec.priced_position(first)
