"""What a user waits for, in virtual time, defined exactly as vLLM's `bench serve` defines it.

TTFT = first token - arrival. TPOT = (E2EL - TTFT) / (outputs - 1), requests with one output left out.
ITL = the gaps between successive chunks, pooled over all requests; tokens that come out at one time (accepted
drafts) are one chunk, so under speculation ITL is not TPOT. E2EL = last token - arrival. Goodput = requests
that meet every objective, for each of them value <= limit (TPOT of a single token counts as 0), per second.
Source: vllm `benchmarks/serve.py`, `calculate_metrics`; facts on differing definitions: vllm #6531, #7242.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from emulator.errors import UsageError

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
    def tpot_ps(self) -> float:
        """Mean time of an output token but the first; 0 where there is one only."""
        return (self.e2el_ps - self.ttft_ps) / max(1, len(self.token_times_ps) - 1)

    @property
    def gaps_ps(self) -> list[int]:
        times = list(dict.fromkeys(self.token_times_ps))
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
    tpots = [line.tpot_ps for line in timelines if len(line.token_times_ps) > 1]
    return LatencyReport(
        ttft_ms=summarise_ms(line.ttft_ps for line in timelines),
        tpot_ms=summarise_ms(tpots),
        itl_ms=summarise_ms(gap for line in timelines for gap in line.gaps_ps),
        e2el_ms=summarise_ms(line.e2el_ps for line in timelines),
    )


OBJECTIVES = ("ttft", "tpot", "e2el")
"""What `--goodput` takes, each with a limit in milliseconds."""


def parse_objectives(words: Iterable[str]) -> dict[str, float]:
    """Read `ttft:200 tpot:50` into limits in ms. Raises UsageError: another form, name or sign."""
    limits: dict[str, float] = {}
    for word in words:
        name, colon, text = word.partition(":")
        try:
            limit = float(text)
        except ValueError:
            limit = math.nan
        if not colon or not 0 <= limit < math.inf:
            raise UsageError(f"--goodput {word!r}: give NAME:MILLISECONDS, at least 0, such as ttft:200")
        if name not in OBJECTIVES:
            raise UsageError(f"--goodput {word!r}: no such objective; choose from {', '.join(OBJECTIVES)}")
        limits[name] = limit
    return limits


def is_good(line: Timeline, limits_ms: Mapping[str, float]) -> bool:
    """Whether a successful request meets every objective."""
    values = {"ttft": line.ttft_ps, "tpot": line.tpot_ps, "e2el": line.e2el_ps}
    return all(values[name] <= limit * PS_PER_MS for name, limit in limits_ms.items())


def duration_ps(timelines: Sequence[Timeline]) -> int:
    """From the first arrival to the last completion; 0 without a request."""
    first = min((line.arrival_ps for line in timelines), default=0)
    return max((line.token_times_ps[-1] for line in timelines), default=first) - first


def goodput(timelines: Sequence[Timeline], limits_ms: Mapping[str, float]) -> float | None:
    """Good requests per second of `duration_ps`; None where no time has passed."""
    span_ps = duration_ps(timelines)
    good = sum(is_good(line, limits_ms) for line in timelines)
    return good * 1000 * PS_PER_MS / span_ps if span_ps else None
