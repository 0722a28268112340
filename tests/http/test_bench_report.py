"""vLLM's report on hand-made timelines; arrivals; what a benchmark asks for."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from emulator.errors import UsageError
from serving.bench.arrivals import arrivals_ps, scaled
from serving.bench.datasets import random_asks, sharegpt_asks, trace_asks
from serving.bench.http import Target
from serving.bench.report import Call, of_times, report, table
from serving.metrics import Timeline, duration_ps, goodput, is_good, latency_report, parse_objectives

MS = 1_000_000_000
# Arrivals and times in ms. The third request drafts: two tokens come out of one step, twice.
LINES = {
    "one token": (0, [100]),
    "three tokens": (50, [150, 170, 210]),
    "with drafts": (100, [300, 320, 320, 360, 360]),
}
LIMITS = {"ttft": 100.0, "tpot": 30.0}


def calls() -> list[Call]:
    made = [of_times(10, at / 1000, [t / 1000 for t in times], "x") for at, times in LINES.values()]
    return [*made, Call(7, 0.06, error="refused")]


def timelines() -> list[Timeline]:
    return [Timeline(at * MS, [t * MS for t in times]) for at, times in LINES.values()]


def test_the_report_by_hand() -> None:
    """Mutations: TPOT over gaps; ITL with zero gaps; goodput with < instead of <=; duration from 0."""
    found = report(calls(), LIMITS, [50, 99])
    wanted = {
        "duration": 0.36,
        "completed": 3,
        "failed": 1,
        "total_input_tokens": 30,
        "total_output_tokens": 9,
        "request_throughput": 3 / 0.36,
        "request_goodput": 2 / 0.36,
        "output_throughput": 9 / 0.36,
        "total_token_throughput": 39 / 0.36,
        "output_lens": [1, 3, 5, 0],
        "ttfts": [0.1, 0.1, 0.2, 0.0],
        "max_concurrent_requests": 2,
        "max_output_tokens_per_s": 7.0,
        "mean_ttft_ms": 400 / 3,
        "median_ttft_ms": 100.0,
        "mean_tpot_ms": (30 + 15) / 2,
        "mean_itl_ms": (20 + 40 + 20 + 40) / 4,
        "median_itl_ms": 30.0,
        "mean_e2el_ms": (100 + 160 + 260) / 3,
        "p50_e2el_ms": 160.0,
        "p99_ttft_ms": float(np.percentile([100, 100, 200], 99)),
        "std_itl_ms": 10.0,
    }
    for key, value in wanted.items():
        assert found[key] == pytest.approx(value), key
    later = [replace(call, start=call.start + 2) for call in calls()]
    assert report(later)["duration"] == pytest.approx(0.36), "from the first arrival, not from 0"
    text = table(found, [50, 99])
    assert "Request goodput (req/s):                 5.56" in text and "P99 TPOT (ms):" in text


def test_both_ways_of_counting_agree() -> None:
    """The report in seconds, and `serving.metrics` in picoseconds."""
    found, own = report(calls(), LIMITS), latency_report(timelines())
    for name in ("ttft", "tpot", "itl", "e2el"):
        summary = getattr(own, f"{name}_ms")
        assert (found[f"mean_{name}_ms"], found[f"p99_{name}_ms"]) == pytest.approx(
            (summary.mean, summary.p99)
        )
    assert [is_good(line, LIMITS) for line in timelines()] == [True, True, False]
    assert goodput(timelines(), LIMITS) == pytest.approx(found["request_goodput"])
    assert duration_ps(timelines()) == 360 * MS


def test_a_limit_that_is_just_met_is_met() -> None:
    line = Timeline(0, [100 * MS, 130 * MS])
    assert is_good(line, {"ttft": 100.0, "tpot": 30.0, "e2el": 130.0})
    assert not is_good(line, {"e2el": 129.999})
    assert is_good(Timeline(0, [5 * MS]), {"tpot": 0.0}), "TPOT of one token counts as 0"


def test_nothing_succeeded() -> None:
    found = report([Call(3, error="x")], LIMITS)
    assert (found["completed"], found["request_throughput"], found["mean_ttft_ms"]) == (0, None, None)
    assert "Failed requests:" in table(found) and goodput([], LIMITS) is None


def test_objectives() -> None:
    assert parse_objectives(["ttft:200", "e2el:1e3"]) == {"ttft": 200.0, "e2el": 1000.0}
    for word in ("ttft", "ttft:", "itl:5", "tpot:-1", "tpot:nan", "ttft:x"):
        with pytest.raises(UsageError, match="--goodput"):
            parse_objectives([word])


def test_arrivals_take_exactly_count_over_rate() -> None:
    for burstiness in (0.2, 1.0, 5.0, math.inf):
        times = arrivals_ps(500, 25.0, burstiness, seed=3)
        assert times == sorted(times) and times[-1] == 20 * 10**12
    gaps = np.diff(arrivals_ps(4000, 10.0, 1.0, seed=4)) / 1e12
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.06)
    bursts = np.diff(arrivals_ps(4000, 10.0, 0.25, seed=4)) / 1e12
    assert bursts.std() / bursts.mean() == pytest.approx(2.0, abs=0.2)
    assert arrivals_ps(3, math.inf) == [0, 0, 0] and arrivals_ps(9, 2.0, seed=1) == arrivals_ps(
        9, 2.0, seed=1
    )
    assert scaled([0, 1000], 2.0) == [0, 500]
    for rate, burst in ((0.0, 1.0), (-1.0, 1.0), (math.nan, 1.0), (1.0, 0.0)):
        with pytest.raises(UsageError):
            arrivals_ps(2, rate, burst)


def test_random_asks() -> None:
    asks = random_asks(200, 100, 10, 0.5, 64, seed=9)
    assert {len(a.prompt) for a in asks} <= set(range(50, 151)) and len({a.output_len for a in asks}) > 5
    assert all(0 <= t < 64 for a in asks for t in a.prompt)
    assert asks == random_asks(200, 100, 10, 0.5, 64, seed=9) != random_asks(200, 100, 10, 0.5, 64, seed=8)


def test_traces_keep_arrivals_and_shared_prefixes(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 0, "input_length": 600, "output_length": 50, "hash_ids": [7, 8]},
        {"timestamp": 250, "input_length": 700, "output_length": 5, "hash_ids": [7, 9]},
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    first, second = trace_asks(path, None, 1000, seed=1, max_output=20)
    assert (first.arrival_ps, second.arrival_ps) == (0, 250 * MS)
    assert (first.prompt_len, first.output_len, second.output_len) == (600, 20, 5)
    assert first.prompt[:512] == second.prompt[:512] and first.prompt[512:] != second.prompt[512:600]


def test_sharegpt(tmp_path: Path) -> None:
    def talk(*values: str) -> dict[str, object]:
        return {"conversations": [{"from": "human", "value": value} for value in values]}

    path = tmp_path / "s.json"
    entries = [
        talk("a b c d", "e f g h i"),
        talk("too", "short"),
        talk("alone"),
        talk("w " * 2000, "e f g h"),
    ]
    path.write_text(json.dumps(entries))
    (ask,) = sharegpt_asks(path, 1, 0, None, lambda text: len(text.split()))
    assert (ask.prompt, ask.prompt_len, ask.output_len) == ("a b c d", 4, 5)
    with pytest.raises(UsageError, match="1 conversations fit"):
        sharegpt_asks(path, 2, 0, None, lambda text: len(text.split()))
    path.write_text('{"a": 1}')
    with pytest.raises(UsageError, match="not a ShareGPT file"):
        sharegpt_asks(path, 1, 0, None, len)


def test_targets() -> None:
    assert Target.parse("http://127.0.0.1:81/x/") == Target("127.0.0.1", 81, False, "/x")
    for url in ("127.0.0.1:8000", "ftp://a", "http://", "http://a:b"):
        with pytest.raises(UsageError, match="--base-url"):
            Target.parse(url)
