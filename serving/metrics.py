"""What a user waits for, in virtual time, defined exactly as vLLM's `bench serve` defines it.

TTFT = first token - arrival. TPOT = (E2EL - TTFT) / (outputs - 1), requests with one output left out.
ITL = the gaps between successive tokens, pooled over all requests. E2EL = last token - arrival.
Source: vllm `benchmarks/serve.py`, `calculate_metrics`; facts on differing definitions: vllm #6531, #7242.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

PS_PER_MS = 1_000_000_000


@dataclass(frozen=True)
class Timeline:
    """One successful request: when it arrived and when each output token came out, in picoseconds."""

    arrival_ps: int
    token_times_ps: Sequence[int]

    @property
    def ttft_ps(self) -> int:
        return self.token_times_ps[0] - self.arrival_ps

    @property
    def e2el_ps(self) -> int:
        return self.token_times_ps[-1] - self.arrival_ps

    @property
    def gaps_ps(self) -> list[int]:
        times = self.token_times_ps
        return [later - earlier for earlier, later in zip(times, times[1:], strict=False)]


@dataclass(frozen=True)
class Summary:
    """Mean, median and 99th percentile in milliseconds; None where no request counts."""

    mean: float | None
    p50: float | None
    p99: float | None

    def as_dict(self) -> dict[str, float | None]:
        return {"mean": self.mean, "p50": self.p50, "p99": self.p99}


def summarise_ms(values_ps: Iterable[float]) -> Summary:
    """Summarise picoseconds as milliseconds; percentiles interpolate linearly, as numpy's and vLLM's do."""
    values = np.array(list(values_ps), dtype=np.float64) / PS_PER_MS
    if not len(values):
        return Summary(None, None, None)
    p50, p99 = (float(p) for p in np.percentile(values, [50, 99]))
    return Summary(float(np.mean(values)), p50, p99)


@dataclass(frozen=True)
class LatencyReport:
    """The four latency metrics of a run."""

    ttft_ms: Summary
    tpot_ms: Summary
    itl_ms: Summary
    e2el_ms: Summary


def latency_report(timelines: Sequence[Timeline]) -> LatencyReport:
    """Compute TTFT, TPOT, ITL and E2EL over the successful requests, each with at least one token."""
    tpots = [
        (line.e2el_ps - line.ttft_ps) / (len(line.token_times_ps) - 1)
        for line in timelines
        if len(line.token_times_ps) > 1
    ]
    return LatencyReport(
        ttft_ms=summarise_ms(line.ttft_ps for line in timelines),
        tpot_ms=summarise_ms(tpots),
        itl_ms=summarise_ms(gap for line in timelines for gap in line.gaps_ps),
        e2el_ms=summarise_ms(line.e2el_ps for line in timelines),
    )
