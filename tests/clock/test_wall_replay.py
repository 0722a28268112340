"""`superpod replay` under both clocks: the same answers, the same duration, and it is slept; `decode` too."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(130)]
REQUESTS = "".join(
    json.dumps({"timestamp": 0, "input_length": 16, "output_length": 2, "hash_ids": [i]}) + "\n"
    for i in range(4)
)


def replay(folder: Path, name: str, *words: str) -> dict[str, Any]:
    (folder / "trace.jsonl").write_text(REQUESTS)
    command = ["replay", "-n", "2", "--trace", "trace.jsonl", "--requests", "4", "--max-output", "2"]
    return served(folder, name, *command, *words)


def served(folder: Path, name: str, *words: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "launch.cli", *words, "--no-memory-check", "--json", name],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=115,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads((folder / name).read_text())
    return result


def test_a_replay_answers_the_same_and_sleeps_its_duration_once(tmp_path: Path) -> None:
    """Fails on a build in which a decided call does not sleep (`sp_wall_end` without `sleep_until`)."""
    dilation = 20.0
    virtual = replay(tmp_path, "virtual.json")
    wall = replay(tmp_path, "wall.json", "--clock", "wall", "--dilation", f"{dilation:g}", "--grace-s", "60")
    for same in (
        "tokens_sha256",
        "logits_sha256",
        "trace_sha256",
        "virtual_duration_s",
        "ttft_ms",
        "e2el_ms",
    ):
        assert wall[same] == virtual[same], same
    report, slept_s = wall["wall"], dilation * virtual["virtual_duration_s"]
    assert report["kept"]["moved"] == 0
    assert report["achieved_duration_s"] >= wall["virtual_duration_s"]
    assert wall["host"]["ranks_wall_s"] >= slept_s


@pytest.mark.sweep
def test_decode_sleeps_its_steps_and_not_the_filling(tmp_path: Path) -> None:
    """Fails (does not end in time) on a build that starts the clock before the contexts are filled."""
    words = ["decode", "-n", "2", "--batch", "16", "--context", "4096", "--steps", "1"]
    wall = served(tmp_path, "wall.json", *words, "--clock", "wall", "--dilation", "60", "--grace-s", "60")
    (iteration,) = (row["emulated"] for row in wall["rows"] if row["name"] == "iteration")
    steps_s = 60 * 2 * iteration / 1e3  # one that is measured and one before it
    assert 60 * wall["virtual_duration_s"] > 300 > 10 * steps_s
    assert wall["host"]["ranks_wall_s"] >= steps_s and wall["wall"]["kept"]["moved"] == 0
