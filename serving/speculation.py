"""Speculative decoding in the served engine: what a rank does around a step.

    schedule     a decode feeds its last output and the drafts for what follows it
    step         the main model, all rows of it; logits of every fed position
    takes        a row counts as long as the draft before it was what the model said
    settle       rejected rows leave the cache; the MTP layers run over the rows that stay, through the same
                 experts, on all ranks
    keep         the step has ended: it is counted, and its drafts are there for the next one

Drafts never go beyond the last output asked for, so a request's KV is what it is without speculation. A death
during `settle` takes the whole step back; until `keep` nothing of it stays here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from emulator.errors import InternalError
from emulator.faults import Faults, NoFaults
from serving.charges import LayerPlan, StepCharge
from serving.forward import Forward
from serving.job import ReplayJob, read_reference
from serving.model.drafters import ConfiguredDrafter, Drafter, OwnDrafter, SpeculationCounts
from serving.model.kv_cache import PagedKV
from serving.model.layers import Layer
from serving.model.model import Model
from serving.model.mtp import DraftRows, DraftState, draft_rows, run_layer
from serving.model.plan import StepPlan
from serving.request import Request
from serving.scheduler import Scheduler, Segment

__all__ = ["Speculation", "drafter_of"]


@dataclass(frozen=True)
class _Rows:
    """Rows of one draft layer as `Forward` wants them: see `serving.forward.RowsOf`."""

    requests: list[int]
    owners: NDArray[np.int64]
    positions: NDArray[np.int64]
    shares: NDArray[np.int64]


@dataclass(frozen=True)
class _State:
    """What is kept of a request between two steps, which goes on at position `end`."""

    end: int
    rows: DraftState


@dataclass
class _Step:
    """What a step comes to, until it has ended."""

    first: dict[int, int] = field(default_factory=dict)
    """Outputs each request had before."""
    counts: SpeculationCounts = field(default_factory=SpeculationCounts)
    rejected: int = 0
    states: dict[int, _State] = field(default_factory=dict)
    drafts: list[tuple[Request, list[int]]] = field(default_factory=list)


class Speculation:
    """One rank's drafts.

    Attributes:
        counts: verification steps of this rank. rejected: rows computed in vain.
        faults: who is told that a request's drafts are about to be verified.
    """

    def __init__(
        self,
        forward: Forward,
        model: Model,
        kv: PagedKV,
        scheduler: Scheduler,
        drafter: Drafter,
        record: dict[str, Any],
    ) -> None:
        if scheduler.limits.drafts != len(model.mtp):
            raise InternalError(
                f"{len(model.mtp)} draft layers, and a scheduler for {scheduler.limits.drafts}"
            )
        self._record = record
        self._forward, self._model, self._kv = forward, model, kv
        self._scheduler, self._drafter = scheduler, drafter
        self._states: dict[int, _State] = {}
        self._step = _Step()
        self.counts = SpeculationCounts()
        self.rejected = 0
        self.faults: Faults = NoFaults()
        record.update(self.as_dict())

    def begin(self, segments: Sequence[Segment]) -> None:
        """Before rows are looked at: remember how many outputs each request has."""
        self._step = _Step({s.request.spec.request_id: len(s.request.outputs) for s in segments})
        if self.faults.active:
            for segment in segments:
                if segment.decode and segment.count > 1:
                    self.faults.point("draft", request=segment.request.spec.request_id)

    def takes(self, request: Request, position: int) -> bool:
        """Whether the row that answers output `position` counts: one that is there already does."""
        first = self._step.first[request.spec.request_id]
        if position < first:
            return True
        if request.is_done or position != len(request.outputs):
            return False
        before = position - 1 - first
        return before < 0 or request.drafts[before] == request.outputs[position - 1]

    def settle(self, segments: Sequence[Segment], left_out: Collection[int] = ()) -> None:
        """After sampling: reject, and draft for those that go on; those `left_out` are computed no more."""
        rows = torch.split(self._forward.last_rows, [segment.count for segment in segments])
        kept = []
        for segment, hidden in zip(segments, rows, strict=True):
            if segment.request.spec.request_id not in left_out:
                kept.append((segment, hidden[: self._settled(segment)]))
        self._forward.agree(kept)
        self.draft(kept)

    def keep(self) -> None:
        """The step has ended, and its outputs are given."""
        step, self._step = self._step, _Step()
        self.counts.add(step.counts)
        self.rejected += step.rejected
        self._states |= step.states
        for request, drafts in step.drafts:
            request.drafts = drafts
            if request.is_done:
                self.forget(request.spec.request_id)
        self._record.update(self.as_dict())

    def forget(self, request_id: int) -> None:
        """A request's KV is gone."""
        self._states.pop(request_id, None)

    def _settled(self, segment: Segment) -> int:
        """Rows of a segment that stay."""
        request = segment.request
        if not segment.decode:
            return segment.count
        new = len(request.outputs) - self._step.first[request.spec.request_id]
        self._step.counts.note(segment.count - 1, new - 1, new)
        if wrong := segment.count - new:
            self._scheduler.reject(request, wrong)
            self._kv.truncate(request.spec.request_id, request.num_computed)
            self._step.rejected += wrong
        return new

    def draft(self, kept: Sequence[tuple[Segment, torch.Tensor]]) -> None:
        """The draft layers over the rows that stay of each segment, on all ranks."""
        if not kept:
            self._forward.idle_drafts()
            return
        news = list(torch.split(self._model.normed(torch.cat([rows for _, rows in kept])), _lengths(kept)))
        starts = [segment.start for segment, _ in kept]
        known = [segment.request.all_tokens().tolist() for segment, _ in kept]
        states = [self._state(segment) for segment, _ in kept]
        drafts: list[list[int]] = [[] for _ in kept]
        for depth in range(1, len(self._model.mtp) + 1):
            parts = []
            for i, (segment, _) in enumerate(kept):
                tail = [*drafts[i], *([0] * depth)]
                rows = draft_rows(depth, starts[i], news[i], known[i], tail, states[i])
                parts.append((segment.request.spec.request_id, rows))
            news = self._layer(depth, [segment for segment, _ in kept], parts)
            starts = [rows.start for _, rows in parts]
            logits = self._model.mtp[depth - 1].logits(torch.stack([rows[-1] for rows in news]))
            for mine, token in zip(drafts, logits.argmax(-1).tolist(), strict=True):
                mine.append(token)
        for (segment, stays), own, state in zip(kept, drafts, states, strict=True):
            request = segment.request
            self._step.states[request.spec.request_id] = _State(segment.start + len(stays), state)
            self._step.drafts.append((request, self._chosen(request, own)))

    def _state(self, segment: Segment) -> DraftState:
        """What was kept of the rows right before a segment's; nothing where it begins anew, on a prefix whose
        rows are all there."""
        state = self._states.get(segment.request.spec.request_id)
        if state is None or state.end != segment.start:
            return DraftState()
        return DraftState(dict(state.rows.kept))

    def _chosen(self, request: Request, own: list[int]) -> list[int]:
        position = len(request.outputs)
        left = request.spec.max_output - position - 1
        if request.is_done or request.in_prefill or not position:
            return []
        return self._drafter.drafts(request.spec.request_id, position, own)[: max(0, left)]

    def _layer(
        self, depth: int, segments: Sequence[Segment], parts: Sequence[tuple[int, DraftRows]]
    ) -> list[torch.Tensor]:
        """One draft layer over all sequences: charged, and its experts wherever they are."""
        batch = _rows_of(segments, parts)
        charge = self._price(segments, batch)
        plan = LayerPlan(self._model.config.num_hidden_layers + depth - 1, True, 1)
        projection = self._forward.priced.mtp_projection_ps(charge.rows)
        self._forward.layer_begins(charge.rows, 1)
        self._forward.charge("other", projection)
        self._forward.charge("attention", charge.attention_ps)

        def body(layer: Layer, x: torch.Tensor, steps: StepPlan) -> torch.Tensor:
            return self._forward.moe(layer, plan, layer.attention(x, steps), batch, charge)

        out = run_layer(self._model.mtp[depth - 1], parts, self._kv, self._model.plan, body)
        self._forward.charge("other", charge.head_ps)
        return out

    def _price(self, segments: Sequence[Segment], batch: _Rows) -> StepCharge:
        priced, rows = self._forward.priced, int(batch.shares.sum())
        decode = np.array([s.priced_start + s.count for s in segments if s.decode], dtype=np.int64)
        prefill = [(s.priced_start, s.priced_count) for s in segments if not s.decode]
        queries = max((s.count for s in segments if s.decode), default=1)
        attention_ps = sum(priced.layer_kernels(decode, prefill, queries).values())
        shared_ps = self._forward.shared_ps(rows)
        head_ps = priced.head_ps(len(segments))
        routed_ps = attention_ps + self._forward.router_ps(rows)
        return StepCharge(rows, routed_ps, attention_ps, 0, shared_ps, head_ps)

    def as_dict(self) -> dict[str, Any]:
        """What this rank counted."""
        counts = self.counts
        return {
            "steps": counts.steps, "tokens": counts.tokens, "tried": counts.tried, "taken": counts.taken,
            "rejected": self.rejected,
        }  # fmt: skip


