"""`superpod compare` end to end: three paths, equal bytes, the transactions that the contracts predict."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from collectives.compare.report import predicted_dispatch
from collectives.compare.workloads import Setting, make
from launch.cli import main

SUPERPOD = Path(sys.executable).parent / "superpod"
EAGER = 8192
pytestmark = pytest.mark.multirank


def compare(*words: str, folder: Path, code: int = 0) -> tuple[str, dict[str, Any]]:
    out = folder / "compare.json"
    command = [SUPERPOD, "compare", *words, "--json", str(out)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert ran.returncode == code, ran.stderr
    return ran.stdout + ran.stderr, json.loads(out.read_text()) if out.exists() else {}


@pytest.mark.parametrize(
    ("op", "ranks", "sizes"),
    [
        ("pingpong", 2, "8,64K"),
        ("halo", 4, "64,16K"),
        ("kv-transfer", 4, "4K,64K"),
        ("dispatch", 4, "512,7680"),
    ],
)
@pytest.mark.parametrize("delivery", [pytest.param("natural", marks=pytest.mark.sweep), "adversarial"])
def test_three_paths_give_the_same_bytes(
    op: str, ranks: int, sizes: str, delivery: str, tmp_path: Path
) -> None:
    words = f"--op {op} -n {ranks} --sizes {sizes} --delivery {delivery}".split()
    text, found = compare(*words, folder=tmp_path)
    assert found["byte_equal"] and "results equal byte for byte" in text
    assert {(row["path"], row["size"]) for row in found["rows"]} == {
        (path, row["size"]) for path in ("mem", "verbs", "mpi") for row in found["rows"]
    }
    assert all(row["virtual_ps"] > 0 and row["host_calls"] > 0 for row in found["rows"])


def check_dispatch(num_ranks: int, size: int, tmp_path: Path) -> None:
    text, found = compare(*f"--op dispatch -n {num_ranks} --sizes {size}".split(), folder=tmp_path)
    setting = Setting(num_ranks, size, 4)
    ranks = [make("dispatch", setting, rank) for rank in range(num_ranks)]
    sizes = [send.data.size for rank in ranks for send in rank.sends(0)]
    predicted = predicted_dispatch(num_ranks, sizes, EAGER)
    rows = {row["path"]: row for row in found["rows"]}
    for path, kinds in predicted.items():
        counted = rows[path]["transactions"]
        assert {kind: counted.get(kind, 0) for kind in kinds} == kinds, path
    assert rows["mem"]["transactions"] == {"flag": num_ranks**2} and rows["mem"]["control_bytes"] == 0
    assert rows["verbs"]["transactions"]["doorbell"] == num_ranks**2
    assert {row["payload_bytes"] for row in rows.values()} == {sum(sizes)} and found["byte_equal"]


@pytest.mark.parametrize("size", [512, 7680])
def test_dispatch_has_the_predicted_transactions(size: int, tmp_path: Path) -> None:
    check_dispatch(4, size, tmp_path)


@pytest.mark.sweep
def test_dispatch_at_sixty_four_ranks(tmp_path: Path) -> None:
    check_dispatch(64, 1920, tmp_path)


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_picture(suffix: str, tmp_path: Path) -> None:
    picture = tmp_path / f"picture.{suffix}"
    compare("--op", "pingpong", "--sizes", "8:64", "--plot", str(picture), folder=tmp_path)
    assert picture.stat().st_size > 1000


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--op gather", "halo"),
        ("--op kv-transfer -n 3", "even number of ranks"),
        ("--op pingpong --repeat 0", "1 to 10000 round trips"),
        ("--op halo --repeat 1000000000", "1 to 10000 steps"),
        ("--op pingpong --sizes 100G", "at most 256M"),
        ("--op kv-transfer --repeat 10000", "its buffers take 62.9 GB a rank"),
        ("--op halo -n 2 --sizes 3,8", "multiple of 4"),
        ("--op dispatch -n 0", "at least 1 rank"),
        ("--op halo --paths mem,mem", "named twice"),
        ("--op halo -n 2 --sizes 6", "multiple of 4"),
        ("--op halo -n 2 --plot a.txt", ".png or .svg"),
        ("--op halo -n 2 --paths mem,tcp", "mem, verbs, mpi"),
    ],
)
def test_bad_words_are_one_line(words: str, says: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *words.split()]) == 2
    text = "".join(capfd.readouterr())
    assert says in text and text.count("\n") == 1
