"""Iterations of decode and prefill on 8 ranks: exact virtual times, so that no price changes in silence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SUPERPOD = Path(sys.executable).parent / "superpod"
pytestmark = [pytest.mark.multirank, pytest.mark.sweep]
CASES = (
    "decode:xdeepserve:8:8:2048-4096",
    "decode:cloudmatrix-infer:8:8:4096-4352",
    "prefill:cloudmatrix-infer:8:1024:512",
)
LAYER_US = dict(zip(CASES, (1722.9764869166668, 2718.3343561666666, 5344.156859375), strict=True))
"""A MoE layer; in virtual time the same on every host."""


def test_layers_take_what_they_took(tmp_path: Path) -> None:
    """Mutations: a stream's work after the other's; a combine at dispatch's charges; jitter left out; the
    published cores for every case."""
    words = [word for case in CASES for word in ("--case", case)]
    out = tmp_path / "cases.json"
    ran = subprocess.run(
        [SUPERPOD, "calibrate", "--serving", *words, "--json", str(out)],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    told = json.loads(out.read_text())
    assert not told["rows"] and set(told["cases"]) == set(CASES)
    layers = {name: told["cases"][name]["layer_us"] for name in CASES}
    assert layers == pytest.approx(LAYER_US, rel=1e-12)
    streams = told["cases"][CASES[1]]
    longest = max(streams["attention_stream_us"], streams["moe_stream_us"])
    assert longest <= streams["layer_us"] / 2 * 1.02, "a half layer is as long as its longer stream"
    assert streams["layer_us"] / 2 <= streams["attention_stream_us"] + streams["moe_stream_us"]
