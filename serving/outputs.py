"""From the ranks to whoever serves their answers: tokens, ends and counts, as datagrams on a Unix socket.

Every rank sends what a step has given when the step is over; a full socket makes it wait (in host time, never
in virtual time). Every request has exactly one event that says how it ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from serving.request import Request

__all__ = ["Event", "NoOutlet", "OutputEvent", "OutputReader", "OutputSender", "Outlet", "StatsEvent"]

_SOCKET = "outputs.sock"
_MOST_BYTES = 48 << 10
"""Of a datagram, about: a step's events are sent in several where they are more."""
_READ_BYTES = 1 << 20

TokenLogprobs = tuple[int, float, list[tuple[int, float]]]
"""A token, its log probability, and the likeliest tokens with theirs."""


@dataclass(frozen=True)
class OutputEvent:
    """New tokens of a request, or its end, or both.

    finish: None while it goes on; else "length", "stop" (`stop_reason`: by which token or text), "abort" or
    "error" (`error` says what).
    """

    request_id: int
    rank: int
    tokens: list[int]
    times_ps: list[int]
    logprobs: list[TokenLogprobs] | None
    finish: str | None
    stop_reason: int | str | None
    error: str | None
    arrival_ps: int
    cached_tokens: int


@dataclass(frozen=True)
class StatsEvent:
    """How a rank stands after a step; KV in priced tokens, the last three counted since the start."""

    rank: int
    now_ps: int
    waiting: int
    running: int
    kv_used: int
    kv_total: int
    preemptions: int
    cache_queries: int
    cache_hits: int


Event = OutputEvent | StatsEvent


class Outlet(Protocol):
    """Who is told what requests give."""

    def token(self, request: Request, logprobs: Any) -> None:
        """A request has a new last output."""

    def ended(self, request: Request) -> None:
        """A request has ended, in whatever way."""

    def flush(self, stats: Callable[[], StatsEvent]) -> None:
        """A step is over."""


class NoOutlet:
    """Nobody is told."""

    def token(self, request: Request, logprobs: Any) -> None:
        """See `Outlet`."""

    def ended(self, request: Request) -> None:
        """See `Outlet`."""

    def flush(self, stats: Callable[[], StatsEvent]) -> None:
        """See `Outlet`."""


class OutputSender:
    """The rank's side. Where nobody reads any more, nothing is sent."""

    def __init__(self, directory: str | Path, rank: int) -> None:
        self._rank = rank
        self._address = str(Path(directory) / _SOCKET)
        self._socket: socket.socket | None = None
        self._open: dict[int, _Pending] = {}
        self._last: StatsEvent | None = None

    def token(self, request: Request, logprobs: Any) -> None:
        """See `Outlet`."""
        pending = self._pending(request)
        pending.tokens.append(request.outputs[-1])
        pending.times_ps.append(request.token_times_ps[-1])
        if logprobs is not None:
            pending.logprobs.append(logprobs)

    def ended(self, request: Request) -> None:
        """See `Outlet`."""
        self._pending(request)

    def flush(self, stats: Callable[[], StatsEvent]) -> None:
        """See `Outlet`."""
        now = stats()
        if not self._open and self._last is not None and _same_counts(now, self._last):
            return
        self._last = now
        lines = [_line("output", pending.event(self._rank)) for pending in self._open.values()]
        self._open.clear()
        for datagram in _packed([*lines, _line("stats", now)]):
            self._send(datagram)

    def _pending(self, request: Request) -> _Pending:
        return self._open.setdefault(request.spec.request_id, _Pending(request))

    def _send(self, datagram: bytes) -> None:
        with contextlib.suppress(ConnectionError, FileNotFoundError):
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._socket.connect(self._address)
            self._socket.send(datagram)


class _Pending:
    """What a request has given in this step."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.tokens: list[int] = []
        self.times_ps: list[int] = []
        self.logprobs: list[Any] = []

    def event(self, rank: int) -> OutputEvent:
        request = self._request
        return OutputEvent(
            request_id=request.spec.request_id,
            rank=rank,
            tokens=self.tokens,
            times_ps=self.times_ps,
            logprobs=self.logprobs or None,
            finish=request.finish,
            stop_reason=request.stop_reason,
            error=request.error,
            arrival_ps=request.spec.arrival_ps,
            cached_tokens=request.cached,
        )


class OutputReader:
    """The reader's side."""

    def __init__(self, reader: socket.socket) -> None:
        self._socket = reader

    @staticmethod
    def bind(directory: str | Path) -> OutputReader:
        """Make the socket; before the ranks start."""
        reader = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        reader.setblocking(False)
        folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:  # an address has room for 107 bytes; a job's directory may be longer
            path = str(Path(directory) / _SOCKET)
            reader.bind(path if len(path) < 100 else f"/proc/self/fd/{folder}/{_SOCKET}")
        finally:
            os.close(folder)
        return OutputReader(reader)

    def fileno(self) -> int:
        return self._socket.fileno()

    def read(self) -> list[Event]:
        """Everything that is there, in the order of sending; never blocks."""
        events: list[Event] = []
        while True:
            try:
                datagram = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                return events
            events += [_event(json.loads(line)) for line in datagram.splitlines()]

    def close(self) -> None:
        self._socket.close()


def _same_counts(now: StatsEvent, last: StatsEvent) -> bool:
    a, b = asdict(now), asdict(last)
    return all(a[name] == b[name] for name in a if name != "now_ps")


def _line(kind: str, event: Event) -> bytes:
    return json.dumps({"kind": kind, **asdict(event)}, separators=(",", ":")).encode()


def _packed(lines: list[bytes]) -> Iterator[bytes]:
    """Lines in as few datagrams as hold them."""
    batch: list[bytes] = []
    size = 0
    for line in lines:
        if batch and size + len(line) > _MOST_BYTES:
            yield b"\n".join(batch)
            batch, size = [], 0
        batch.append(line)
        size += len(line) + 1
    yield b"\n".join(batch)


def _event(fields: Mapping[str, Any]) -> Event:
    values = dict(fields)
    if values.pop("kind") == "stats":
        return StatsEvent(**values)
    logprobs = values["logprobs"]
    if logprobs is not None:
        values["logprobs"] = [(t, p, [(a, b) for a, b in top]) for t, p, top in logprobs]
    return OutputEvent(**values)
