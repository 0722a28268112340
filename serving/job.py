"""One replay as files: what the command writes once and every rank reads.

A directory holds `job.json` (the settings), `requests.npy` and `tokens.npy` (the workload, memory-mapped by
every rank, so that 384 ranks do not parse one trace 384 times), `results.jsonl` (one line appended by each
rank at its end) and `progress.bin` (one record a rank, for the display only).
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.eplb.options import EplbOptions
from serving.model.sampling import GREEDY, SamplingParams
from serving.recovery.times import RecoveryTimes
from serving.request import RequestSpec

PRICED_CONTEXT = 163_840
"""Context of DeepSeek-V3 and R1 (source: `max_position_embeddings` of the published config.json)."""
_COLUMNS = (
    "arrival_ps",
    "priced_prompt",
    "scale",
    "max_output",
    "truncated",
    "seed",
    "first_token",
    "end_token",
)


@dataclass(frozen=True)
class DecodeOptions:
    """How decode steps are measured: `steps` of them, `queries` rows a sequence (2: one drafted token is
    verified), with the MTP layer if `mtp`, on dies that run unevenly if `jitter`."""

    steps: int = 4
    queries: int = 2
    mtp: bool = True
    jitter: bool = True


@dataclass(frozen=True)
class ReplayJob:
    """Settings of one replay, equal on every rank.

    batched_tokens: priced tokens a rank may compute in a step. max_seqs: requests a rank runs at once.
    priced_context: longest prompt plus output of the priced model. check_memory: refuse to run where a die at
    priced size has no room. schedule: directory of the schedule to follow (`write_schedule`); empty: live.
    priced_overrides: of the priced model's numbers. decode: measure decode steps (`serving.decode`), with
    request i on rank i // max_seqs; None: an ordinary replay. recovery: the times of recovery in place after
    deaths; None: who loses another rank ends. eplb: how experts are balanced while serving; None: not at all.
    """

    model_dir: str
    num_ranks: int
    priced_as: str
    profile: str
    overrides: dict[str, str] = field(default_factory=dict)
    seed: int = 0
    token_scale: int = 1
    batched_tokens: int = 2048
    max_seqs: int = 96
    shared_experts: str = "local"
    redundant_experts: int = 0
    priced_context: int = PRICED_CONTEXT
    check_memory: bool = True
    sampling: SamplingParams = GREEDY
    schedule: str = ""
    priced_overrides: dict[str, str] = field(default_factory=dict)
    decode: DecodeOptions | None = None
    recovery: RecoveryTimes | None = None
    eplb: EplbOptions | None = None

    @staticmethod
    def read(directory: str | Path) -> ReplayJob:
        fields = json.loads((Path(directory) / "job.json").read_text())
        decode, recovery, eplb = fields["decode"], fields["recovery"], fields["eplb"]
        made = {
            "sampling": SamplingParams(**fields["sampling"]),
            "decode": None if decode is None else DecodeOptions(**decode),
            "recovery": None if recovery is None else RecoveryTimes(**recovery),
            "eplb": None if eplb is None else EplbOptions(**eplb),
        }
        return ReplayJob(**(fields | made))

    def write(self, directory: str | Path) -> None:
        (Path(directory) / "job.json").write_text(json.dumps(asdict(self)))


def write_requests(directory: str | Path, specs: Sequence[RequestSpec]) -> None:
    """Write the workload: `requests.npy` int64[K, 8] and `tokens.npy` int32[all prompt tokens]."""
    ends = np.cumsum([spec.prompt_tokens for spec in specs], dtype=np.int64)
    table = np.array(
        [
            (
                s.arrival_ps,
                s.priced_prompt,
                s.scale,
                s.max_output,
                s.truncated,
                s.seed,
                end - s.prompt_tokens,
                end,
            )
            for s, end in zip(specs, ends.tolist(), strict=True)
        ],
        dtype=np.int64,
    )
    np.save(Path(directory) / "requests.npy", table)
    np.save(Path(directory) / "tokens.npy", np.concatenate([s.prompt for s in specs]).astype(np.int32))


def read_requests(directory: str | Path) -> list[RequestSpec]:
    """Read the workload back; prompts are views of the memory-mapped file, int32."""
    table = np.load(Path(directory) / "requests.npy")
    tokens = np.load(Path(directory) / "tokens.npy", mmap_mode="r")
    specs = []
    for request_id, row in enumerate(table.tolist()):
        fields = dict(zip(_COLUMNS, row, strict=True))
        prompt = tokens[fields.pop("first_token") : fields.pop("end_token")]
        fields["truncated"] = bool(fields["truncated"])
        specs.append(RequestSpec(request_id=request_id, prompt=prompt, **fields))
    return specs


def write_schedule(directory: str | Path, assigned: NDArray[np.int32], rows: NDArray[np.int32]) -> None:
    """Write the schedule the ranks follow: the rank of each request int32[K], and rows int32[N, 5] (see
    `serving.schedule`)."""
    np.save(Path(directory) / "assigned.npy", assigned)
    np.save(Path(directory) / "schedule.npy", rows)


def read_schedule(directory: str | Path) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """What `write_schedule` wrote, memory-mapped."""
    assigned, rows = (
        np.load(Path(directory) / name, mmap_mode="r") for name in ("assigned.npy", "schedule.npy")
    )
    return assigned, rows


def append_result(directory: str | Path, result: dict[str, Any]) -> None:
    """Append one rank's result."""
    _append(Path(directory) / "results.jsonl", result)


def append_ending(directory: str | Path, ending: dict[str, Any]) -> None:
    """Append how a request has ended, as soon as it has: so that it is known if its rank dies later."""
    _append(Path(directory) / "endings.jsonl", ending)


def read_endings(directory: str | Path) -> list[dict[str, Any]]:
    """Every ending noted at its time, in order of request."""
    path = Path(directory) / "endings.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return sorted((json.loads(line) for line in lines), key=lambda ending: int(ending["id"]))


def _append(path: Path, values: dict[str, Any]) -> None:
    """Append one line; a single write to an append-only file is not torn apart."""
    line = (json.dumps(values, separators=(",", ":")) + "\n").encode()
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        while line:
            line = line[os.write(fd, line) :]
    finally:
        os.close(fd)


def read_results(directory: str | Path) -> list[dict[str, Any]]:
    """All ranks' results in order of rank; empty if no rank came to its end."""
    path = Path(directory) / "results.jsonl"
    if not path.exists():
        return []
    results = [json.loads(line) for line in path.read_text().splitlines()]
    return sorted(results, key=lambda result: int(result["rank"]))


def read_reference(directory: str | Path) -> list[dict[str, Any]]:
    """What the reference has answered, in order of request."""
    path = Path(directory) / "reference.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


class Progress:
    """A shared record per rank, int64[n, 3]: up, requests ended, virtual now in ps. For display only."""

    def __init__(self, directory: str | Path, num_ranks: int, create: bool = False) -> None:
        path = Path(directory) / "progress.bin"
        mode = "w+" if create else "r+"
        self.cells: NDArray[np.int64] = np.memmap(path, np.int64, mode, shape=(num_ranks, 3))  # type: ignore[call-overload]

    def update(self, rank: int, ended: int, now_ps: int) -> None:
        self.cells[rank] = (1, ended, now_ps)
