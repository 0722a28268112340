"""Speculative decoding in the served engine: what a rank does around a step.

    schedule     a decode feeds its last output and the drafts for what follows it
    step         the main model, all rows of it; logits of every fed position
    takes        a row counts as long as the draft before it was what the model said
    settle       rejected rows leave the cache, and are counted
    draft        the MTP layers over the rows that stay, through the same experts, on all ranks

Drafts never go beyond the last output asked for, so a request's KV is what it is without speculation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

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
from serving.scheduler import Scheduler, Segment, make_segment, prefill_segment

__all__ = ["Speculation", "SpeculativeScheduler", "drafter_of"]


class SpeculativeScheduler(Scheduler):
    """`Scheduler`, whose decodes bring their drafts."""

    def schedule(self) -> list[Segment]:
        """See `Scheduler.schedule`."""
        self._admit()
        decodes = [make_segment(r, 1 + len(r.drafts)) for r in self.running if not r.in_prefill]
        segments, budget = [], self.limits.batched_tokens
        for segment in decodes:
            if segment.count <= budget:
                segments.append(segment)
                budget -= segment.count
        for request in self.running:
            if request.in_prefill and (chunk := prefill_segment(request, budget)) is not None:
                segments.append(chunk)
                budget -= chunk.priced_count
        return segments

    def reject(self, request: Request, count: int) -> None:
        """The last `count` tokens of a request were wrong: they are not computed."""
        request.num_computed -= count
        self.outstanding += count


@dataclass(frozen=True)
class _Rows:
    """Rows of one draft layer as `Forward` wants them: see `serving.forward._Batch`."""

    requests: list[int]
    owners: NDArray[np.int64]
    positions: NDArray[np.int64]
    shares: NDArray[np.int64]


class Speculation:
    """One rank's drafts.

    Attributes:
        counts: verification steps of this rank; rejected: rows computed in vain.
    """

    def __init__(
        self,
        forward: Forward,
        model: Model,
        kv: PagedKV,
        scheduler: SpeculativeScheduler,
        drafter: Drafter,
        record: dict[str, Any],
    ) -> None:
        self._record = record
        self._forward, self._model, self._kv = forward, model, kv
        self._scheduler, self._drafter = scheduler, drafter
        self._states: dict[int, DraftState] = {}
        self._first: dict[int, int] = {}
        self.counts = SpeculationCounts()
        self.rejected = 0

    def begin(self, segments: Sequence[Segment]) -> None:
        """Before rows are looked at: remember how many outputs each request has."""
        self._first = {s.request.spec.request_id: len(s.request.outputs) for s in segments}

    def takes(self, request: Request, position: int) -> bool:
        """Whether the row that answers output `position` counts."""
        if request.is_done or position != len(request.outputs):
            return False
        before = position - 1 - self._first[request.spec.request_id]
        return before < 0 or request.drafts[before] == request.outputs[position - 1]

    def settle(self, segments: Sequence[Segment]) -> None:
        """After sampling: reject, count, and draft for those that go on."""
        rows = torch.split(self._forward.last_rows, [segment.count for segment in segments])
        kept = []
        for segment, hidden in zip(segments, rows, strict=True):
            stays = self._settled(segment)
            kept.append((segment, hidden[:stays]))
        self._draft(kept)
        for segment in segments:
            if segment.request.is_done:
                self._states.pop(segment.request.spec.request_id, None)
        self._record.update(self.as_dict())

    def _settled(self, segment: Segment) -> int:
        """Rows of a segment that stay."""
        request = segment.request
        if not segment.decode:
            return segment.count
        new = len(request.outputs) - self._first[request.spec.request_id]
        self.counts.note(len(request.drafts), new - 1, new)
        if wrong := segment.count - new:
            self._scheduler.reject(request, wrong)
            self._kv.truncate(request.spec.request_id, request.num_computed)
            self.rejected += wrong
        return new

    def _draft(self, kept: Sequence[tuple[Segment, torch.Tensor]]) -> None:
        news = list(torch.split(self._model.normed(torch.cat([rows for _, rows in kept])), _lengths(kept)))
        starts = [segment.start for segment, _ in kept]
        known = [segment.request.all_tokens().tolist() for segment, _ in kept]
        drafts: list[list[int]] = [[] for _ in kept]
        for depth in range(1, len(self._model.mtp) + 1):
            parts = []
            for i, (segment, _) in enumerate(kept):
                request_id = segment.request.spec.request_id
                state = self._states.setdefault(request_id, DraftState())
                tail = [*drafts[i], *([0] * depth)]
                parts.append((request_id, draft_rows(depth, starts[i], news[i], known[i], tail, state)))
            news = self._layer(depth, [segment for segment, _ in kept], parts)
            starts = [rows.start for _, rows in parts]
            logits = self._model.mtp[depth - 1].logits(torch.stack([rows[-1] for rows in news]))
            for mine, token in zip(drafts, logits.argmax(-1).tolist(), strict=True):
                mine.append(token)
        for (segment, _), own in zip(kept, drafts, strict=True):
            self._give(segment.request, own)

    def _give(self, request: Request, own: list[int]) -> None:
        position = len(request.outputs)
        left = request.spec.max_output - position - 1
        drafts = self._drafter.drafts(request.spec.request_id, position, own) if position else []
        request.drafts = [] if request.is_done or request.in_prefill else drafts[: max(0, left)]

    def _layer(
        self, depth: int, segments: Sequence[Segment], parts: Sequence[tuple[int, DraftRows]]
    ) -> list[torch.Tensor]:
        """One draft layer over all sequences: charged, and its experts wherever they are."""
        batch = _rows_of(segments, parts)
        charge = self._price(segments, batch)
        plan = LayerPlan(self._model.config.num_hidden_layers + depth - 1, True, 1)
        projection = self._forward.priced.mtp_projection_ps(charge.rows)
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
        return StepCharge(rows, attention_ps + priced.router_ps(rows), attention_ps, 0, shared_ps, head_ps)

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
