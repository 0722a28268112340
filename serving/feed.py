"""An open source of requests: one process outside the pod writes, all ranks read alike.

    feed.log    a line of JSON for every request, abort and the end; only ever appended to
    feed.state  shared words: bytes of the log that are complete, hold, and what the leader has published
    feed.bell   a pipe that wakes the leader

The leader (rank 0) says before each status exchange how far the log is to be read after it; the word is
doubled by the exchange's parity, because a slow reader may be one exchange behind. While the pod has nothing
to do, or the feed is held, the leader waits here, outside the engine, as a rank that runs: virtual time
stands still, and it is no deadlock.

The lines the leader has let in, each with the number of its exchange, are a recording: read back they give
the same steps, tokens and times.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from emulator.errors import UsageError
from serving.job import ReplayJob
from serving.model.sampling import SamplingParams
from serving.request import RequestSpec

RECORDING = "superpod-recording-1"
LEADER = 0
_LOG, _STATE, _BELL = "feed.log", "feed.state", "feed.bell"
_COMPLETE, _HELD, _NOW, _IDLE, _POSITIONS = 0, 1, 2, 3, 4  # places in feed.state
_WORDS = 8


@dataclass(frozen=True)
class FeedRequest:
    """A request from outside; see `serving.request.RequestSpec`. arrival_ps None: at the next step."""

    request_id: int
    prompt: Sequence[int]
    max_output: int
    params: SamplingParams
    seed: int = 0
    choice: int = 0
    priority: int = 0
    arrival_ps: int | None = None

    def as_entry(self) -> dict[str, Any]:
        fields = {
            "request_id": self.request_id,
            "prompt": [int(token) for token in self.prompt],
            "max_output": self.max_output,
            "params": asdict(self.params),
            "seed": self.seed,
            "choice": self.choice,
            "priority": self.priority,
            "arrival_ps": self.arrival_ps,
        }
        return {"add": fields}


class Feed:
    """The writer's side; one thread of one process, which need not have torch."""

    def __init__(self, directory: str | Path) -> None:
        folder = Path(directory)
        self._log = os.open(folder / _LOG, os.O_WRONLY | os.O_APPEND)
        self._bell = os.open(folder / _BELL, os.O_RDWR | os.O_NONBLOCK)
        self._state = _state(folder)

    @staticmethod
    def create(directory: str | Path) -> Feed:
        """Make the files; before the ranks start."""
        folder = Path(directory)
        (folder / _LOG).touch(mode=0o600)
        (folder / _STATE).write_bytes(bytes(8 * _WORDS))
        os.mkfifo(folder / _BELL, 0o600)
        return Feed(folder)

    def add(self, request: FeedRequest) -> None:
        """Hand in a request; it arrives at the next step's boundary, or at its own time if that is later."""
        self._append(request.as_entry())

    def add_all(self, requests: Sequence[FeedRequest]) -> None:
        """Hand in several that come at one boundary."""
        self._append(*(request.as_entry() for request in requests))

    def abort(self, request_id: int) -> None:
        """End a request at the next step's boundary; nothing happens where it has ended."""
        self._append({"abort": request_id})

    def close(self) -> None:
        """No more requests: the ranks end when they have served what there is."""
        self._append({"close": True})

    def hold(self) -> None:
        """The pod stands still from the next step's boundary on."""
        self._state[_HELD] = 1

    def release(self) -> None:
        """The pod goes on."""
        self._state[_HELD] = 0
        self._ring()

    def forget(self) -> None:
        """Let go of the files; to the ranks it is as if this process had ended."""
        os.close(self._log)
        os.close(self._bell)

    @property
    def now_ps(self) -> int:
        """The pod's virtual time at its last step's boundary."""
        return int(self._state[_NOW])

    @property
    def idle(self) -> bool:
        """The pod has nothing to do and waits for us: what is handed in now comes at a boundary that does not
        depend on the host."""
        return bool(self._state[_IDLE])

    def _append(self, *entries: Mapping[str, Any]) -> None:
        text = "".join(json.dumps(entry, separators=(",", ":")) + "\n" for entry in entries)
        line = memoryview(text.encode())
        size = len(line)
        while line:
            line = line[os.write(self._log, line) :]
        self._state[_COMPLETE] += size
        self._ring()

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError):  # a full pipe wakes as well
            os.write(self._bell, b"!")


@dataclass(frozen=True)
class Add:
    """A request is there; `refused` says why it is not served. now: it has no time of arrival of its own."""

    spec: RequestSpec
    refused: str | None = None
    now: bool = False


@dataclass(frozen=True)
class Abort:
    """A request is to end."""

    request_id: int


Command = Add | Abort


class Source(Protocol):
    """Where an engine's requests come from beside its workload."""

    closed: bool
    """Nothing more will come."""

    def announce(self, idle: bool, now_ps: int) -> None:
        """Before each status exchange; `idle`: the pod has nothing to do."""

    def take(self, now_ps: int) -> Sequence[Command]:
        """After each status exchange, with its shared now: what has come, alike on all ranks."""


class NoSource:
    """Nothing comes from outside."""

    closed = True

    def announce(self, idle: bool, now_ps: int) -> None:
        """See `Source`."""

    def take(self, now_ps: int) -> Sequence[Command]:
        """See `Source`."""
        return ()


