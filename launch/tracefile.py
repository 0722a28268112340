"""Traces on disk: read the records ranks wrote, write Perfetto/Chrome JSON, find the first difference of two.

A run with a trace directory leaves `rank-<r>.trace` (one record per call, in program order) and
`ports.trace` (one per reservation of a port). The JSON keeps every field in picoseconds under "args", so
that nothing is lost: two exported files compare as exactly as two directories. One process per rank; one
thread for its calls and one per port.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from emulator.engine.api import (
    KIND_GET,
    KIND_META,
    KIND_PULL,
    KIND_PUT,
    PORT_EGRESS,
    PORT_INGRESS,
    PORT_LOCAL,
    RECORD_DTYPE,
)
from emulator.errors import UsageError
from emulator.tracing import TRACE_DTYPE, Op

_PORTS = {PORT_EGRESS: "egress", PORT_INGRESS: "ingress", PORT_LOCAL: "local"}
_KINDS = {KIND_PUT: "put", KIND_GET: "get", KIND_META: "metadata", KIND_PULL: "pull"}
_PS_PER_US = 1e6


@dataclass(frozen=True)
class Event:
    """One span of a track. `args` holds what else was recorded; times are virtual picoseconds."""

    rank: int
    track: str
    index: int
    name: str
    start_ps: int
    end_ps: int
    args: dict[str, int]

    def __str__(self) -> str:
        rest = ", ".join(f"{k} {v}" for k, v in self.args.items())
        where = f"rank {self.rank} {self.track} #{self.index}"
        return f"{where}: {self.name} {self.start_ps}..{self.end_ps} ps, {rest}"


def _records(path: Path, dtype: np.dtype[Any]) -> np.ndarray[Any, np.dtype[Any]]:
    if path.stat().st_size % dtype.itemsize:
        raise UsageError(f"{path}: cut short, its size is no multiple of {dtype.itemsize} bytes")
    return np.fromfile(path, dtype)


def _op_name(op: int) -> str:
    try:
        return Op(op).name.lower()
    except ValueError:
        return f"op {op}"


def _rank_events(path: Path, rank: int) -> Iterator[Event]:
    for i, r in enumerate(_records(path, TRACE_DTYPE).tolist()):
        start, end, nbytes, checksum, peer, op = r
        yield Event(
            rank, "calls", i, _op_name(op), start, end, {"peer": peer, "bytes": nbytes, "checksum": checksum}
        )


def _port_events(path: Path) -> Iterator[Event]:
    """Yield reservations port by port: only there is their order one of virtual time."""
    records = _records(path, RECORD_DTYPE)
    order = np.lexsort((records["key"], records["time_ps"], records["port"], records["rank"]))
    last, index = (-1, -1), 0
    for time_ps, key, start, end, nbytes, rank, peer, port, kind in records[order].tolist():
        index = index + 1 if last == (rank, port) else 0
        last = (rank, port)
        args = {"peer": peer, "bytes": nbytes, "arrival_ps": time_ps, "key": key}
        yield Event(
            rank, _PORTS.get(port, f"port {port}"), index, _KINDS.get(kind, f"kind {kind}"), start, end, args
        )


def read_directory(directory: Path) -> Iterator[Event]:
    """Yield every event of a trace directory. Raises UsageError: none there, or a file cut short."""
    files = sorted(directory.glob("rank-*.trace"), key=lambda p: int(p.stem.partition("-")[2]))
    if not files:
        raise UsageError(f"{directory}: no rank-<r>.trace in it, so it is no trace directory")
    for path in files:
        yield from _rank_events(path, int(path.stem.partition("-")[2]))
    if (directory / "ports.trace").exists():
        yield from _port_events(directory / "ports.trace")


def read_json(path: Path) -> Iterator[Event]:
    """Yield every event of an exported file. Raises UsageError: not one of ours."""
    try:
        events = json.loads(path.read_text())["traceEvents"]
        for e in (e for e in events if e["ph"] == "X"):
            args = dict(e["args"])
            where = (e["pid"], e["cat"], args.pop("index"), e["name"])
            yield Event(*where, args.pop("start_ps"), args.pop("end_ps"), args)
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as e:
        raise UsageError(f"{path}: not a trace written by --trace-out ({type(e).__name__}: {e})") from None


def read(path: Path) -> Iterator[Event]:
    """Yield the events of a trace directory or of an exported file."""
    if not path.exists():
        raise UsageError(f"{path}: no such trace")
    return read_directory(path) if path.is_dir() else read_json(path)


def _name(what: str, rank: int, tid: int, name: str) -> str:
    return json.dumps({"ph": "M", "name": what, "pid": rank, "tid": tid, "args": {"name": name}})


def _json_lines(events: list[Event]) -> Iterator[str]:
    tracks = sorted({(e.rank, e.track) for e in events}, key=lambda t: (t[0], t[1] != "calls", t[1]))
    threads = {t: i for i, t in enumerate(tracks)}
    for rank in sorted({r for r, _ in tracks}):
        yield json.dumps(
            {"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": f"rank {rank}"}}
        )
    for (rank, track), tid in threads.items():
        yield json.dumps({"ph": "M", "name": "thread_name", "pid": rank, "tid": tid, "args": {"name": track}})
    for e in events:
        times = {"ts": e.start_ps / _PS_PER_US, "dur": (e.end_ps - e.start_ps) / _PS_PER_US}
        args = {"index": e.index, "start_ps": e.start_ps, "end_ps": e.end_ps, **e.args}
        head = {"ph": "X", "name": e.name, "cat": e.track, "pid": e.rank, "tid": threads[(e.rank, e.track)]}
        yield json.dumps({**head, **times, "args": args})


def export(directory: Path, out: Path) -> int:
    """Write a trace directory as Perfetto/Chrome JSON; return the number of events. Raises UsageError."""
    events = sorted(read_directory(directory), key=lambda e: (e.start_ps, e.rank, e.track, e.index))
    try:
        with out.open("w") as f:
            f.write('{"displayTimeUnit": "ns", "traceEvents": [\n')
            f.write(",\n".join(_json_lines(events)))
            f.write("\n]}\n")
    except OSError as e:
        raise UsageError(f"{out}: the trace cannot be written: {e.strerror}") from None
    return len(events)


def first_difference(a: Path, b: Path) -> tuple[Event | None, Event | None] | None:
    """Return the earliest pair of unequal events at the same place of a track, or None if all are equal.

    One of the pair is None where that trace's track has ended.
    """
    left, right = ({(e.rank, e.track, e.index): e for e in read(p)} for p in (a, b))
    pairs = ((left.get(k), right.get(k), k) for k in left.keys() | right.keys())
    unequal = [(min(e.start_ps for e in (x, y) if e), k, x, y) for x, y, k in pairs if x != y]
    if not unequal:
        return None
    _, _, x, y = min(unequal, key=lambda u: u[:2])
    return x, y
