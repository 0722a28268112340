"""The next token as a pure function of (logits, parameters, request seed, choice, position) and the tokens
before it; no state.

Hence a request samples the same tokens whichever engine, rank or batch computes it, and after any
recomputation. The uniform number comes from a counter-based generator (Philox4x64-10, Salmon et al. 2011)
keyed by (request seed, choice) with the position as counter. Order of the steps as in vLLM's sampler: bias,
min_tokens, penalties, temperature, min_p, top_k, top_p (source: vllm `v1/sample/sampler.py`).
Log-probabilities are those of the raw logits, as vLLM's by default.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from serving.model.sampling_params import GREEDY, SamplingParams

if TYPE_CHECKING:
    import torch

__all__ = [
    "GREEDY",
    "Chosen",
    "SamplingParams",
    "TokenLogprobs",
    "choose",
    "greedy",
    "sample",
    "uniform",
]

_WORD = 1 << 64
Values: TypeAlias = npt.NDArray[np.float64]
Tokens: TypeAlias = Sequence[int] | npt.NDArray[Any]


TokenLogprobs: TypeAlias = tuple[int, float, tuple[tuple[int, float], ...]]
"""(chosen token, its log-probability, the likeliest tokens and theirs): natural, under the raw logits."""


@dataclass(frozen=True)
class Chosen:
    """A chosen token, with log-probabilities where the parameters ask for them."""

    token: int
    logprobs: TokenLogprobs | None = None


def uniform(request_seed: int, choice: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits, fixed by its arguments (each taken modulo 2^64)."""
    generator = np.random.Philox(
        key=np.array([request_seed % _WORD, choice % _WORD], dtype=np.uint64),
        counter=np.array([position % _WORD, 0, 0, 0], dtype=np.uint64),
    )
    return float((int(generator.random_raw()) >> 11) * 2.0**-53)


def greedy(logits: torch.Tensor) -> list[int]:
    """The likeliest token of each row of logits float32 [n, vocabulary]; of equals, the lowest id."""
    return [int(token) for token in logits.numpy().argmax(axis=-1)]


def _kept(values: Values, params: SamplingParams) -> Values:
    """Probabilities of the kept tokens, likeliest first, given all scaled logits in that order."""
    if params.min_p:
        values = values[np.exp(values - values[0]) >= params.min_p]
    if params.top_k:
        values = values[: params.top_k]
    probabilities: Values = np.exp(values - values[0])
    probabilities /= probabilities.sum()
    if params.top_p < 1:
        count = int(np.searchsorted(np.cumsum(probabilities), params.top_p)) + 1
        probabilities = probabilities[:count]
    return probabilities


def adjusted(logits: Values, params: SamplingParams, prompt: Tokens, outputs: Tokens) -> Values:
    """Raw logits float64 [vocabulary] after bias, min_tokens and penalties, as a new array.

    Repetition counts prompt and outputs, frequency and presence the outputs alone (source: vllm
    `model_executor/layers/utils.py`, `apply_penalties`). Ids outside the vocabulary have no effect.
    """
    values = logits.copy()
    for token, bias in params.logit_bias:
        if token < len(values):
            values[token] += bias
    if len(outputs) < params.min_tokens:
        ends = [t for t in (*params.eos_token_ids, *params.stop_token_ids) if 0 <= t < len(values)]
        values[ends] = -np.inf
    counts = np.bincount(np.asarray(outputs, dtype=np.int64), minlength=len(values))[: len(values)]
    if params.repetition_penalty != 1:
        seen = counts > 0
        seen[np.asarray(prompt, dtype=np.int64)] = True
        factor = params.repetition_penalty
        values[seen] = np.where(values[seen] > 0, values[seen] / factor, values[seen] * factor)
    penalties: Values = params.frequency_penalty * counts + params.presence_penalty * (counts > 0)
    return values - penalties


def logprobs_of(logits: Values, token: int, num_top: int) -> TokenLogprobs:
    """Log-probabilities under raw logits float64 [vocabulary]; num_top -1 gives the whole vocabulary."""
    values = logits - logits.max()
    values -= np.log(np.exp(values).sum())
    count = len(values) if num_top < 0 else min(num_top, len(values))
    order = np.argsort(-values, kind="stable")[:count]
    return token, float(values[token]), tuple((int(i), float(values[i])) for i in order)


def choose(
    logits: torch.Tensor,
    params: SamplingParams,
    request_seed: int,
    choice: int,
    position: int,
    prompt: Tokens,
    outputs: Sequence[int],
) -> Chosen:
    """Choose the token at output position `position` (from 0) of choice `choice` of a request.

    Args:
        logits: float32 [vocabulary].
        request_seed: any integer; the same seed gives the same tokens. `params.seed` goes before it.
        choice: which of a request's parallel answers.
        prompt: its token ids; outputs: those given, of which the first `position` count.
    """
    raw = logits.numpy().astype(np.float64)
    values = adjusted(raw, params, prompt, outputs[:position]) if params.changes_logits(position) else raw
    seed = request_seed if params.seed is None else params.seed
    token = _draw(values, params, seed, choice, position)
    return Chosen(token, None if params.logprobs is None else logprobs_of(raw, token, params.logprobs))


def _draw(values: Values, params: SamplingParams, seed: int, choice: int, position: int) -> int:
    if params.temperature == 0:
        return int(values.argmax())
    order = np.argsort(-values, kind="stable")
    probabilities = _kept(values[order] / params.temperature, params)
    target = uniform(seed, choice, position) * probabilities.sum()
    index = int(np.searchsorted(np.cumsum(probabilities), target, side="right"))
    return int(order[min(index, len(probabilities) - 1)])


def sample(
    logits: torch.Tensor, params: SamplingParams, request_seed: int, choice: int, position: int
) -> int:
    """Choose the token at output position `position` (from 0) without regard to the tokens before it: for
    parameters that do not look at them.

    Args:
        logits: float32 [vocabulary].
        params: temperature, then top-k, then top-p.
        request_seed: any integer; the same seed gives the same tokens.
        choice: which of a request's parallel answers.
        position: output position, so recomputation draws the same number.
    """
    if params.temperature == 0:
        return greedy(logits.unsqueeze(0))[0]
    return _draw(logits.numpy().astype(np.float64), params, request_seed, choice, position)
