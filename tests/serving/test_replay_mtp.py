"""`superpod replay --mtp`: plain decoding's tokens and logits over real ranks, drafts counted; refusals."""

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


def replay(folder: Path, priced: str, *options: str) -> Any:
    make_checkpoint(
        folder / "model", PRESETS["tiny"].model_copy(update={"num_nextn_predict_layers": 2}), seed=5
    )
    words = ["replay", "-n", "3", "--requests", "5", "--model", str(folder / "model"), "--priced-as", priced]
    words += ["--token-scale", "64", "--max-output", "12", "--no-memory-check", "--check-reference"]
    words += ["--json", str(folder / "out.json"), *options]
    done = subprocess.run(
        [sys.executable, "-m", "launch.cli", *words], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "out.json").read_text())


@pytest.mark.multirank
@pytest.mark.timeout(240)
def test_drafts_change_no_bit(tmp_path: Path, tiny_priced: str) -> None:
    """The reference decodes plainly. Fails when a rejected draft's row counts or stays cached, or an idle
    rank leaves out a draft layer's exchange (deadlock)."""
    result = replay(tmp_path, tiny_priced, "--mtp", "2", "--mtp-acceptance", "0.8,0.5")
    assert result["tokens_equal_reference"] and all(result["invariants"].values())
    found = result["speculation"]
    assert (found["drafts"], found["configured_acceptance"]) == ("configured", [0.8, 0.5])
    assert 0.5 < found["acceptance"][0] < 1 and 1.3 < found["tokens_per_step"] < 2.6
    outputs = sum(len(request["tokens"]) for request in result["requests"]) if "requests" in result else None
    if outputs is not None:
        assert found["tokens"] == outputs - 5  # all but each request's first
    assert found["steps"] < found["tokens"] and found["rejected"] > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--mtp-acceptance", "0.9"], "--mtp-acceptance 0.9: there are no drafts; give --mtp 1 or --mtp 2"),
        (["--mtp", "2", "--mtp-acceptance", "0.9"], "give 2 numbers from 0 to 1"),
        (["--mtp", "1", "--enable-prefix-caching"], "--mtp 1 does not go with a paged KV cache"),
        (["--mtp", "1", "--max-num-seqs", "8", "--max-num-batched-tokens", "9"], "8 requests with 1 drafts"),
    ],
)
def test_what_does_not_go_together_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", "-n", "2", "--no-memory-check", *words]) == 2
    assert message in capsys.readouterr().err
