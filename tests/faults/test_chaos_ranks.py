"""Chaos on real ranks: a few seeds with kills, one of them inside a lock, two while the pod recovers."""

import json
import os
from pathlib import Path

import pytest

from launch.cli import main

pytestmark = pytest.mark.multirank

_FIRST = 0
"""Seed 0 kills three times; two of the ranks die while the pod starts again."""


def test_a_few_plans_hold(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "chaos.json"
    words = [
        "chaos",
        "-n",
        "4",
        "--recovery",
        "restart",
        "--requests",
        "10",
        "--seeds",
        "3",
        "--first-seed",
        str(_FIRST),
    ]
    code = main([*words, "--json", str(out), "--plot", str(tmp_path / "plan.svg"), "--no-shrink"])
    print(f"seeds {_FIRST} to {_FIRST + 2}")
    assert code == 0, capfd.readouterr().err
    report = json.loads(out.read_text())
    assert report["summary"]["violations"] == 0 and report["summary"]["exact_share"] == 1.0
    assert report["summary"]["plans_with_a_kill"] >= 1 / 3 and report["summary"]["plans"] == 3
    assert (tmp_path / "plan.svg").read_text().startswith("<svg")


def test_kinds_and_plans_that_cannot_be_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chaos", "--faults", "kil"]) == 2
    assert "no fault is called 'kil'; nearest: kill" in capsys.readouterr().err
    assert main(["chaos", "--faults", "qp_error", "--recovery", "restart"]) == 2
    assert "qp_error needs --recovery in-place: a pod that restarts" in capsys.readouterr().err
    plan = tmp_path / "plan.toml"
    plan.write_text('[[fault]]\nkind = "kill"\nrnk = 3\nat_ps = 0\n')
    assert main(["chaos", "--plan", str(plan)]) == 2
    assert f"{plan}:3: unknown field of kill 'rnk'; nearest: rank" in capsys.readouterr().err
    plan.write_text('[[fault]]\nkind = "kill"\nat_ps = 0\nrank = 99\n')
    assert main(["chaos", "-n", "4", "--plan", str(plan)]) == 2
    assert f"{plan}:4: fault 0 (kill): the run has no rank 99; nearest: 3" in capsys.readouterr().err
    plan.write_text('[[fault]]\nkind = "leave"\nat_ps = 0\nrank = 1\n')
    for command in ("chaos", "replay"):
        option = "--plan" if command == "chaos" else "--faults"
        assert main([command, "-n", "4", option, str(plan), "--recovery", "restart"]) == 2
        assert f"{plan}:2: leave needs --recovery in-place" in capsys.readouterr().err


@pytest.mark.sweep
@pytest.mark.parametrize("states", [None, "abort,preemption,draft"])
def test_a_sample_of_the_campaign_holds(tmp_path: Path, states: str | None) -> None:
    """Other seeds: SUPERPOD_CHAOS_SEED=N."""
    first = int(os.environ.get("SUPERPOD_CHAOS_SEED", "2000"))
    out = tmp_path / "chaos.json"
    words = ["chaos", "-n", "8", "--requests", "20", "--seeds", "12", "--first-seed", str(first)]
    words += ["--states", states] if states else []
    print("superpod", *words)
    assert main([*words, "--json", str(out), "--no-shrink"]) == 0
    summary = json.loads(out.read_text())["summary"]
    assert summary["violations"] == 0 and summary["exact_share"] >= 0.95
    assert summary["plans_with_8_in_flight"] == 1.0
