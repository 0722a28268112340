"""The next token as a pure function of (logits, parameters, request seed, choice, position); no state.

Hence a request samples the same tokens whichever engine, rank or batch computes it, and after any
recomputation. The uniform number comes from a counter-based generator (Philox4x64-10, Salmon et al. 2011)
keyed by (request seed, choice) with the position as counter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from emulator.errors import UsageError

if TYPE_CHECKING:
    import torch

__all__ = ["SamplingParams", "greedy", "sample", "uniform"]

_WORD = 1 << 64


@dataclass(frozen=True)
class SamplingParams:
    """How to choose a token.

    Attributes:
        temperature: 0 is greedy (then the others have no effect).
        top_k: keep the k likeliest tokens; 0 keeps all.
        top_p: of those, keep the likeliest whose probabilities first reach this sum; 1 keeps all.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UsageError(f"temperature must be finite and at least 0, got {self.temperature}")
        if self.top_k < 0:
            raise UsageError(f"top_k must be at least 0 (0 keeps all), got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p must be in (0, 1], got {self.top_p}")


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


def _kept(values: npt.NDArray[np.float64], params: SamplingParams) -> npt.NDArray[np.float64]:
    """Probabilities of the kept tokens, likeliest first, given all scaled logits in that order."""
    if params.top_k:
        values = values[: params.top_k]
    probabilities: npt.NDArray[np.float64] = np.exp(values - values[0])
    probabilities /= probabilities.sum()
    if params.top_p < 1:
        count = int(np.searchsorted(np.cumsum(probabilities), params.top_p)) + 1
        probabilities = probabilities[:count]
    return probabilities


def sample(
    logits: torch.Tensor, params: SamplingParams, request_seed: int, choice: int, position: int
) -> int:
    """Choose the token at output position `position` (from 0) of choice `choice` of a request.

    Args:
        logits: float32 [vocabulary].
        params: temperature, then top-k, then top-p.
        request_seed: any integer; the same seed gives the same tokens.
        choice: which of a request's parallel answers.
        position: output position, so recomputation draws the same number.
    """
    if params.temperature == 0:
        return greedy(logits.unsqueeze(0))[0]
    values = logits.numpy().astype(np.float64)
    order = np.argsort(-values, kind="stable")
    probabilities = _kept(values[order] / params.temperature, params)
    target = uniform(request_seed, choice, position) * probabilities.sum()
    index = int(np.searchsorted(np.cumsum(probabilities), target, side="right"))
    return int(order[min(index, len(probabilities) - 1)])
