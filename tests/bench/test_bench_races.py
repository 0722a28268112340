"""Our benchmarks pass the race checker (tactcomplabs/circustent #8), and one that did not would be caught."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from memsem.bench import BenchSpec

SUPERPOD = Path(sys.executable).parent / "superpod"
pytestmark = pytest.mark.multirank
ONE_PLACE = """
import sys
from memsem.bench.paths import MemPath
from memsem.bench.runner import main
start = MemPath._start
MemPath._start = lambda self, number, data, size: start(self, 0, data, size)
main(sys.argv[1:])
"""


def checked(*program: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    command = [SUPERPOD, "run", "-n", "2", "--check-races", *program]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tmp_path)


def words(kind: str, op: str, tmp_path: Path) -> tuple[str, str]:
    spec = BenchSpec(kind, op, "mem", "mte", "same-chip", (8,) if op == "cas" else (8, 4096), 3, 1, 8)
    return json.dumps(dataclasses.asdict(spec)), str(tmp_path / "samples.json")


@pytest.mark.parametrize(
    ("kind", "op"), [("lat", "put"), ("bw", "put"), ("bw", "put_signal"), ("bw", "get"), ("rate", "cas")]
)
def test_no_race_in_a_benchmark(kind: str, op: str, tmp_path: Path) -> None:
    ran = checked("-m", "memsem.bench", *words(kind, op, tmp_path), tmp_path=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_no_race_in_a_comparison(tmp_path: Path) -> None:
    spec = {"op": "halo", "sizes": [64], "repeat": 4, "seed": 0, "paths": ["mem"]}
    ran = checked("-m", "collectives.compare", json.dumps(spec), str(tmp_path), tmp_path=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_puts_to_one_place_are_caught(tmp_path: Path) -> None:
    program = tmp_path / "one_place.py"
    program.write_text(ONE_PLACE)
    ran = checked(str(program), *words("bw", "put", tmp_path), tmp_path=tmp_path)
    assert ran.returncode == 1 and "unordered" in ran.stdout + ran.stderr
