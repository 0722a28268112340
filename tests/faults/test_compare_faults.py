"""`superpod compare --faults`: what each of the three paths lets the application notice of one plan."""

import json
from pathlib import Path

import pytest

from emulator.faults import FaultPlan
from launch.cli import main

pytestmark = [pytest.mark.multirank, pytest.mark.sweep]
_US = 1_000_000


def test_one_plan_is_noticed_by_each_path_in_its_own_way(tmp_path: Path) -> None:
    """Fails where a path is not told of a death, or a fault of a link it does not use costs it something."""
    plan, out = tmp_path / "plan.toml", tmp_path / "out.json"
    faults = [
        {"kind": "link_down", "link": "die:1", "at_ps": 300 * _US, "duration_ps": 50 * _US},
        {"kind": "kill", "rank": 3, "at_ps": 600 * _US},
    ]
    plan.write_text(FaultPlan(faults).to_toml())
    assert main(["compare", "--faults", str(plan), "-n", "4", "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    told = {(row["path"], row["kind"]): (row["told"], row["rank"]) for row in found["notices"]}
    assert told == {
        ("windows", "link_down"): ("slower", 0),
        ("verbs", "link_down"): ("nothing", None),  # the RDMA plane goes another way
        ("messages", "link_down"): ("slower", 0),
        ("windows", "kill"): ("RankLostError", 2),
        ("verbs", "kill"): ("IBV_WC_RETRY_EXC_ERR", 2),
        ("messages", "kill"): ("RankLostError", 2),
    }
    assert all(40 < row["completed"] < row["of"] == 80 for row in found["paths"])


def test_a_fault_before_the_first_transfer_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Fails where ranks that are lost while lanes are made end with tracebacks."""
    plan = tmp_path / "plan.toml"
    plan.write_text(FaultPlan([{"kind": "kill", "rank": 1, "at_ps": 3 * _US}]).to_toml())
    assert main(["compare", "--faults", str(plan), "-n", "4"]) == 2
    lines = capfd.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and "verbs: fault 0 (kill) comes before the first transfer" in lines[0]
    nearest = int(lines[0].rpartition("at_ps = ")[2])
    plan.write_text(FaultPlan([{"kind": "kill", "rank": 1, "at_ps": nearest}]).to_toml())
    assert main(["compare", "--faults", str(plan), "-n", "4"]) == 0
