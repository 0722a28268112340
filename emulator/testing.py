"""What tests of rank programs import: a fault plan and a pod of real ranks under it, as pytest fixtures.

    from emulator.testing import fault_plan, faulty_pod  # noqa: F401  (fixtures)

    def test_survivors_learn_of_a_death(fault_plan, faulty_pod):
        plan = fault_plan({"kind": "kill", "rank": 1, "at_ps": 5_000_000})
        pod = faulty_pod(4, "app.py", plan)
        assert pod.faults[0]["fired"] and pod.reports[0]["lost"] == [1]

The program calls `emulator.testing.report(**values)`; the last call of each rank counts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import emulator
from emulator.errors import SuperpodError, UsageError
from emulator.faults import Fault, FaultPlan

try:
    import pytest
except ImportError as error:  # pragma: no cover
    raise UsageError("emulator.testing needs pytest: pip install pytest") from error

__all__ = ["FaultyRun", "fault_plan", "faulty_pod", "report", "run_pod"]

REPORTS_KEY = "SUPERPOD_TEST_REPORTS"


def report(**values: Any) -> None:
    """Hand JSON values of this rank to the test."""
    path = Path(os.environ[REPORTS_KEY]) / f"{emulator.rank()}.json"
    path.write_text(json.dumps(values))


@dataclass(frozen=True)
class FaultyRun:
    """How a run under faults went.

    Attributes:
        code: exit code of `superpod run`.
        stdout, stderr: what it printed.
        reports: what each rank reported, by rank; ranks that did not are left out.
        faults: the plan's log: kind, owner, fired, and rank, fired_ps, undone_ps where it fired.
    """

    code: int
    stdout: str
    stderr: str
    reports: dict[int, dict[str, Any]]
    faults: list[dict[str, Any]]


def run_pod(
    num_ranks: int, program: str | Path, plan: FaultPlan, folder: Path, seed: int = 0, timeout_s: float = 60
) -> FaultyRun:
    """Run a program (a path, or its text) on `num_ranks` ranks under a plan; files go to `folder`.

    Raises:
        SuperpodError: it did not end within `timeout_s` host seconds.
    """
    (folder / "reports").mkdir(parents=True)
    path = Path(program) if "\n" not in str(program) else folder / "program.py"
    if path != Path(str(program)):
        path.write_text(str(program))
    (folder / "plan.toml").write_text(plan.to_toml())
    words = ["run", "-n", str(num_ranks), "--seed", str(seed), "--faults", str(folder / "plan.toml")]
    command = [str(Path(sys.executable).parent / "superpod"), *words, "--json", str(folder / "run.json")]
    environment = os.environ | {REPORTS_KEY: str(folder / "reports")}
    try:
        done = subprocess.run(
            [*command, str(path)], env=environment, capture_output=True, text=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        raise SuperpodError(f"{path}: did not end within {timeout_s} s under {plan.to_toml()}") from None
    files = (folder / "reports").glob("*.json")
    reports = {int(file.stem): json.loads(file.read_text()) for file in files}
    out = folder / "run.json"
    faults = json.loads(out.read_text()).get("faults", []) if out.exists() else []
    return FaultyRun(done.returncode, done.stdout, done.stderr, reports, faults)


@pytest.fixture
def fault_plan() -> Callable[..., FaultPlan]:
    """Make a plan: `fault_plan({...}, {...}, seed=7)`."""

    def make(*faults: Fault | dict[str, Any], seed: int = 0) -> FaultPlan:
        return FaultPlan(faults, seed)

    return make


@pytest.fixture
def faulty_pod(tmp_path: Path) -> Callable[..., FaultyRun]:
    """Run a program on real ranks under a plan: `faulty_pod(4, "app.py", plan)`; see `run_pod`."""
    count = 0

    def run(num_ranks: int, program: str | Path, plan: FaultPlan, **options: Any) -> FaultyRun:
        nonlocal count
        count += 1
        return run_pod(num_ranks, program, plan, tmp_path / f"pod-{count}", **options)

    return run
