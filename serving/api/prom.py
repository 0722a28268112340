"""`/metrics`: vLLM's metric names, values of the emulated clock.

Source of names, help texts and buckets: vllm `v1/metrics/loggers.py`. Labels: model_name and engine, the
latter the rank. Times are virtual seconds. `superpod:*` says what vLLM has no name for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import prometheus_client as prom

from serving.api.engine_client import Ticket
from serving.outputs import OutputEvent, StatsEvent

PS_PER_S = 1_000_000_000_000
_TTFT: tuple[float, ...] = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75)
_TTFT += (1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)
_TPOT = (
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
_LATENCY: tuple[float, ...] = (
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    50.0,
    60.0,
    120.0,
    240.0,
)
_LATENCY += (480.0, 960.0, 1920.0, 7680.0)
_GAUGES = {
    "num_requests_running": "Number of requests in model execution batches.",
    "num_requests_waiting": "Number of requests waiting to be processed.",
    "kv_cache_usage_perc": "KV-cache usage. 1 means 100 percent usage.",
}
_COUNTERS = {
    "num_preemptions": "Cumulative number of preemption from the engine.",
    "prefix_cache_queries": "Prefix cache queries, in terms of number of queried tokens.",
    "prefix_cache_hits": "Prefix cache hits, in terms of number of cached tokens.",
    "prompt_tokens": "Number of prefill tokens processed.",
    "generation_tokens": "Number of generation tokens processed.",
}
_REASONS = {"stop": "stop", "length": "length", "abort": "abort", "error": "error"}


def one_two_five(most: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, … up to `most`."""
    return tuple(float(m * 10**e) for e in range(len(str(most))) for m in (1, 2, 5) if m * 10**e <= most)


@dataclass
class _Course:
    """What is known of a request in flight."""

    last_ps: int = 0
    num_tokens: int = 0
    first_ps: int = 0


@dataclass
class Metrics:
    """The registry of one server."""

    model_name: str
    max_model_len: int
    registry: prom.CollectorRegistry = field(default_factory=prom.CollectorRegistry)

    def __post_init__(self) -> None:
        labels = ["model_name", "engine"]

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> prom.Histogram:
            return prom.Histogram(f"vllm:{name}", text, labels, buckets=buckets, registry=self.registry)

        self._gauges = {
            n: prom.Gauge(f"vllm:{n}", t, labels, registry=self.registry) for n, t in _GAUGES.items()
        }
        self._counters = {
            n: prom.Counter(f"vllm:{n}", t, labels, registry=self.registry) for n, t in _COUNTERS.items()
        }
        self._success = prom.Counter(
            "vllm:request_success",
            "Count of successfully processed requests.",
            [*labels, "finished_reason"],
            registry=self.registry,
        )
        tokens = one_two_five(self.max_model_len)
        self._ttft = histogram("time_to_first_token_seconds", "Time to first token in seconds.", _TTFT)
        self._itl = histogram("inter_token_latency_seconds", "Inter-token latency in seconds.", _TPOT)
        self._tpot = histogram("request_time_per_output_token_seconds", "TPOT of a request.", _TPOT)
        self._e2e = histogram("e2e_request_latency_seconds", "e2e request latency in seconds.", _LATENCY)
        self._prompt = histogram("request_prompt_tokens", "Number of prefill tokens processed.", tokens)
        self._outputs = histogram(
            "request_generation_tokens", "Number of generation tokens processed.", tokens
        )
        self._asked = histogram("request_params_max_tokens", "The max_tokens request parameter.", tokens)
        self._n = histogram("request_params_n", "The n request parameter.", (1, 2, 5, 10, 20))
        self._now = prom.Gauge("superpod:virtual_time_seconds", "Virtual time.", registry=self.registry)
        self._courses: dict[int, _Course] = {}
        self._seen: dict[tuple[str, int], int] = {}

    def render(self) -> bytes:
        """The page, in Prometheus' text format."""
        return prom.generate_latest(self.registry)

    def observe(self, ticket: Ticket | None, event: OutputEvent | StatsEvent) -> None:
        """Take an event in."""
        if isinstance(event, StatsEvent):
            self._observe_stats(event)
        elif ticket is not None:
            self._observe_output(ticket, event)

    def _observe_stats(self, event: StatsEvent) -> None:
        labels = (self.model_name, str(event.rank))
        self._gauges["num_requests_running"].labels(*labels).set(event.running)
        self._gauges["num_requests_waiting"].labels(*labels).set(event.waiting)
        usage = event.kv_used / event.kv_total if event.kv_total else 0.0
        self._gauges["kv_cache_usage_perc"].labels(*labels).set(usage)
        totals = {
            "num_preemptions": event.preemptions,
            "prefix_cache_queries": event.cache_queries,
            "prefix_cache_hits": event.cache_hits,
        }
        for name, total in totals.items():
            before = self._seen.get((name, event.rank), 0)
            self._counters[name].labels(*labels).inc(max(0, total - before))
            self._seen[name, event.rank] = total
        self._now.set(event.now_ps / PS_PER_S)

    def _observe_output(self, ticket: Ticket, event: OutputEvent) -> None:
        labels = (self.model_name, str(event.rank))
        course = self._courses.setdefault(event.request_id, _Course())
        for time_ps in event.times_ps:
            if not course.num_tokens:
                course.first_ps = time_ps
                self._counters["prompt_tokens"].labels(*labels).inc(len(ticket.request.prompt))
                self._ttft.labels(*labels).observe((time_ps - event.arrival_ps) / PS_PER_S)
            elif time_ps > course.last_ps:
                self._itl.labels(*labels).observe((time_ps - course.last_ps) / PS_PER_S)
            course.last_ps, course.num_tokens = time_ps, course.num_tokens + 1
        self._counters["generation_tokens"].labels(*labels).inc(len(event.tokens))
        if event.finish is not None:
            self._finish(labels, ticket, event, self._courses.pop(event.request_id))

    def _finish(self, labels: Any, ticket: Ticket, event: OutputEvent, course: _Course) -> None:
        self._success.labels(*labels, _REASONS[event.finish or "error"]).inc()
        if not course.num_tokens:
            return
        self._e2e.labels(*labels).observe((course.last_ps - event.arrival_ps) / PS_PER_S)
        if course.num_tokens > 1:
            mean_ps = (course.last_ps - course.first_ps) / (course.num_tokens - 1)
            self._tpot.labels(*labels).observe(mean_ps / PS_PER_S)
        self._prompt.labels(*labels).observe(len(ticket.request.prompt))
        self._outputs.labels(*labels).observe(course.num_tokens)
        self._asked.labels(*labels).observe(ticket.request.max_output)
        self._n.labels(*labels).observe(ticket.request.params.n)
