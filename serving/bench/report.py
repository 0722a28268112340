"""vLLM's `bench serve` report: the same fields, order, JSON keys and arithmetic, from what happened to each
call.

Source: vllm `benchmarks/serve.py` (`calculate_metrics`, `benchmark`). One function for both clocks: in
virtual seconds under vLLM's keys, in the host's seconds under the same keys behind `wall_`. Two deliberate
differences: the duration is the time from the first arrival to the last completion, and where nothing was
measured a value is None, not 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

METRICS = {
    "ttft": ("TTFT", "Time to First Token"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": ("ITL", "Inter-token Latency"),
    "e2el": ("E2EL", "End-to-end Latency"),
}
_WIDTH = 50


@dataclass(frozen=True)
class Call:
    """One request as its client saw it, in seconds of one clock.

    start: when it arrived. ttft: first chunk less start; itl: gaps between chunks; latency: last chunk less
    start. output_tokens: as the server counts them. error: why it failed; empty for success.
    """

    prompt_len: int
    start: float = 0.0
    ttft: float = 0.0
    itl: Sequence[float] = field(default_factory=list)
    latency: float = 0.0
    output_tokens: int = 0
    text: str = ""
    error: str = ""

    @property
    def ok(self) -> bool:
        return not self.error

    @property
    def tpot(self) -> float:
        """Time of an output token but the first; 0 where there is at most one."""
        if self.output_tokens <= 1:
            return 0.0
        return (self.latency - self.ttft) / (self.output_tokens - 1)


def of_times(prompt_len: int, arrival_s: float, times_s: Sequence[float], text: str = "") -> Call:
    """A successful call from the times of its tokens; tokens of one time are one chunk."""
    chunks = list(dict.fromkeys(times_s))
    itl = [later - earlier for earlier, later in zip(chunks, chunks[1:], strict=False)]
    first, last = chunks[0] - arrival_s, chunks[-1] - arrival_s
    return Call(prompt_len, arrival_s, first, itl, last, len(times_s), text)


def report(
    calls: Sequence[Call],
    objectives_ms: Mapping[str, float] | None = None,
    percentiles: Sequence[float] = (99,),
) -> dict[str, Any]:
    """All figures under vLLM's JSON keys."""
    good = [call for call in calls if call.ok]
    duration = max((c.start + c.latency for c in good), default=0.0) - min(
        (c.start for c in good), default=0.0
    )
    inputs, outputs = sum(c.prompt_len for c in good), sum(c.output_tokens for c in good)
    met = sum(meets(call, objectives_ms or {}) for call in good)

    def rate(count: int) -> float | None:
        return count / duration if duration > 0 else None

    result: dict[str, Any] = {
        "duration": duration,
        "completed": len(good),
        "failed": len(calls) - len(good),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": rate(len(good)),
        "request_goodput": rate(met) if objectives_ms else None,
        "output_throughput": rate(outputs),
        "total_token_throughput": rate(inputs + outputs),
        "input_lens": [c.prompt_len for c in calls],
        "output_lens": [c.output_tokens if c.ok else 0 for c in calls],
        "ttfts": [c.ttft for c in calls],
        "itls": [list(c.itl) for c in calls],
        "latencies": [c.latency for c in calls],
        "start_times": [c.start for c in calls],
        "generated_texts": [c.text for c in calls],
        "errors": [c.error for c in calls],
        "max_output_tokens_per_s": peak_tokens(good),
        "max_concurrent_requests": peak_requests(good),
    }
    for name, values in _values(good).items():
        result |= _summary(name, values, percentiles)
    return result


def meets(call: Call, objectives_ms: Mapping[str, float]) -> bool:
    """Whether a successful call meets every objective."""
    return all(getattr(call, _ATTRIBUTE[name]) <= limit / 1000 for name, limit in objectives_ms.items())


_ATTRIBUTE = {"ttft": "ttft", "tpot": "tpot", "e2el": "latency"}


def _values(good: Sequence[Call]) -> dict[str, list[float]]:
    return {
        "ttft": [c.ttft for c in good],
        "tpot": [c.tpot for c in good if c.output_tokens > 1],
        "itl": [gap for c in good for gap in c.itl],
        "e2el": [c.latency for c in good],
    }


def _summary(name: str, seconds: Sequence[float], percentiles: Sequence[float]) -> dict[str, float | None]:
    """mean, median, std and percentiles in ms; numpy's linear interpolation, as vLLM's."""
    ms = np.array(seconds, dtype=np.float64) * 1000
    found: dict[str, float | None] = {
        f"mean_{name}_ms": float(np.mean(ms)) if len(ms) else None,
        f"median_{name}_ms": float(np.median(ms)) if len(ms) else None,
        f"std_{name}_ms": float(np.std(ms)) if len(ms) else None,
    }
    for p in percentiles:
        found[f"p{percentile_word(p)}_{name}_ms"] = float(np.percentile(ms, p)) if len(ms) else None
    return found


def percentile_word(p: float) -> str:
    """99 for 99.0, 99.9 for 99.9."""
    return str(int(p)) if int(p) == p else str(p)


def peak_tokens(good: Sequence[Call]) -> float:
    """Most chunks of all calls in one second, seconds counted from the first arrival."""
    if not good:
        return 0.0
    begin = min(c.start for c in good)
    counts: dict[int, int] = {}
    for call in good:
        for time in np.cumsum([call.start + call.ttft - begin, *call.itl]).tolist():
            counts[math.floor(time)] = counts.get(math.floor(time), 0) + 1
    return float(max(counts.values()))


def peak_requests(good: Sequence[Call]) -> int:
    """Most calls under way at once; one that ends as another starts does not overlap it."""
    events = sorted([(c.start, 1) for c in good] + [(c.start + c.latency, -1) for c in good])
    current = most = 0
    for _, change in events:
        current += change
        most = max(most, current)
    return most


def table(result: Mapping[str, Any], percentiles: Sequence[float] = (99,)) -> str:
    """The report as vLLM prints it, with the host's figures after each of the emulated ones."""
    lines = [f"{' Serving Benchmark Result ':=^{_WIDTH}}"]
    rows = [
        ("Successful requests:", "completed"),
        ("Failed requests:", "failed"),
        ("Benchmark duration (s):", "duration"),
        ("Total input tokens:", "total_input_tokens"),
        ("Total generated tokens:", "total_output_tokens"),
        ("Request throughput (req/s):", "request_throughput"),
        ("Request goodput (req/s):", "request_goodput"),
        ("Output token throughput (tok/s):", "output_throughput"),
        ("Peak output token throughput (tok/s):", "max_output_tokens_per_s"),
        ("Peak concurrent requests:", "max_concurrent_requests"),
        ("Total token throughput (tok/s):", "total_token_throughput"),
    ]
    lines += [_row(label, result, key) for label, key in rows if result.get(key) is not None]
    words = ["mean", "median", *(f"p{percentile_word(p)}" for p in percentiles)]
    for name, (short, title) in METRICS.items():
        lines.append(f"{title:-^{_WIDTH}}")
        for word in words:
            label = f"{word.capitalize() if word[0] != 'p' else word.upper()} {short} (ms):"
            lines.append(_row(label, result, f"{word}_{name}_ms"))
    lines.append("=" * _WIDTH)
    return "\n".join(lines)


def _row(label: str, result: Mapping[str, Any], key: str) -> str:
    wall = result.get(f"wall_{key}")
    beside = "" if wall is None else f" wall {_figure(wall)}"
    return f"{label:<40} {_figure(result[key]):<10}{beside}".rstrip()


def _figure(value: float | int | None) -> str:
    return "-" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)
