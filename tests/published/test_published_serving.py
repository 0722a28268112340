"""Published figures of serving: routing, cases, rows, and what is made of measurements."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emulator.errors import InternalError, UsageError
from serving.published.cases import LONG_96, PREFILL, PUBLISHED, Case, parse_case
from serving.published.figures import Figures, gain, values
from serving.published.inputs import inputs
from serving.published.report import MEDIAN_BOUND, STATUSES, as_text, rows, rule_of, summaries
from serving.published.routing import Routing
from serving.published.system import SYSTEMS, load_system


def perfect() -> dict[str, Any]:
    """Measurements by case: all of one length, which are enough to make every row."""
    calls = {"warm_ps": 10**8, "mean_ps": 10**8, "min_ps": 10**7, "max_ps": 10**9}
    kernels = dict.fromkeys(("MlaPreprocess", "MultiLatentAttention", "QuantBatchMatmul", "Others"), 10.0**10)
    both = {"dispatch": calls, "combine": calls, "kernels_ps": kernels, "attention_ps": 1, "moe_ps": 1}
    return {case.name: found_of([10**9, 2 * 10**9, 3 * 10**9], 59) | both for case in PUBLISHED}


def test_every_row_of_serving_has_a_status_and_what_is_measured_a_value() -> None:
    found = rows(values(perfect()))
    assert {row.status for row in found} == set(STATUSES)
    for row in found:
        assert row.why and (row.emulated is not None or row.status in ("input", "out of scope")), row
        assert (row.case in {case.name for case in PUBLISHED}) == (row.status in ("fitted", "predicted"))
    assert all("H100" in row.why for row in found if ".sglang" in row.name or ".ds_" in row.name)
    with pytest.raises(InternalError, match="no rule"):
        rule_of("cm.new")


def test_summaries_keep_fitted_and_predicted_apart() -> None:
    found = rows(values(perfect()))
    by_name = {s.name: s for s in summaries(found)}
    assert set(by_name) == {"all", "fitted", "predicted", "all, twins counted too"}
    errors = [abs(row.error_pct or 0) for row in found if row.counted]
    assert by_name["all"].median == statistics.median(errors) and by_name["all"].count == len(errors)
    assert by_name["fitted"].count + by_name["predicted"].count == len(errors)
    assert not by_name["all"].is_met and MEDIAN_BOUND == 8


def test_every_number_put_in_is_labelled() -> None:
    for one in inputs():
        assert one["source"] and one["label"] in ("measured", "published", "derived", "assumed"), one
    assert {i["name"] for i in inputs() if "fit to cm." in i["source"]} == {
        f"cloudmatrix-infer: system.{name}" for name in ("small_kernels", "expert_imbalance", "prefill_rate")
    }


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("cm.decode.cm_infer.tpot", 49.4, 0.0),
        ("cm.decode.cm_infer.tpot", 54.34, 10.0),
        ("cm.microbatch_decode_bs64", 5.8, 0.0),
        ("cm.microbatch_decode_bs64", 0.0, 100 * (1 / 1.058 - 1)),
        ("cm.microbatch_prefill", 25.0, 0.0),
        ("cm.microbatch_prefill", 44.1, 10.0),
        ("cm.mtp_gain", [6.0, 49.0], 0.0),
        ("cm.mtp_gain", [6.0, 63.9], 10.0),
        ("fs.mtp.latency_reduction_max", 12.0, 0.0),
        ("fs.mtp.latency_reduction_max", 44.0, 10.0),
    ],
)
def test_errors(name: str, value: Any, error: float) -> None:
    """Mutations: gains held against each other as numbers; the far end of a range; a bound as a value."""
    row = next(row for row in rows({name: value}) if row.name == name)
    assert row.error_pct == pytest.approx(error) and row.counted
    assert as_text([row], [], False)


def test_cases_are_read_as_they_are_written() -> None:
    for case in PUBLISHED:
        again = parse_case(case.name)
        assert Case(**{**again.__dict__, "passes": case.passes}) == case
    assert parse_case("decode:cloudmatrix-infer:320:4:4096-4352:no-microbatch").microbatches == 1
    assert parse_case("prefill:cloudmatrix-infer:32:8192:4096:balanced").balanced


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("decode:cloudmatrix-infer:320:48", "write decode:"),
        ("decode:cloudmatrix:320:48:4096", "cloudmatrix-infer"),
        ("decode:xdeepserve:0:48:4096", "DIES"),
        ("decode:xdeepserve:288:48:4096-1", "HIGH"),
        ("decode:cloudmatrix-infer:320:5:4096", "even BATCH"),
        ("decode:xdeepserve:288:60:2048:no-mpt", "no-mtp"),
        ("prefill:cloudmatrix-infer:32:8192:4096-5000", "one number each"),
        ("prefill:cloudmatrix-infer:32:4096:4096", "multiple"),
        ("prefill:xdeepserve:32:4096:4096", "not published"),
    ],
)
def test_bad_cases(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_case(text)


@pytest.mark.parametrize("ranks", [32, 288, 320])
def test_routing_loads_dies_as_asked(ranks: int) -> None:
    """Mutations: shared experts on the last dies; popularity by expert instead of by die."""
    routing, tokens = Routing(ranks, 1.4), 64
    sent = np.stack([routing.rows_to(rank, 3, tokens) for rank in range(ranks)])
    assert (sent.sum(axis=1) == tokens * 9).all()
    load = sent.sum(axis=0) / sent.sum(axis=0).mean()
    assert load.max() == pytest.approx(1.4, abs=0.12)
    even = np.stack([Routing(ranks, 1.0).rows_to(rank, 3, tokens) for rank in range(ranks)]).sum(axis=0)
    assert even.max() / even.mean() < 1.15
    dies = routing.dies(1, 3, 200)
    assert dies.min() >= 0 and dies.max() < ranks
    assert (routing.dies(1, 3, 200) == dies).all() and (routing.dies(2, 3, 200) != dies).any()


def test_streams_compute_at_their_share_of_the_cores() -> None:
    """16 and 8 of 24 cube cores, 16 of 48 vector cores quantise; memory is whole."""
    for name in SYSTEMS:
        assert load_system(name).acceptance == {"xdeepserve": 0.9, "cloudmatrix-infer": 0.7}[name]
    system = load_system("cloudmatrix-infer")

    def rate(model: Any, key: str) -> float:
        return float(model.profile.value(key))

    key, whole = "kernels.grouped_gemm_int8.compute_efficiency", system.whole
    assert rate(system.attention, key) == pytest.approx(rate(whole, key) * 2 / 3)
    assert rate(system.moe, key) == pytest.approx(rate(whole, key) / 3)
    quantise, memory = "vector.quantise_gb_per_s", "kernels.grouped_gemm_int8.memory_efficiency"
    assert rate(system.moe, quantise) == pytest.approx(rate(whole, quantise) / 3)
    assert rate(system.moe, memory) == rate(whole, memory)


def found_of(ends: list[float], layers: int, after: float = 0) -> dict[str, Any]:
    return {"ends_ps": ends, "layers": layers, "after_ps": after, "busiest": 1.0}


def test_figures_by_hand() -> None:
    """Layers beyond those measured take the mean of the later ones: 5 + 2 + 2 ms, 56 x 2 ms, 3 ms after."""
    ms = 10**9
    one = Figures(LONG_96, found_of([5 * ms, 7 * ms, 9 * ms], 59, 3 * ms))
    assert one.layer_ps == 2 * ms and one.iteration_ms == 9 + 56 * 2 + 3
    assert one.tpot_ms == pytest.approx(124 / 1.7) and one.tokens_per_s == pytest.approx(
        2 * 48e3 / (124 / 1.7)
    )
    assert one.per_tflops == pytest.approx(one.tokens_per_s / 1504)
    fill = Figures(PREFILL, found_of([5 * ms, 7 * ms, 9 * ms], 58))
    assert fill.tokens_per_s == pytest.approx(2 * 8192 * 1000 / (9 + 55 * 2))
    twice = Figures(PREFILL, found_of([10 * ms, 14 * ms, 18 * ms], 58))
    assert gain(fill, twice) == pytest.approx(100)


RECORDED = Path(__file__).parents[2] / "benchmarks" / "results" / "calibrate_serving.json"
"""Written by `superpod calibrate --serving --json` on 32, 288 and 320 ranks."""


def test_the_recorded_measurements_are_within_the_bound() -> None:
    """What ranks measured comes to the rows that were told then, whose median error is at most 8 %."""
    told = json.loads(RECORDED.read_text())
    found = rows(values(told["measured"]))
    assert set(told["measured"]) == {case.name for case in PUBLISHED}
    then = {row["name"]: row["error_pct"] for row in told["rows"]}
    assert {row.name: row.error_pct for row in found} == pytest.approx(then, nan_ok=True)
    whole = next(summary for summary in summaries(found) if summary.name == "all")
    assert whole.median <= MEDIAN_BOUND
