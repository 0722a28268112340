"""Survivors learn of deaths together: who subscribed is told of the same dead at one virtual time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "programs" / "membership.py"


def _reports(folder: Path, engine: str) -> dict[int, Any]:
    folder.mkdir()
    superpod = str(Path(sys.executable).parent / "superpod")
    environment = os.environ | {
        "SUPERPOD_TEST_REPORTS": str(folder),
        "SUPERPOD_CONFIG": json.dumps({"engine": engine}),
    }
    command = [superpod, "run", "-n", "4", "--keep-going", str(PROGRAM)]
    subprocess.run(command, env=environment, capture_output=True, timeout=90, check=False)
    return {int(path.stem): json.loads(path.read_text()) for path in folder.glob("*.json")}


def test_two_deaths_one_while_the_others_recover(tmp_path: Path) -> None:
    """Found by it: a change that resumes each rank at its own clock; one that tells the dead of now, not
    those agreed on (the second death would then show in the first change of some ranks)."""
    told = {engine: _reports(tmp_path / engine, engine) for engine in ("c", "python")}
    for reports in told.values():
        assert sorted(reports) == [0, 3]
        assert reports[0] == reports[3]
        first, second = reports[0]["seen"]
        assert first[1:] == [[2], 1] and second[1:] == [[1, 2], 2]
        assert reports[0]["tags"] == [0, 3] and first[0] < second[0] < reports[0]["now"]
    assert told["c"] == told["python"]


def test_without_subscription_a_death_is_still_an_error(tmp_path: Path) -> None:
    program = tmp_path / "plain.py"
    program.write_text(PROGRAM.read_text().replace("device.engine.subscribe()", ""))
    superpod = str(Path(sys.executable).parent / "superpod")
    environment = os.environ | {"SUPERPOD_TEST_REPORTS": str(tmp_path)}
    command = [superpod, "run", "-n", "4", "--keep-going", str(program)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode and "lost: ranks [2]" in done.stderr + done.stdout
    if list(tmp_path.glob("*.json")):
        pytest.fail("a rank went on without its peer")