def drafter_of(job: ReplayJob, directory: str, vocab: int) -> Drafter:
    """Who drafts in a job: the layers, or draws against what one process has answered."""
    if not job.mtp_acceptance:
        return OwnDrafter()
    recorded = {int(answer["id"]): answer["tokens"] for answer in read_reference(directory)}
    return ConfiguredDrafter(job.mtp_acceptance, recorded, vocab, job.seed)


def _lengths(kept: Sequence[tuple[Segment, torch.Tensor]]) -> list[int]:
    return [len(rows) for _, rows in kept]


def _rows_of(segments: Sequence[Segment], parts: Sequence[tuple[int, DraftRows]]) -> _Rows:
    positions: list[NDArray[np.int64]] = []
    shares: list[int] = []
    for segment, (_, rows) in zip(segments, parts, strict=True):
        spec, end = segment.request.spec, rows.start + len(rows.tokens)
        positions.append(np.arange(rows.start, end))
        edges = [spec.priced_position(i) for i in range(rows.start, end + 1)]
        shares.extend(after - before for before, after in zip(edges, edges[1:], strict=False))
    requests = [request_id for request_id, _ in parts]
    owners = np.repeat(np.array(requests, dtype=np.int64), [len(rows.tokens) for _, rows in parts])
    return _Rows(requests, owners, np.concatenate(positions), np.array(shares))
