"""Regions of a trace as bars, and the picture made of them."""

from pathlib import Path

import pytest

from emulator.errors import UsageError
from launch import traceplot
from launch.tracefile import Event

MS = 10**9


def call(name: str, rank: int, start_ms: int, end_ms: int, peer: int = -1, track: str = "calls") -> Event:
    return Event(rank, track, 0, name, start_ms * MS, end_ms * MS, {"peer": peer})


EVENTS = [
    call("compute", 0, 0, 4, peer=1),
    call("exchange", 0, 4, 9),
    call("compute", 1, 0, 6, peer=2),
    call("pull", 0, 5, 8, track="ingress"),
    call("rows", 0, 9, 9),
]


def test_bars_by_region_and_rank() -> None:
    found = traceplot.bars(EVENTS, 0.0, float("inf"))
    assert {name: dict(lines) for name, lines in found.items()} == {
        "attention": {0: [(0.0, 4.0)]},
        "experts": {1: [(0.0, 6.0)]},
        "exchange (transfer and waiting)": {0: [(4.0, 5.0)]},
    }


def test_bars_are_cut_to_the_span() -> None:
    found = traceplot.bars(EVENTS, 3.0, 5.0)
    assert dict(found["attention"]) == {0: [(3.0, 1.0)]}
    assert dict(found["exchange (transfer and waiting)"]) == {0: [(4.0, 1.0)]}


def test_a_picture_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traceplot, "read", lambda path: iter(EVENTS))
    assert traceplot.plot(Path("trace"), tmp_path / "out.png") == 2
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("out", "from_ms", "message"), [("a.png", 20.0, "no rank"), ("a.xyz", 0.0, "cannot write")]
)
def test_bad_input_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str, from_ms: float, message: str
) -> None:
    monkeypatch.setattr(traceplot, "read", lambda path: iter(EVENTS))
    with pytest.raises(UsageError, match=message):
        traceplot.plot(Path("trace"), tmp_path / out, from_ms)
