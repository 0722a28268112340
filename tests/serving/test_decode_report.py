"""The result of a decode measurement: figures, bounds, accounts; and the command over real ranks."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.decode.report import figures, is_published_case, measured, result_of
from serving.decode.settings import DecodePlan, decode_job, plan_decode
from serving.decode.tables import accounts_table, figures_table, inputs_table
from serving.job import DecodeOptions
from serving.model.config import preset_config
from serving.price_tables import COMBINE, DISPATCH
from serving.pricing import ATTENTION, MATMUL, OTHERS, PREPROCESS

US, MS = 10**6, 10**9
CALLS = 59
KERNELS = {MATMUL: 20_500, ATTENTION: 20_300, OTHERS: 10_900, PREPROCESS: 8_100}
"""us of an iteration, near the published shares of 93 ms."""


@pytest.fixture(scope="module")
def plan() -> DecodePlan:
    job = decode_job("m", 288, 60, (2048, 4096), DecodeOptions(), {}, redundant_experts=256)
    return plan_decode(job, preset_config("mini"), (2048, 4096))


def results(dispatch_us: int = 234, combine_us: int = 312, ranks: int = 4) -> list[dict[str, Any]]:
    """Steps of 93 ms and the bubble: the first call of each waits longest, the last not at all."""
    dispatch = [dispatch_us + 800, *[dispatch_us - 14] * 57, 185]
    combine = [combine_us + 1500, *[combine_us - 24] * 57, 165]
    found = []
    for _ in range(ranks):
        steps = []
        for number in range(5):
            begin = number * 95 * MS
            steps.append(
                {
                    "begin_ps": begin,
                    "end_ps": begin + 93 * MS,
                    "jitter_ps": US,
                    "dispatch_ps": [us * US for us in dispatch],
                    "dispatch_wait_ps": [(us - 170) * US for us in dispatch],
                    "combine_ps": [us * US for us in combine],
                    "combine_wait_ps": [0] * CALLS,
                    "expert_rows": [1080] * CALLS,
                    "kernels": {name: us * US for name, us in KERNELS.items()},
                }
            )
        found.append({"decode": steps})
    return found


def row(result: dict[str, Any], name: str) -> dict[str, Any]:
    return next(row for row in result["rows"] if row["name"] == name)


def test_figures_beside_the_published_ones(plan: DecodePlan) -> None:
    result = result_of(plan, results())
    assert row(result, "iteration")["emulated"] == 93.0
    assert row(result, "time per output token")["emulated"] == 50.0
    assert row(result, "tokens per second and chip")["emulated"] == 2400.0
    assert row(result, f"share of {ATTENTION}")["emulated"] == pytest.approx(100 * 20.3 / 93, abs=1e-3)
    assert row(result, f"{DISPATCH} minimum")["emulated"] == 185
    assert row(result, f"{COMBINE} maximum")["emulated"] == 1812
    assert row(result, f"{COMBINE} maximum/minimum")["emulated"] == pytest.approx(10.98)
    assert result["within_bounds"] and all(r["published"] is not None for r in result["rows"])
    assert {"name", "published", "emulated", "unit", "error_pct", "within"} <= set(result["rows"][0])
    json.dumps(result)


@pytest.mark.parametrize(
    ("given", "broken"),
    [
        ({"dispatch_us": 280}, f"{DISPATCH} average"),
        ({"combine_us": 270}, f"{COMBINE} average"),
        ({"combine_us": 1200}, f"{COMBINE} maximum/minimum"),
    ],
)
def test_a_figure_outside_its_bound_fails_the_whole(plan: DecodePlan, given: Any, broken: str) -> None:
    result = result_of(plan, results(**given))
    assert row(result, broken)["within"] is False
    assert not result["within_bounds"]


def test_accounts_calls_and_conflict(plan: DecodePlan) -> None:
    result = result_of(plan, results())
    assert sum(result["accounts_ms"].values()) == pytest.approx(93, abs=0.01)
    call = result["calls"][DISPATCH]
    assert call["average_waiting_us"] + call["average_without_waiting_us"] == pytest.approx(
        call["average_us"], abs=0.02
    )
    assert result["case"]["dispatch_calls"] == result["case"]["combine_calls"] == CALLS
    conflict = result["conflicts"][0]
    assert conflict["called"] == 59 and set(conflict["implied_by_published_shares"].values()) == {60.8}
    for table in (figures_table(result), accounts_table(result), inputs_table(result)):
        assert table.row_count > 5


def test_every_input_is_named_with_label_and_source(plan: DecodePlan) -> None:
    inputs = {entry["name"]: entry for entry in result_of(plan, results())["inputs"]}
    wanted = ["decode.acceptance", "cost.step_bubble_us", "decode.router_skew", "jitter.launch_us"]
    wanted += [
        "kernels.mla_decode.compute_efficiency",
        "exchange.in_situ_us",
        "xccl.rank_us",
        "workload.sequences_per_die",
    ]
    assert set(wanted) <= set(inputs)
    assert all(entry["label"] and entry["source"] for entry in inputs.values())


def test_only_the_published_case_is_held_against_it() -> None:
    for changes in ({"batch": 96}, {"num_ranks": 320}, {"context": (100, 200)}):
        given = {"num_ranks": 288, "batch": 60, "context": (2048, 4096)} | changes
        context: Any = given["context"]
        job = decode_job("m", given["num_ranks"], given["batch"], context, DecodeOptions(), {})  # type: ignore[arg-type]
        other = plan_decode(job, preset_config("mini"), context)
        assert not is_published_case(other)
        rows = figures(other, measured(results(), other.priced.step_overhead_ps), False)
        assert all(row.published is None and row.within is None for row in rows)


def test_a_period_is_from_end_to_end_without_the_bubble() -> None:
    found = measured(results(), 2 * MS)
    assert found.period.shape == (4, 4) and set(np.unique(found.period)) == {93 * MS}


# ---- over real ranks ----


def decode(tmp_path: Path, name: str, *arguments: str, expected: int = 0) -> Any:
    out = tmp_path / f"{name}.json"
    done = subprocess.run(
        [sys.executable, "-m", "launch.cli", "decode", *arguments, "--json", str(out)],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == expected, done.stderr
    return json.loads(out.read_text()) if expected == 0 else done.stderr


def test_the_command_imports_no_torch() -> None:
    code = "import launch.cmd_decode, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.multirank
def test_the_command(tmp_path: Path, tiny_model: str, tiny_priced: str) -> None:
    """Equal runs are equal to the bit; jitter makes the others wait and leaves the operator what it is."""
    arguments = ["-n", "4", "--batch", "3", "--steps", "2", "--model", tiny_model, "--priced-as", tiny_priced]
    # Stalls are rare: with 4 dies and few layers there would be none.
    arguments += ["--no-memory-check", "--set", "jitter.stall_probability=0.1"]
    first, second = (decode(tmp_path, str(i), *arguments) for i in range(2))
    calm = decode(tmp_path, "calm", *arguments, "--no-jitter")
    for result in (first, second, calm):
        host = result.pop("host")
        assert host["pss_gb"] > 0 and host["wall_s"] > 0
    assert first == second
    assert first["trace_sha256"] != calm["trace_sha256"]
    assert calm["accounts_ms"]["jitter"] == 0 < first["accounts_ms"]["jitter"]
    for name in (DISPATCH, COMBINE):
        uneven, even = first["calls"][name], calm["calls"][name]
        assert uneven["average_waiting_us"] > even["average_waiting_us"] + 20
        assert uneven["average_without_waiting_us"] == pytest.approx(
            even["average_without_waiting_us"], rel=0.03
        )
        assert uneven["minimum_us"] == pytest.approx(even["minimum_us"], rel=0.03)
        assert uneven["maximum_us"] > 250 > even["maximum_us"] - even["minimum_us"]
    assert first["case"]["dispatch_calls"] == 9
    assert first["imbalance"]["rows_of_a_layer"] == 4 * 3 * 2 * 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-n", "4", "--context", "9:1"), "--context 9:1: 1 <= LOW <= HIGH"),
        (("-n", "4", "--set", "jitter.expert_nois=1"), "did you mean"),
        (("-n", "8"), "start more ranks"),
        (("-n", "4", "--model", "/nowhere"), "cannot read the model configuration"),
        (("-n", "1000"), "has 768 dies"),
    ],
)
def test_bad_input_is_one_line_and_code_2(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    said = decode(tmp_path, "bad", *arguments, expected=2)
    assert message in said and len(said.strip().splitlines()) == 1
