"""When the requests of a benchmark arrive: vLLM's request rate and burstiness, from a seed, in picoseconds.

Source: vllm `benchmarks/serve.py`, `get_request`: gaps of a gamma distribution (burstiness 1: Poisson),
scaled so that the last request comes at exactly count / rate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from emulator.errors import UsageError
from serving.traces import PS_PER_S


def arrivals_ps(count: int, rate: float, burstiness: float = 1.0, seed: int = 0) -> list[int]:
    """Arrivals of `count` requests at `rate` a second (inf: all at 0), int ps, in order.

    Raises:
        UsageError: a rate or burstiness that is not above 0.
    """
    if not rate > 0:
        raise UsageError(f"--request-rate {rate}: must be above 0 (inf sends all at once)")
    if not burstiness > 0:
        raise UsageError(f"--burstiness {burstiness}: must be above 0 (1 is a Poisson process)")
    if math.isinf(rate):
        return [0] * count
    if math.isinf(burstiness):
        gaps = np.full(count, 1 / rate)
    else:
        rng = np.random.default_rng([seed, 0x6273])
        gaps = rng.gamma(burstiness, 1 / (rate * burstiness), count)
    times = np.cumsum(gaps)
    if times[-1] > 0:
        times *= count / rate / times[-1]
    return [round(t * PS_PER_S) for t in times.tolist()]


def scaled(times_ps: Sequence[int], time_scale: float) -> list[int]:
    """A trace's arrivals, so many times as fast. Raises UsageError: a scale that is not above 0."""
    if not 0 < time_scale < math.inf:
        raise UsageError(f"--time-scale {time_scale}: must be above 0; 1 keeps the trace's arrivals")
    return [int(t / time_scale) for t in times_ps]
