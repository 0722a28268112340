"""Benchmark text is accepted by parsers made from the real tools' headers, values and units right."""

from __future__ import annotations

import json

import parsers
import pytest

from emulator.errors import UsageError
from emulator.profile import load_profile
from memsem.bench import BenchSpec, Sample, parse_sizes, render
from memsem.bench.labels import label_of, path_label


def spec(kind: str = "lat", op: str = "put", path: str = "mem", **more: object) -> BenchSpec:
    sizes = (8,) if op == "cas" else (8, 1 << 20)
    return BenchSpec(kind, op, path, "mte", "same-node", sizes, **more)  # type: ignore[arg-type]


LATENCIES = [Sample(8, (1_300_000, 1_400_000), 1), Sample(1 << 20, (9_000_000,), 1)]
BATCHES = [Sample(1 << 20, (500_000_000, 400_000_000), 64)]
"""64 MiB in 500 and in 400 µs."""


@pytest.mark.parametrize(
    ("op", "path", "name"),
    [("put", "mem", "Memory_Put"), ("write", "verbs", "RDMA_Write"), ("send", "mpi", "Send")],
)
def test_perftest_latency(op: str, path: str, name: str) -> None:
    title, rows = parsers.perftest(render(spec("lat", op, path), LATENCIES, "perftest"))
    assert title == f"{name} Latency Test" and [row["MsgSize"] for row in rows] == [8, 1 << 20]
    assert rows[0]["n_iterations"] == 2 and rows[0]["t_min"] == 1.3 and rows[0]["t_max"] == 1.4
    assert rows[0]["t_avg"] == 1.35 and rows[0]["t_stdev"] == 0.05 and rows[0]["t_99"] == 1.4


def test_perftest_bandwidth_is_mib() -> None:
    title, rows = parsers.perftest(render(spec("bw"), BATCHES, "perftest"))
    assert title == "Memory_Put BW Test" and rows[0]["n_iterations"] == 128
    assert rows[0]["BW_peak"] == pytest.approx(64 / 400e-6, abs=0.01)
    assert rows[0]["BW_average"] == pytest.approx(128 / 900e-6, abs=0.01)
    assert rows[0]["MsgRate"] == pytest.approx(128 / 900e-6 / 1e6, abs=1e-6)


@pytest.mark.parametrize(("op", "path"), [("put", "mem"), ("read", "verbs"), ("send", "mpi"), ("cas", "mem")])
def test_osu_latency(op: str, path: str) -> None:
    title, rows = parsers.osu(render(spec("lat", op, path), LATENCIES, "osu"))
    assert " Latency Test v" in title
    assert rows[0] == {"Size": 8, "Latency (us)": 1.35} and rows[1]["Latency (us)"] == 9


def test_osu_bandwidth_is_mb() -> None:
    _, rows = parsers.osu(render(spec("bw"), BATCHES, "osu"))
    assert rows[0]["Bandwidth (MB/s)"] == pytest.approx(128 * (1 << 20) / 900e-6 / 1e6, abs=0.01)


def test_osu_message_rate() -> None:
    title, rows = parsers.osu(render(spec("rate", "send", "mpi"), BATCHES, "osu"))
    assert title.startswith("OSU MPI Multiple Bandwidth / Message Rate Test v")
    assert rows[0]["Messages/s"] == pytest.approx(128 / 900e-6, abs=0.01)


def test_json_rows_have_exactly_these_keys() -> None:
    rows = json.loads(render(spec(), LATENCIES, "json"))
    assert [list(row) for row in rows] == [
        ["size_bytes", "latency_us", "bandwidth_GBps", "transactions", "label"]
    ] * 2
    assert rows[1]["bandwidth_GBps"] == pytest.approx((1 << 20) / 9000, rel=1e-6)


def test_sizes() -> None:
    assert parse_sizes("8:64") == (8, 16, 32, 64) and parse_sizes("2") == (2,)
    assert parse_sizes("8:16M")[-1] == 16 << 20 and parse_sizes("1K,3K") == (1024, 3072)
    assert parse_sizes("4G") == (1 << 32,) and parse_sizes("8:20") == (8, 16, 20)


def test_labels_are_the_weakest_of_the_numbers_behind_a_figure() -> None:
    profile = load_profile("cloudmatrix384")
    assert label_of(profile, spec("lat")) == profile.entry("ub.latency_intra_us").label
    assert label_of(profile, spec("lat", "write", "verbs")) == "derived" == path_label(profile, "mpi")
    changed = load_profile("cloudmatrix384", {"ub.latency_intra_us": "4"})
    assert label_of(changed, spec("lat")) == "override" == path_label(changed, "mem")
    assert label_of(changed, spec("lat", "write", "verbs")) == "derived"


def test_what_is_really_moved_is_bounded() -> None:
    assert spec("bw", "send", "mpi").in_flight(1 << 20) == 64 and spec("lat").in_flight(8) == 1
    assert spec("bw", "send", "mpi").in_flight(1 << 24) == 4 and spec("bw").in_flight(1 << 24) == 64
    assert spec("bw", "write", "verbs").in_flight(1 << 30) == 1


@pytest.mark.parametrize("text", ["", "8:", "x", "64:8", "0:8", "-8", "1T"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(UsageError, match="--sizes"):
        parse_sizes(text)


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"op": "write"}, "put, get, put_signal, cas"),
        ({"path": "mpi", "op": "put"}, "send"),
        ({"engine": "sdma"}, "mte, dma"),
        ({"path": "verbs", "op": "write", "engine": "dma"}, "--path mem"),
        ({"pair": "near"}, "same-chip"),
        ({"op": "cas"}, "--sizes 8"),
        ({"kind": "latency"}, "lat, bw, rate"),
        ({"iterations": 0}, "at least 1"),
    ],
)
def test_bad_specs_name_the_choices(values: dict[str, object], word: str) -> None:
    given = {"kind": "lat", "op": "put", "path": "mem", "engine": "mte", "pair": "same-node", **values}
    with pytest.raises(UsageError, match=word):
        BenchSpec(sizes=(8, 16), **given)  # type: ignore[arg-type]
