"""From trace lines to functional prompts: content follows from (seed, hash id) alone.

A block of 512 priced tokens becomes 512/S functional tokens that depend on nothing but the seed, the
block's hash id and the place inside the block: equal prefixes of a trace stay equal prefixes of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from emulator.errors import UsageError
from serving.request import RequestSpec
from serving.traces import BLOCK_TOKENS, PS_PER_MS, TraceRequest

_ANONYMOUS = 1 << 62
"""Block ids at and above this are made up for traces without hash ids; a trace's own stay below."""
_BLOCKS_PER_REQUEST = 1 << 24


@dataclass(frozen=True)
class WorkloadOptions:
    """How a trace is turned into work.

    token_scale: priced prompt tokens a functional one stands for; divides 512.
    time_scale: arrivals are divided by it (2 = twice the load).
    max_output: at most so many output tokens a request; None = as the trace says.
    sections: of the vocabulary; request i of K takes its prompt from section i * sections // K, so contents
        drift. (Equal blocks of a trace are then equal tokens within a section only.)
    vocab: functional vocabulary. seed: of contents and of every request's sampler.
    """

    vocab: int
    token_scale: int = 1
    time_scale: float = 1.0
    max_output: int | None = None
    seed: int = 0
    sections: int = 1

    def __post_init__(self) -> None:
        if self.token_scale < 1 or BLOCK_TOKENS % self.token_scale:
            choices = [1 << k for k in range(10)]
            nearest = min(choices, key=lambda c: abs(c - self.token_scale))
            raise UsageError(f"--token-scale {self.token_scale} must divide 512; the nearest is {nearest}")
        if not 0 < self.time_scale < float("inf"):
            raise UsageError(f"--time-scale {self.time_scale} must be above 0; 1 keeps the trace's arrivals")
        if self.max_output is not None and self.max_output < 1:
            raise UsageError(f"--max-output {self.max_output} must be at least 1")


def make_requests(trace: Sequence[TraceRequest], options: WorkloadOptions) -> list[RequestSpec]:
    """Turn trace lines into requests, in order of arrival; ids count from 0 in that order."""
    time_scale = Fraction(options.time_scale)
    specs = []
    for request_id, line in enumerate(trace):
        max_output = min(line.output_length, options.max_output or line.output_length)
        specs.append(
            RequestSpec(
                request_id=request_id,
                arrival_ps=int(line.arrival_ps / time_scale),
                prompt=_in_section(prompt_tokens(line, request_id, options), request_id, len(trace), options),
                priced_prompt=line.input_length,
                scale=options.token_scale,
                max_output=max_output,
                truncated=max_output < line.output_length,
                seed=int(_mix(np.array([options.seed, request_id], dtype=np.uint64), 1)[1] >> np.uint64(1)),
            )
        )
    return specs


def _in_section(
    tokens: NDArray[np.int64], request_id: int, requests: int, options: WorkloadOptions
) -> NDArray[np.int64]:
    if options.sections == 1:
        return tokens
    size = options.vocab // options.sections
    return tokens % size + request_id * options.sections // requests * size


def prompt_tokens(line: TraceRequest, request_id: int, options: WorkloadOptions) -> NDArray[np.int64]:
    """Functional prompt of one trace line: int64[ceil(input_length / S)] in [0, vocab)."""
    num_blocks = -(-line.input_length // BLOCK_TOKENS)
    ids = line.hash_ids
    if ids is None:
        first = _ANONYMOUS + request_id * _BLOCKS_PER_REQUEST
        ids = tuple(range(first, first + num_blocks))
    per_block = BLOCK_TOKENS // options.token_scale
    num_tokens = -(-line.input_length // options.token_scale)
    blocks = np.array([i % (1 << 64) for i in ids], dtype=np.uint64)
    # A token is the hash of (seed, block id, place): no generator state, so blocks are independent.
    keys = _mix(blocks, options.seed)
    places = np.arange(per_block, dtype=np.uint64)
    tokens = _mix(keys[:, None] + places[None, :], 2) % np.uint64(options.vocab)
    return tokens.reshape(-1)[:num_tokens].astype(np.int64)


def _mix(values: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """SplitMix64 finaliser of each value, keyed by `seed` (source: Steele et al., OOPSLA 2014)."""
    key = (seed % (1 << 64)) * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019
    z = (values + np.uint64(0x9E3779B97F4A7C15)) ^ np.uint64(key % (1 << 64))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    return z ^ (z >> np.uint64(31))


MOST_REQUESTS = 1_000_000
"""That a built-in workload is made of; more come from a trace."""


def builtin_trace(num_requests: int, seed: int) -> list[TraceRequest]:
    """A small conversation-like workload from a seed: mean prompt about 1,500 tokens, 40 requests a second.

    Half of the requests share a system prompt of two blocks, so prefixes repeat.
    """
    if num_requests < 1:
        raise UsageError(f"number of requests must be at least 1, not {num_requests}")
    if num_requests > MOST_REQUESTS:
        raise UsageError(f"number of requests must be at most {MOST_REQUESTS:,}, not {num_requests}")
    rng = np.random.default_rng([seed, 0x5350])
    gaps_ms = rng.integers(0, 51, num_requests)
    gaps_ms[0] = 0
    arrivals = np.cumsum(gaps_ms)
    inputs = rng.integers(1, 9, num_requests) * rng.integers(64, 611, num_requests)
    outputs = rng.integers(4, 33, num_requests)
    shares_prefix = rng.integers(0, 2, num_requests)
    trace = []
    for i in range(num_requests):
        num_blocks = -(-int(inputs[i]) // BLOCK_TOKENS)
        own = [1000 + i * 64 + b for b in range(num_blocks)]
        hash_ids = ([0, 1] if shares_prefix[i] else own[:2])[:num_blocks] + own[2:]
        trace.append(
            TraceRequest(int(arrivals[i]) * PS_PER_MS, int(inputs[i]), int(outputs[i]), tuple(hash_ids))
        )
    return trace
