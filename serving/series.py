"""Several replays on one start of the ranks: job after job on the same device, exchange channels and models.

A directory with `series.json` names the directories of its jobs, in order. They have ranks, profile and
checkpoint in common. Virtual time goes on from job to job: arrivals count from a moment all ranks agree on.
Each job's results are in its own directory, as if it had run alone; the machine's are of them all. Who
`follow`s a series hears of a job as soon as all ranks have ended it, through a named pipe.
"""

from __future__ import annotations

import gc
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from emulator import Device
from serving.ahead import CommonParts, make_parts
from serving.dispatch import TICK_PS
from serving.job import ReplayJob, read_requests
from serving.limits import ExchangeSizes
from serving.link import Channels
from serving.rank_main import serve_on
from serving.request import RequestSpec

__all__ = ["follow", "is_series", "make_series_ahead", "serve_series", "write_series"]

_FILE = "series.json"
_PIPE = "series.ended"


@dataclass(frozen=True)
class _Member:
    directory: str
    specs: Sequence[RequestSpec]
    parts: CommonParts


_ahead: dict[str, list[_Member]] = {}


def write_series(
    directory: Path, members: Sequence[Path], memory: Sequence[Mapping[str, int]]
) -> dict[str, int]:
    """Name the jobs of a series; returns the machine's sizes for all of them together.

    Args:
        memory: of each job, as `serving.replay.Replay.machine_bytes` has it.
    """
    (directory / _FILE).write_text(json.dumps([str(member) for member in members]))
    sizes = {key: max(each[key] for each in memory) for key in memory[0]}
    managed = sorted({each["managed_bytes"] for each in memory})
    return {**sizes, "managed_bytes": sum(managed)}


def is_series(directory: str) -> bool:
    """Whether a directory holds several jobs."""
    return (Path(directory) / _FILE).exists()


@contextmanager
def follow(directory: Path, ended: Callable[[int], None]) -> Iterator[None]:
    """Call `ended` with the number of each job whose results are there, but the last, in another thread."""
    pipe = directory / _PIPE
    os.mkfifo(pipe)
    fd = os.open(pipe, os.O_RDWR)  # ours is the last writer: the reader comes to its end when we say so
    reader = threading.Thread(target=_listen, args=(fd, ended), daemon=True)
    reader.start()
    try:
        yield
    finally:
        os.write(fd, b"\n")
        reader.join()
        os.close(fd)
        pipe.unlink()


def _listen(fd: int, ended: Callable[[int], None]) -> None:
    with open(fd, encoding="ascii", closefd=False) as lines:
        for line in iter(lines.readline, "\n"):
            ended(int(line))


def _tell(directory: str, number: int) -> None:
    """Say that a job has ended on all ranks, if somebody follows."""
    with suppress(OSError):
        fd = os.open(Path(directory) / _PIPE, os.O_WRONLY | os.O_NONBLOCK)
        os.write(fd, f"{number}\n".encode())
        os.close(fd)


def make_series_ahead(directory: str) -> None:
    """Make the common parts of all jobs, for the processes to be forked from this one."""
    _ahead[str(Path(directory).resolve())] = _members(directory)


def _members(directory: str) -> list[_Member]:
    known: dict[Any, CommonParts] = {}
    members = []
    for path in json.loads((Path(directory) / _FILE).read_text()):
        job, specs = ReplayJob.read(path), read_requests(path)
        key = (job.model_dir, job.quantization, job.mtp)
        parts = make_parts(job, specs, like=known.get(key))
        if key not in known:
            parts.model.prove(max((spec.total_tokens for spec in specs), default=1))
            known[key] = parts
        members.append(_Member(path, specs, parts))
    return _with_common_sizes(members)


def _with_common_sizes(members: Sequence[_Member]) -> list[_Member]:
    """Jobs with as many slots a rank use one exchange, which has room for the largest."""
    largest: dict[int, ExchangeSizes] = {}
    for member in members:
        slots, sizes = member.parts.placement.slots_per_rank, member.parts.sizes
        known = largest.setdefault(slots, sizes)
        largest[slots] = ExchangeSizes(*(max(a, b) for a, b in zip(_of(known), _of(sizes), strict=True)))
    return [
        replace(m, parts=replace(m.parts, sizes=largest[m.parts.placement.slots_per_rank])) for m in members
    ]


def _since(parts: CommonParts, origin_ps: int) -> CommonParts:
    """The parts of a job whose time begins at a moment of the machine's."""
    if (stragglers := parts.job.stragglers) is None:
        return parts
    return replace(parts, job=replace(parts.job, stragglers=stragglers.later(origin_ps)))


def _of(sizes: ExchangeSizes) -> tuple[int, int, int]:
    return sizes.max_tokens, sizes.max_rows, sizes.expected_rows


def serve_series(device: Device, directory: str) -> None:
    """Serve all jobs of a series as this rank."""
    made = _ahead.get(str(Path(directory).resolve()))
    channels = Channels(device)
    for number, member in enumerate(made or _members(directory)):
        origin = int(channels.status().exchange(device.now_ps).max())
        origin = -(-origin // TICK_PS) * TICK_PS
        if number and device.rank == 0:
            _tell(directory, number - 1)  # whoever gave a word had appended its result
        specs = [replace(spec, arrival_ps=origin + spec.arrival_ps) for spec in member.specs]
        serve_on(device, member.directory, _since(member.parts, origin), specs, channels)
        gc.collect()  # a job's parts know each other
