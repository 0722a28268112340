"""The table, the winners and the picture of a comparison, from made-up measurements."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest
from rich.console import Console

from collectives.compare.plot import plot
from collectives.compare.report import Comparison, Measured, bound_by, predicted_dispatch, table
from emulator.errors import UsageError


def row(path: str, size: int, us: float, **more: object) -> Measured:
    values = {"payload_bytes": 2 * size, "digests": ("a", "b"), "control_bytes": 0, "messages": 2, **more}
    return Measured(path, size, round(us * 1e6), transactions={"flag": 2}, host_calls=4, bound_by="latency",
                    **values)  # type: ignore[arg-type]  # fmt: skip


ROWS = [row("mem", 8, 1), row("verbs", 8, 2), row("mpi", 8, 3), row("mem", 64, 4), row("verbs", 64, 3)]
ROWS += [row("mpi", 64, 5), row("mem", 1024, 5), row("verbs", 1024, 6), row("mpi", 1024, 7)]
RUN = Comparison("halo", 2, tuple(ROWS))


def test_winner_by_size() -> None:
    assert [RUN.winner(size) for size in RUN.sizes] == ["mem", "verbs", "mem"]
    assert RUN.winning_sizes() == {"mem": "8 B, 1 KiB", "verbs": "64 B", "mpi": "none"}
    always = Comparison("halo", 2, tuple(r for r in ROWS if r.path == "mpi"))
    assert always.winning_sizes()["mpi"] == "8 B to 1 KiB"


def test_equal_results_and_bytes_are_demanded() -> None:
    assert RUN.unequal() == [] and RUN.as_dict()["byte_equal"]
    digests = [dataclasses.replace(r, digests=("a", "c")) if r.path == "mpi" else r for r in ROWS]
    found = Comparison("halo", 2, tuple(digests)).unequal()
    assert len(found) == 3 and found[0] == "size 8: results of mpi differ from mem on ranks [1]"
    fewer = [dataclasses.replace(r, payload_bytes=1) if r.path == "verbs" else r for r in ROWS]
    wrong = Comparison("halo", 2, tuple(fewer)).unequal()
    assert wrong[0] == "size 8: verbs put 1 payload and 0 control bytes on links, not 16 and 0"
    more = [
        dataclasses.replace(r, control_bytes=128, control_each=64) if r.path == "mpi" else r for r in ROWS
    ]
    assert Comparison("halo", 2, tuple(more)).unequal() == []
    more[2] = dataclasses.replace(more[2], control_bytes=129)
    assert "129 control bytes on links, not 16 and 128" in Comparison("halo", 2, tuple(more)).unequal()[0]


def test_table_tells_everything() -> None:
    out = io.StringIO()
    labelled = dataclasses.replace(RUN, labels={"mem": "published", "verbs": "derived"})
    Console(file=out, width=160).print(table(labelled))
    text = out.getvalue()
    for word in (
        "halo, 2 ranks",
        "mem *",
        "flag 2",
        "latency",
        "1 KiB",
        "memory windows: 8 B, 1 KiB",
        "verbs derived",
    ):
        assert word in text, word


def test_bound_by_names_the_busiest_port() -> None:
    names = ["ub egress", "ub ingress"]
    assert bound_by([[10, 0], [5, 90]], names, 100) == "ub ingress of rank 1 (90%)"
    assert bound_by([[10, 0], [5, 40]], names, 100) == "latency" == bound_by([], names, 0)
    assert bound_by([[45, 0], [45, 44]], names, 100) == "ub egress and ingress of rank 1 (89%)"


def test_predicted_transactions_of_a_dispatch() -> None:
    sizes = [0, 100, 8192, 8193]
    found = predicted_dispatch(2, sizes, 8192)
    assert found["mem"] == {"flag": 4}
    assert found["verbs"] == {"descriptor": 8, "completion": 8}
    assert found["mpi"] == {"match": 4, "copy": 3, "handshake": 3}
    assert predicted_dispatch(64, [0] * 4096, 8192)["mem"] == {"flag": 4096}


@pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml")])
def test_plot(name: str, start: bytes, tmp_path: Path) -> None:
    plot(RUN, tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)


def test_plot_of_no_format(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.png or \.svg"):
        plot(RUN, tmp_path / "a.txt")
