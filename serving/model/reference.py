"""What every serving layout must reproduce bit for bit: one process, all experts, one request at a time.

It knows nothing of ranks, placement, chunks or batches, and contains no communication.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from emulator.errors import UsageError
from serving.model.kv_cache import PagedKV
from serving.model.layers import Layer, combine_in_order
from serving.model.model import Model, load_model
from serving.model.plan import StepPlan
from serving.model.sampling import GREEDY, SamplingParams, choose
from serving.model.stopping import TokenBytes, finish_of

__all__ = ["LogitHash", "ReferenceRequest", "ReferenceResult", "forward", "generate", "routed_experts"]

_PAGE_SIZE = 64
_CHUNK = 1024  # rows computed at a time; any number gives the same bits


class LogitHash:
    """sha256 over the float32 logits of a request's generated positions, in order."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def update(self, logits: torch.Tensor) -> None:
        """Add the logits from which one token was chosen, float32 [vocabulary], little-endian bytes."""
        self._hash.update(logits.numpy().astype("<f4", copy=False).tobytes())

    def hexdigest(self) -> str:
        """The hash so far, 64 hexadecimal digits."""
        return self._hash.hexdigest()


@dataclass(frozen=True)
class ReferenceRequest:
    """A prompt of token ids, the exact number of tokens to generate, and how to choose them.

    `stop_token`, if given, ends the answer early, and so does what `params` say (`stopping.finish_of`, with
    `table` for stop strings); what ends an answer is part of it.
    """

    prompt: Sequence[int]
    max_tokens: int
    params: SamplingParams = GREEDY
    seed: int = 0
    choice: int = 0
    stop_token: int | None = None
    table: TokenBytes | None = None


@dataclass(frozen=True)
class ReferenceResult:
    """The generated tokens and the `LogitHash` over the logits they were chosen from."""

    tokens: tuple[int, ...]
    logits_sha256: str


def routed_experts(layer: Layer, h: torch.Tensor) -> torch.Tensor:
    """The routed part of a MoE layer for normed rows [n, hidden]: route, experts, ordered sum."""
    return chosen_experts(layer, h, *layer.route(h))


def chosen_experts(layer: Layer, h: torch.Tensor, idx: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The same with experts idx int64 [n, k], ascending in a row, and weights float32 [n, k]."""
    top_k = idx.shape[1]
    flat = idx.flatten().numpy()
    order = np.argsort(flat, kind="stable")
    experts, starts = np.unique(flat[order], return_index=True)
    places = torch.from_numpy(order)
    rows = h.index_select(0, places // top_k)
    bounds = [*starts.tolist(), len(order)]
    parts = [layer.expert(int(e), rows[bounds[i] : bounds[i + 1]]) for i, e in enumerate(experts)]
    out = torch.empty_like(rows).index_copy_(0, places, torch.cat(parts))
    return combine_in_order(out.view(h.shape[0], top_k, -1), weights)


def forward(model: Model, tokens: torch.Tensor, plan: StepPlan) -> torch.Tensor:
    """All layers over the rows of a plan: token ids int64 [n] to hidden rows float32 [n, hidden]."""
    x = model.embed(tokens)
    for layer in model.layers:
        x = layer.attention(x, plan)
        h = layer.norm(x)
        x = x + (layer.joined(routed_experts(layer, h), h) if layer.is_moe else layer.dense(h))
    return x


def _next_logits(model: Model, kv: PagedKV, tokens: Sequence[int]) -> torch.Tensor:
    """Append tokens to the one sequence; the logits after the last, float32 [vocabulary]."""
    for start in range(0, len(tokens), _CHUNK):
        chunk = torch.tensor(tokens[start : start + _CHUNK])
        plan = model.plan([kv.append("request", len(chunk))], kv)
        x = forward(model, chunk, plan)
    return model.logits(x[-1:])[0]


def _answer(model: Model, request: ReferenceRequest) -> ReferenceResult:
    if not request.prompt or request.max_tokens < 1:
        raise UsageError("a request needs at least one prompt token and one token to generate")
    length = len(request.prompt) + request.max_tokens - 1
    if length > model.config.max_position_embeddings:
        context = model.config.max_position_embeddings
        raise UsageError(f"a request of {length + 1} tokens in all does not fit; the context is {context}")
    kv = PagedKV(model.config, -(-length // _PAGE_SIZE), _PAGE_SIZE)
    digest = LogitHash()
    tokens: list[int] = []
    prompt = np.asarray(request.prompt, np.int64)
    logits = _next_logits(model, kv, request.prompt)
    while True:
        digest.update(logits)
        place = (request.seed, request.choice, len(tokens), prompt, tokens)
        tokens.append(choose(logits, request.params, *place).token)
        ended = finish_of(request.params, tokens, request.max_tokens, request.table) is not None
        if ended or tokens[-1] == request.stop_token:
            return ReferenceResult(tuple(tokens), digest.hexdigest())
        logits = _next_logits(model, kv, tokens[-1:])


def generate(model: Model | str | Path, requests: Iterable[ReferenceRequest]) -> Iterator[ReferenceResult]:
    """Answer requests one after the other.

    Args:
        model: a loaded model with all experts, or a checkpoint directory.
        requests: what to answer.

    Yields:
        One result per request, in order.

    Raises:
        UsageError: an empty prompt, no token to generate, or a request beyond the model's context.
    """
    loaded = model if isinstance(model, Model) else load_model(model)
    for request in requests:
        yield _answer(loaded, request)
