"""One replay as files: what the command writes once and every rank reads.

A directory holds `job.json` (the settings), `requests.npy` and `tokens.npy` (the workload, memory-mapped by
every rank, so that 384 ranks do not parse one trace 384 times), `results.jsonl` (one line appended by each
rank at its end) and `progress.bin` (one record a rank, for the display only).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from emulator.errors import UsageError
from serving.eplb.options import EplbOptions
from serving.kv.tiers import check_path
from serving.model.sampling import GREEDY, SamplingParams
from serving.recovery.times import RecoveryTimes
from serving.request import RequestSpec
from serving.stragglers import Stragglers

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
    "abort_ps",
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
class PagingOptions:
    """How a rank's KV cache is paged; see `serving.paged`.

    block_size: priced tokens of a block; a multiple of the token scale. num_blocks: of a rank; 0: what its
    memory holds. reuse: keep prefixes and match them. chunked: prompts are computed in parts. dram_blocks:
    blocks of a rank in the host's memory; pool_path: how they come back.
    """

    block_size: int = 128
    num_blocks: int = 0
    reuse: bool = False
    chunked: bool = True
    dram_blocks: int = 0
    pool_path: str = "ub"

    def check(self, token_scale: int) -> None:
        """Raise UsageError for what cannot be."""
        if self.block_size < 1 or self.block_size % token_scale:
            nearest = max(1, round(self.block_size / token_scale)) * token_scale
            raise UsageError(
                f"--block-size {self.block_size} must be a multiple of the token scale {token_scale}; "
                f"the nearest is {nearest}"
            )
        for option, value in (
            ("--num-gpu-blocks-override", self.num_blocks),
            ("--dram-blocks", self.dram_blocks),
        ):
            if value < 0:
                raise UsageError(f"{option} {value} must be at least 1 (or left out)")
        if self.dram_blocks and not self.reuse:
            raise UsageError("--dram-blocks: the pool keeps prefixes for reuse; take --enable-prefix-caching")
        check_path(self.pool_path)


@dataclass(frozen=True)
class ReplayJob:
    """Settings of one replay, equal on every rank.

    batched_tokens: priced tokens a rank may compute in a step. max_seqs: requests a rank runs at once.
    priced_context: longest prompt plus output of the priced model. check_memory: refuse to run where a die at
    priced size has no room. schedule: directory of the schedule to follow (`write_schedule`); empty: live.
    priced_overrides: of the priced model's numbers. decode: measure decode steps (`serving.decode`), with
    request i on rank i // max_seqs; None: an ordinary replay. recovery: the times of recovery in place after
    deaths; None: who loses another rank ends. eplb: how experts are balanced while serving; None: not at all.
    paging: how the KV cache is paged; None: the KV of a request's
    whole life is reserved when it is admitted. balancing: which rank gets a request (`serving.balance`).
    feed: requests come from outside (`serving.feed`). record: where their recording is written; recording:
    the one that is read back. quantization: "int8", or None for float32.
    spares: so many of the ranks, the last ones, serve only once
    another has died, or they are called in. lost_experts: what becomes of experts no living rank holds
    (`serving.recovery.masks.LostExperts`). note_states: report when requests enter their states.
    mtp: draft layers used; mtp_acceptance: how often their drafts are right; empty: as often as they are.
    stragglers: ranks that fall behind.
    tp_size: ranks that serve a DP group's requests together (`serving.tensor`).
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
    paging: PagingOptions | None = None
    balancing: str = "least-tokens"
    feed: bool = False
    record: str = ""
    recording: str = ""
    quantization: Literal["int8"] | None = None
    spares: int = 0
    lost_experts: str = "load"
    note_states: bool = False
    mtp: int = 0
    mtp_acceptance: tuple[float, ...] = ()
    stragglers: Stragglers | None = None
    tp_size: int = 1

    @property
    def is_open(self) -> bool:
        """Whether the requests are not known before the start."""
        return self.feed or bool(self.recording)

    @property
    def spare_ranks(self) -> range:
        """Ranks that do not serve at first."""
        return range(self.num_ranks - self.spares, self.num_ranks)

    @staticmethod
    def read(directory: str | Path) -> ReplayJob:
        return job_of(json.loads((Path(directory) / "job.json").read_text()))

    def write(self, directory: str | Path) -> None:
        (Path(directory) / "job.json").write_text(json.dumps(asdict(self)))


def job_of(fields: dict[str, Any]) -> ReplayJob:
    """The job whose `asdict` this is."""
    decode, recovery, paging = fields["decode"], fields["recovery"], fields["paging"]
    eplb = fields["eplb"]
    made = {
        "sampling": SamplingParams(**fields["sampling"]),
        "decode": None if decode is None else DecodeOptions(**decode),
        "recovery": None if recovery is None else RecoveryTimes(**recovery),
        "paging": None if paging is None else PagingOptions(**paging),
        "eplb": None if eplb is None else EplbOptions(**eplb),
        "mtp_acceptance": tuple(fields.get("mtp_acceptance", ())),
        "stragglers": _stragglers(fields.get("stragglers")),
    }
    return ReplayJob(**(fields | made))


def _stragglers(fields: dict[str, Any] | None) -> Stragglers | None:
    if fields is None:
        return None
    slow = tuple((rank, factor) for rank, factor in fields["slow"])
    pauses = tuple((rank, at, length) for rank, at, length in fields["pauses"])
    return Stragglers(slow, pauses, fields["launch_ps"])


def write_requests(directory: str | Path, specs: Sequence[RequestSpec]) -> None:
    """Write the workload: `requests.npy` int64[K, 9] and `tokens.npy` int32[all prompt tokens]."""
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
                -1 if s.abort_ps is None else s.abort_ps,
            )
            for s, end in zip(specs, ends.tolist(), strict=True)
        ],
        dtype=np.int64,
    ).reshape(-1, len(_COLUMNS))
    np.save(Path(directory) / "requests.npy", table)
    prompts = [spec.prompt for spec in specs] or [np.zeros(0, np.int64)]
    np.save(Path(directory) / "tokens.npy", np.concatenate(prompts).astype(np.int32))


def read_requests(directory: str | Path) -> list[RequestSpec]:
    """Read the workload back; prompts are views of the memory-mapped file, int32."""
    table = np.load(Path(directory) / "requests.npy")
    if not len(table):
        return []
    tokens = np.load(Path(directory) / "tokens.npy", mmap_mode="r")
    specs = []
    for request_id, row in enumerate(table.tolist()):
        fields = dict(zip(_COLUMNS, row, strict=True))
        prompt = tokens[fields.pop("first_token") : fields.pop("end_token")]
        fields["truncated"] = bool(fields["truncated"])
        fields["abort_ps"] = None if fields["abort_ps"] < 0 else fields["abort_ps"]
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


def write_reference(directory: str | Path, answers: Sequence[Mapping[str, Any]]) -> None:
    """Write what the reference has answered: one line a request."""
    text = "".join(json.dumps(answer) + "\n" for answer in answers)
    (Path(directory) / "reference.jsonl").write_text(text, encoding="utf-8")


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
