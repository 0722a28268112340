"""`superpod bench` end to end: parsers accept the text, the figures are the profile's closed forms."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import parsers
import pytest

from emulator.profile import LABELS, load_profile

SUPERPOD = Path(sys.executable).parent / "superpod"
pytestmark = pytest.mark.multirank
CALL_US = 0.005


def bench(*words: str, code: int = 0) -> str:
    ran = subprocess.run([SUPERPOD, "bench", *words], capture_output=True, text=True, timeout=100)
    assert ran.returncode == code, ran.stderr
    return ran.stdout if not code else ran.stderr


@pytest.mark.parametrize(
    ("words", "test"),
    [
        ("lat --op put", "Memory_Put Latency Test"),
        ("bw --op get --batch 4", "Memory_Get BW Test"),
        ("lat --path verbs --op send", "Send Latency Test"),
        ("rate --path mpi --op send --batch 4", "Send BW Test"),
    ],
)
def test_perftest_text_is_accepted(words: str, test: str) -> None:
    title, rows = parsers.perftest(bench(*words.split(), "--sizes", "8:64", "-n", "2"))
    assert title == test and [row["MsgSize"] for row in rows] == [8, 16, 32, 64]


@pytest.mark.parametrize(
    "words", ["lat --op get", "bw --path verbs --op write --batch 4", "rate --path mpi --batch 4"]
)
def test_osu_text_is_accepted(words: str) -> None:
    title, rows = parsers.osu(bench(*words.split(), "--sizes", "8,1K", "-n", "2", "--format", "osu"))
    assert title.startswith("OSU MPI") and [row["Size"] for row in rows] == [8, 1024]


@pytest.mark.parametrize(
    ("pair", "name"), [("same-chip", "chip"), ("same-node", "intra"), ("cross-node", "inter")]
)
def test_put_latency_is_the_profiles(pair: str, name: str, tmp_path: Path) -> None:
    """One way: two calls (put, wait), the link's latency, 512 bytes at its rate."""
    out = tmp_path / "rows.json"
    text = bench(*f"lat --op put --pair {pair} --sizes 512 --format json --json {out}".split())
    (row,) = json.loads(text)
    profile = load_profile("cloudmatrix384")
    latency, rate = profile.value(f"ub.latency_{name}_us"), profile.value(f"ub.write_{name}_gb_per_s")
    assert row["latency_us"] == pytest.approx(latency + 512 / rate / 1e3 + 2 * CALL_US, abs=0.0005)
    assert row["transactions"] == {"flag": 1} and row["label"] in LABELS
    assert json.loads(out.read_text()) == [row]


def test_work_requests_have_their_transactions_and_are_derived() -> None:
    (row,) = json.loads(bench("lat", "--path", "verbs", "--sizes", "4K", "--format", "json", "-n", "3"))
    assert row["transactions"] == {"completion": 1, "descriptor": 1, "doorbell": 1, "wqe_fetch": 1}
    assert row["label"] == "derived"


def test_four_gigabytes_do_not_overflow() -> None:
    """merthidayetoglu/CommBench #2, open-mpi/ompi #5383: counts beyond 2^31 bytes."""
    (row,) = json.loads(bench("lat", "--sizes", "4G", "--format", "json", "-n", "1", "--warmup", "0"))
    rate = load_profile("cloudmatrix384").value("ub.write_intra_gb_per_s")
    assert row["size_bytes"] == 1 << 32 and row["latency_us"] == pytest.approx(
        (1 << 32) / rate / 1e3, rel=1e-4
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("lat --op send", "put, get, put_signal, cas"),
        ("lat --pair near", "same-chip, same-node, cross-node"),
        ("lat --pod ib-hdr --pair same-chip", "same-node, cross-node"),
        ("lat --sizes 1Q", "--sizes"),
        ("fast", "lat, bw, rate"),
        ("lat --path mpi --engine dma", "--path mem"),
    ],
)
def test_bad_words_are_one_line(words: str, says: str) -> None:
    text = bench(*words.split(), code=2)
    assert says in text and text.count("\n") == 1
