"""`superpod replay --mtp`: plain decoding's tokens and logits over real ranks, together with a paged cache,
prefixes found, preemptions and experts that move; drafts counted; refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launch.cli import main
from serving.model.checkpoint import make_checkpoint
from serving.model.config import PRESETS

EVERYTHING = [
    *("--enable-prefix-caching", "--num-gpu-blocks-override", "19", "--max-num-batched-tokens", "1024"),
    *("--eplb", "xdeepserve", "--eplb-step-interval", "3", "--redundant-experts", "6"),
    *("--set", "vpc.storage_gb_per_s=1000", "--load-balancing", "round-robin"),
]


def replay(folder: Path, priced: str, *options: str) -> Any:
    make_checkpoint(
        folder / "model", PRESETS["tiny"].model_copy(update={"num_nextn_predict_layers": 2}), seed=5
    )
    rows = [
        {"timestamp": 0, "input_length": 1664, "output_length": 16, "hash_ids": [1, 2, 10 + i, 20 + i]}
        for i in range(5)
    ]
    (folder / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["replay", "-n", "3", "--requests", "5", "--trace", str(folder / "trace.jsonl")]
    words += ["--model", str(folder / "model"), "--priced-as", priced, "--token-scale", "64"]
    words += ["--no-memory-check", "--check-reference", "--json", str(folder / "out.json"), *options]
    done = subprocess.run(
        [sys.executable, "-m", "launch.cli", *words], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "out.json").read_text())


@pytest.mark.multirank
@pytest.mark.timeout(240)
def test_drafts_change_no_bit(tmp_path: Path, tiny_priced: str) -> None:
    """The reference decodes plainly. Fails when a rejected draft's row counts or stays cached, an idle rank
    leaves out a draft layer's exchange (deadlock), or a draft layer keeps its old table of experts."""
    result = replay(tmp_path, tiny_priced, "--mtp", "2", "--mtp-acceptance", "0.8,0.5", *EVERYTHING)
    assert result["tokens_equal_reference"] and all(result["invariants"].values())
    found = result["speculation"]
    assert (found["drafts"], found["configured_acceptance"]) == ("configured", [0.8, 0.5])
    assert 0.5 < found["acceptance"][0] < 1 and 1.3 < found["tokens_per_step"] < 2.6
    assert found["steps"] < found["tokens"] <= 5 * 15 and found["rejected"] > 0
    assert result["cache"]["hit"] > 0 and result["cache"]["preemptions"] > 0
    assert result["eplb"]["moves"] > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--mtp-acceptance", "0.9"], "--mtp-acceptance 0.9: there are no drafts; give --mtp 1 or --mtp 2"),
        (["--mtp", "2", "--mtp-acceptance", "0.9"], "give 2 numbers from 0 to 1"),
        (["--mtp", "3"], "Invalid value for '--mtp'"),
        (["--quantization", "fp8"], "--quantization fp8: only int8 is supported"),
        (["--ep-size", "3"], "--ep-size 3: all 2 ranks share the experts"),
    ],
)
def test_what_does_not_go_together_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", "-n", "2", "--no-memory-check", *words]) == 2
    assert message in capsys.readouterr().err
