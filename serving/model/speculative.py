"""Speculative decoding of one request in one process: what served speculation must reproduce bit for bit.

A step feeds the last token and its drafts, takes tokens from the logits as long as drafts agree, and cuts the
cache back to what was agreed. A row's logits do not depend on the rows it is computed with, so tokens and
logits are those of plain decoding, in every bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from emulator.errors import UsageError
from serving.model.drafters import Drafter, OwnDrafter, SpeculationCounts, accepted
from serving.model.kv_cache import PagedKV
from serving.model.layers import Layer
from serving.model.model import Model
from serving.model.mtp import DraftState, draft_rows, run_layer
from serving.model.plan import StepPlan
from serving.model.reference import LogitHash, ReferenceRequest, ReferenceResult, forward, routed_experts
from serving.model.sampling import sample

__all__ = ["SpeculativeResult", "speculate"]

_PAGE, _CHUNK = 64, 1024


@dataclass(frozen=True)
class SpeculativeResult:
    """The answer, which is the plain one, and how it came about. tables: pages held after each step."""

    answer: ReferenceResult
    counts: SpeculationCounts
    tables: list[int]


@dataclass
class _Sequence:
    model: Model
    kv: PagedKV
    tokens: list[int]
    state: DraftState = field(default_factory=DraftState)

    def advance(self, fed: Sequence[int]) -> torch.Tensor:
        """Feed tokens; hidden rows float32 [n, hidden] of the main model."""
        plan = self.model.plan([self.kv.append("request", len(fed))], self.kv)
        return forward(self.model, torch.tensor(fed), plan)

    def draft(self, start: int, hidden: torch.Tensor) -> list[int]:
        """Run the MTP layers over the rows from `start`; their drafts."""
        drafts: list[int] = []
        new = self.model.normed(hidden)
        for depth, mtp in enumerate(self.model.mtp, start=1):
            tail = [*drafts, *([0] * len(self.model.mtp))]  # of a prompt's chunk: overwritten with the next
            rows = draft_rows(depth, start, new, self.tokens, tail, self.state)
            (out,) = run_layer(mtp, [("request", rows)], self.kv, self.model.plan, _whole_layer)
            drafts.append(int(mtp.logits(out[-1:])[0].argmax()))
            start, new = rows.start, out
        return drafts


def _whole_layer(layer: Layer, x: torch.Tensor, plan: StepPlan) -> torch.Tensor:
    x = layer.attention(x, plan)
    h = layer.norm(x)
    return x + (layer.joined(routed_experts(layer, h), h) if layer.is_moe else layer.dense(h))


def speculate(
    model: Model, request: ReferenceRequest, drafter: Drafter | None = None, request_id: int = 0
) -> SpeculativeResult:
    """Answer a request with the model's MTP layers drafting.

    Raises:
        UsageError: a model loaded without MTP layers, or a request beyond the context.
    """
    if not model.mtp:
        raise UsageError("speculative decoding needs a model loaded with MTP layers")
    depth, drafter = len(model.mtp), drafter or OwnDrafter()
    length = len(request.prompt) + request.max_tokens + depth
    if not request.prompt or request.max_tokens < 1 or length > model.config.max_position_embeddings:
        raise UsageError(
            f"a request of {length} tokens, drafts included, does not fit the context, or is empty"
        )
    kv = PagedKV(model.config, -(-length // _PAGE), _PAGE)
    one = _Sequence(model, kv, [int(t) for t in request.prompt])
    digest, counts = LogitHash(), SpeculationCounts()
    outputs: list[int] = []
    drafts: list[int] = []
    tables: list[int] = []
    hidden, start = _prefill(one)
    while True:
        first = len(one.tokens) - len(outputs)
        sampled: list[int] = []
        logits = model.logits(hidden)
        for row in logits:
            digest.update(row)
            position = len(outputs) + len(sampled)
            token = sample(row, request.params, request.seed, request.choice, position)
            sampled.append(token)
            ends = position + 1 == request.max_tokens or token == request.stop_token
            if ends or len(sampled) > len(drafts) or drafts[len(sampled) - 1] != token:
                break
        taken = min(accepted(drafts, sampled), len(sampled))
        if start >= first:
            counts.note(len(drafts), taken, len(sampled))
        outputs += sampled
        one.tokens += sampled
        kv.truncate("request", start + len(sampled))
        tables.append(kv.num_pages - kv.num_free_pages)
        if len(outputs) == request.max_tokens or outputs[-1] == request.stop_token:
            return SpeculativeResult(ReferenceResult(tuple(outputs), digest.hexdigest()), counts, tables)
        own = one.draft(start, hidden[: len(sampled)])
        left = request.max_tokens - len(outputs) - 1
        drafts = drafter.drafts(request_id, len(outputs), own)[: max(0, left)]
        start = kv.length("request")
        hidden = one.advance([one.tokens[-1], *drafts])


def _prefill(one: _Sequence) -> tuple[torch.Tensor, int]:
    """All of the prompt; the last row of the main model and its position. MTP rows of the others are made."""
    prompt, last = one.tokens, torch.empty(0)
    for start in range(0, len(prompt), _CHUNK):
        chunk = prompt[start : start + _CHUNK]
        last = one.advance(chunk)
        known = last if start + len(chunk) < len(prompt) else last[:-1]
        if len(known):
            one.draft(start, known)
    return last[-1:], len(prompt) - 1
