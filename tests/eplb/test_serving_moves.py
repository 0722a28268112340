"""Experts move while a pod serves: tokens and logits are the reference's, idle ranks or not.

Fails where a rank computes with other bytes than those that came over the fabric (`install_expert` that
zeroes its weights), where the tables of ranks differ (`between_steps` not called on idle ranks), and where
rows go to a slot out of use (`place` before the weights are there).
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(120)]
ROOT = Path(__file__).parents[2]
LINES = [(0, 24, 24), (0, 40, 24), (700, 24, 8)]
"""ms of arrival, prompt and output of each request: one or two of four ranks are without work at any time."""


def replay(folder: Path, *words: str, code: int = 0) -> tuple[dict[str, Any], str]:
    trace = "".join(
        json.dumps({"timestamp": t, "input_length": p, "output_length": o, "hash_ids": [i]}) + "\n"
        for i, (t, p, o) in enumerate(LINES)
    )
    (folder / "trace.jsonl").write_text(trace)
    command = ["-n", "4", "--trace", "trace.jsonl", "--layers-executed", "5", "--redundant-experts", "4"]
    command += ["--requests", "3"]
    done = subprocess.run(
        [sys.executable, "-m", "launch.cli", "replay", *command, "--no-memory-check", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == code, done.stdout + done.stderr
    found = folder / "found.json"
    return (json.loads(found.read_text()) if found.exists() else {}), done.stderr


def test_tokens_are_the_references_before_during_and_after_a_move(tmp_path: Path) -> None:
    words = "--eplb xdeepserve --eplb-step-interval 4 --set vpc.storage_gb_per_s=100 --check-reference"
    result, _ = replay(tmp_path, *words.split(), "--json", "found.json")
    assert result["tokens_equal_reference"] is True
    assert all(result["invariants"].values()), result["invariants"]
    told = result["eplb"]
    assert told["rounds_completed"] >= 1 and told["moves"] > 0 and told["moved_bytes"] > 0
    for r in (r for r in told["rounds"] if "restored_ps" in r):
        order = [r[f"{name}_ps"] for name in ("reported", "planned", "disabled", "loaded", "restored")]
        assert order == sorted(order) and len(set(order)) == 5
        assert r["planned_ps"] + r["prefetch_ps"] <= r["disabled_ps"]
        assert r["disabled_ps"] + r["load_ps"] <= r["loaded_ps"]
        assert r["imbalance_after"] <= r["imbalance_before"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--eplb best", "--eplb best: choose xdeepserve or deepseek"),
        ("--eplb-step-interval 4", "give --eplb as well"),
        ("--eplb xdeepserve --eplb-step-interval 0", "--eplb-step-interval 0"),
        ("--eplb xdeepserve --redundant-experts 0", "give --redundant-experts as well"),
    ],
)
def test_what_cannot_be_balanced_is_refused(tmp_path: Path, words: str, says: str) -> None:
    _, stderr = replay(tmp_path, *words.split(), code=2)
    assert says in stderr and stderr.count("\n") == 1
