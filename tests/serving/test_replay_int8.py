"""`superpod replay --quantization int8` over real ranks: an INT8 reference's bits, bytes to the last one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from emulator.rows import HEADER_BYTES
from launch.cli import main
from serving.model.config import PRESETS
from serving.model.int8_error import BOUND


@pytest.mark.multirank
@pytest.mark.timeout(240)
def test_ranks_give_the_int8_reference_s_bits(tmp_path: Path, tiny_model: str, tiny_priced: str) -> None:
    """Three ranks, experts everywhere. Fails when rows travel as float32 (bytes), or INT8 is used on one side
    only (bits)."""
    out, tiny = tmp_path / "out.json", PRESETS["tiny"]
    words = ["replay", "-n", "3", "--requests", "4", "--model", tiny_model, "--priced-as", tiny_priced]
    words += ["--token-scale", "64", "--max-output", "4", "--no-memory-check", "--check-reference"]
    words += ["--quantization", "int8", "--json", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "launch.cli", *words], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(out.read_text())
    assert result["tokens_equal_reference"] and all(result["invariants"].values())
    rows, bytes_sent = (result["work"][f"functional_{what}_sent"] for what in ("rows", "bytes"))
    assert bytes_sent == rows * (2 * HEADER_BYTES + tiny.hidden_size + 4 * tiny.hidden_size)
    facts = result["quantization"]
    assert facts["row_bytes"] == {"dispatch": 32, "combine": 128}
    assert (facts["kv_bytes_per_token"], facts["kv_bytes_per_token_float32"]) == (3 * 52, 3 * 96)
    assert 0 < facts["logit_error"]["relative_rms"] <= BOUND
    assert facts["logit_error"]["positions"] == result["functional_tokens"]


def test_another_quantisation_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "-n", "2", "--quantization", "fp4"]) == 2
    assert "--quantization fp4: only int8 is supported" in capsys.readouterr().err