class OpenSource:
    """The feed as a rank reads it.

    Args:
        directory: of the job.
        rank: this rank; rank 0 leads.
        record: where the leader writes the recording; "" for nowhere.
        header: what the recording says of the run.
    """

    def __init__(
        self, directory: str | Path, rank: int, record: str = "", header: Mapping[str, Any] | None = None
    ) -> None:
        folder = Path(directory)
        self._leads = rank == LEADER
        self._state = _state(folder)
        self._log = open(folder / _LOG, "rb")  # noqa: SIM115 - as long as the rank lives
        self._folder = folder
        self._bell = _open_bell(folder) if self._leads else -1
        self._exchange = self._position = 0
        self.closed = False
        self._record = None
        if record and self._leads:
            self._record = open(record, "w", encoding="utf-8")  # noqa: SIM115
            self._write({"format": RECORDING, **(header or {})})

    def announce(self, idle: bool, now_ps: int) -> None:
        """See `Source`. The leader waits here while there is nothing to do."""
        if not self._leads:
            return
        self._state[_NOW] = now_ps
        while self._state[_HELD] or (idle and self._state[_COMPLETE] == self._position):
            self._state[_IDLE] = idle
            if not os.read(self._bell, 4096):  # the writer is gone
                self._close_for_it()
        self._state[_IDLE] = 0
        self._state[_POSITIONS + self._exchange % 2] = self._state[_COMPLETE]

    def _close_for_it(self) -> None:
        """Write what the writer would have written at its end."""
        line = b'{"close":true}\n'
        with open(self._folder / _LOG, "r+b") as log:  # it may have died in the middle of a line
            log.truncate(int(self._state[_COMPLETE]))
            log.seek(0, os.SEEK_END)
            log.write(line)
        self._state[_HELD] = 0
        self._state[_COMPLETE] += len(line)

    def take(self, now_ps: int) -> list[Command]:
        """See `Source`."""
        end = int(self._state[_POSITIONS + self._exchange % 2])
        raw = self._log.read(end - self._position) if end > self._position else b""
        self._position = end
        entries = [json.loads(line) for line in raw.splitlines()]
        if self._record is not None:
            for entry in entries:
                self._write({"exchange": self._exchange, **entry})
        self._exchange += 1
        self.closed = self.closed or any("close" in entry for entry in entries)
        return list(_commands(entries, now_ps))

    def _write(self, entry: Mapping[str, Any]) -> None:
        assert self._record is not None
        self._record.write(json.dumps(entry, separators=(",", ":")) + "\n")
        self._record.flush()


class RecordedSource:
    """A recording, let in as it was."""

    def __init__(self, path: str | Path) -> None:
        _, self._entries = read_recording(path)
        self._exchange = self._next = 0
        self.closed = False

    def announce(self, idle: bool, now_ps: int) -> None:
        """See `Source`."""

    def take(self, now_ps: int) -> list[Command]:
        """See `Source`."""
        first = self._next
        while self._next < len(self._entries) and self._entries[self._next]["exchange"] <= self._exchange:
            self._next += 1
        self._exchange += 1
        entries = self._entries[first : self._next]
        self.closed = self._next == len(self._entries)
        return list(_commands(entries, now_ps))


def read_recording(path: str | Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The header and the entries of a recording; one that was cut off ends there.

    Raises:
        UsageError: no such file, or something else.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        header, *entries = [json.loads(line) for line in lines]
        if header.get("format") != RECORDING or not all("exchange" in entry for entry in entries):
            raise ValueError(f"its first line is not of format {RECORDING}")
    except OSError as error:
        raise UsageError(f"recording {path} cannot be read: {error.strerror}") from None
    except (ValueError, AttributeError) as error:
        raise UsageError(f"recording {path}: {error}") from None
    return header, entries


def recording_header(job: ReplayJob) -> dict[str, Any]:
    """What a recording says of the run: its settings."""
    fields = asdict(job) | {"feed": False, "record": "", "recording": ""}
    return {"job": fields}


def is_recording(path: str | Path) -> bool:
    """Whether a file begins as a recording does."""
    try:
        with open(path, encoding="utf-8") as file:
            return RECORDING in file.readline(200)
    except (OSError, UnicodeDecodeError):
        return False


def _commands(entries: Sequence[Mapping[str, Any]], now_ps: int) -> Iterator[Command]:
    for entry in entries:
        if "add" in entry:
            spec = spec_of(entry["add"], now_ps)
            late = f"arrival at {spec.arrival_ps} ps is past: the engine is at {now_ps} ps"
            is_now = entry["add"]["arrival_ps"] is None
            yield Add(spec, late if spec.arrival_ps < now_ps else None, is_now)
        elif "abort" in entry:
            yield Abort(int(entry["abort"]))


def spec_of(fields: Mapping[str, Any], now_ps: int) -> RequestSpec:
    """The request of an entry, arrived at its own time or now."""
    prompt = np.array(fields["prompt"], np.int64)
    arrival_ps = fields["arrival_ps"]
    return RequestSpec(
        request_id=int(fields["request_id"]),
        arrival_ps=now_ps if arrival_ps is None else max(0, int(arrival_ps)),
        prompt=prompt,
        priced_prompt=len(prompt),
        scale=1,
        max_output=int(fields["max_output"]),
        truncated=False,
        seed=int(fields["seed"]),
        params=SamplingParams(**fields["params"]),
        choice=int(fields["choice"]),
        priority=int(fields["priority"]),
    )


def _open_bell(folder: Path) -> int:
    """The reader's end, which blocks when it is read; opening it must not wait for a writer that has gone."""
    bell = os.open(folder / _BELL, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(bell, True)
    return bell


def _state(folder: Path) -> NDArray[np.int64]:
    state: NDArray[np.int64] = np.memmap(folder / _STATE, np.int64, "r+", shape=(_WORDS,))  # type: ignore[call-overload]
    return state
