"""A run's schedule as a record: written, read back, followed exactly by another run, or compared with it.

A schedule says which rank serves each request and, step by step, how many of its tokens are computed. It says
nothing of time, so a run that follows one differs from its original only in how long everything takes: there
a faster machine cannot be slower. Between two *live* schedules it can be, because what has arrived and who is
least loaded depends on the clock; `compare` then names the first decision that differs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.errors import UsageError
from emulator.profile import Profile
from serving.fixed import FixedScheduler
from serving.model.config import ModelConfig
from serving.request import Request, RequestSpec
from serving.scheduler import SchedulerLimits

FORMAT = "superpod-schedule-1"
COLUMNS = ("step", "rank", "request", "tokens", "priced_tokens")
_OPTIONS = {
    "ranks": "-n",
    "seed": "--seed",
    "token_scale": "--token-scale",
    "requests": "--requests",
    "batched_tokens": "--max-num-batched-tokens",
    "max_seqs": "--max-num-seqs",
}
_OTHERS = {"model": "another model", "workload": "another trace or --max-output"}
_FASTER = {"GB/s": 1, "TFLOPS": 1, "TOPS": 1, "us": -1, "ns": -1}


@dataclass(frozen=True)
class Schedule:
    """What was scheduled, and in which run.

    rows: int32[N, 5], see `COLUMNS`, in order of step, rank and place in the batch. assigned: int32[K], the
    rank of each request. identity: what must be equal for the schedule to fit (see `identify`). machine: the
    profile's values with their units; arrivals: hash of the arrival times; duration_ps: of the run.
    """

    name: str
    identity: Mapping[str, Any]
    assigned: NDArray[np.int32]
    rows: NDArray[np.int32]
    machine: Mapping[str, Sequence[Any]]
    arrivals: str
    duration_ps: int

    def of_rank(self, rank: int) -> NDArray[np.int32]:
        """Rows of one rank."""
        rows: NDArray[np.int32] = self.rows[self.rows[:, 1] == rank]
        return rows

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.assigned.tobytes() + self.rows.tobytes()).hexdigest()

    def write(self, path: str | Path) -> None:
        """Write it as JSON, rows as plain lists."""
        fields = {
            "format": FORMAT,
            "identity": dict(self.identity),
            "machine": dict(self.machine),
            "arrivals": self.arrivals,
            "duration_ps": self.duration_ps,
            "columns": COLUMNS,
            "assigned": self.assigned.tolist(),
            "rows": self.rows.tolist(),
        }
        Path(path).write_text(json.dumps(fields, separators=(",", ":")) + "\n")

    @staticmethod
    def read(path: str | Path) -> Schedule:
        """Read a file that `--schedule-out` wrote. Raises UsageError: missing, or something else."""
        try:
            fields = json.loads(Path(path).read_text())
            if fields["format"] != FORMAT:
                raise ValueError(f"format {fields['format']!r}")
            return Schedule(
                name=str(path),
                identity=dict(fields["identity"]),
                assigned=np.array(fields["assigned"], np.int32).reshape(-1),
                rows=np.array(fields["rows"], np.int32).reshape(-1, len(COLUMNS)),
                machine=dict(fields["machine"]),
                arrivals=str(fields["arrivals"]),
                duration_ps=int(fields["duration_ps"]),
            )
        except OSError as error:
            raise UsageError(f"schedule {path} cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            why = f"{type(error).__name__}: {error}".replace("\n", " ")
            raise UsageError(f"schedule {path}: not a file of replay --schedule-out ({why})") from None


def identify(
    config: ModelConfig, specs: Sequence[RequestSpec], settings: Mapping[str, int]
) -> dict[str, Any]:
    """What a schedule belongs to: the settings, the model's architecture and the workload without its
    arrivals. `settings`: ranks, seed, token_scale, batched_tokens, max_seqs."""
    workload = hashlib.sha256()
    for spec in specs:
        workload.update(f"{spec.priced_prompt},{spec.max_output};".encode())
        workload.update(np.asarray(spec.prompt, np.int32).tobytes())
    model = hashlib.sha256(config.model_dump_json().encode()).hexdigest()
    return {**settings, "requests": len(specs), "model": model, "workload": workload.hexdigest()}


def check_identity(schedule: Schedule, identity: Mapping[str, Any]) -> None:
    """Raise UsageError naming the first thing in which a schedule belongs to another run."""
    for key, option in _OPTIONS.items():
        theirs = schedule.identity.get(key)
        if theirs != identity[key]:
            raise UsageError(
                f"schedule {schedule.name} was recorded with {option} {theirs}, this run has {identity[key]}"
            )
    for key, what in _OTHERS.items():
        if schedule.identity.get(key) != identity[key]:
            raise UsageError(f"schedule {schedule.name} was recorded with {what}")


def rehearse(
    schedule: Schedule, specs: Sequence[RequestSpec], limits: SchedulerLimits, num_ranks: int
) -> None:
    """Follow a schedule on all ranks without computing anything.

    Raises:
        UsageError: it does not serve every request exactly, or exceeds what a rank holds here.
    """
    assigned, rows = schedule.assigned, schedule.rows
    where = f"schedule {schedule.name}"
    if len(assigned) != len(specs) or not ((assigned >= 0) & (assigned < num_ranks)).all():
        raise UsageError(f"{where}: does not give each of {len(specs)} requests one of {num_ranks} ranks")
    steps = np.unique(rows[:, 0])
    if (
        not np.array_equal(steps, np.arange(len(steps)))
        or not np.isin(rows[:, 1], np.arange(num_ranks)).all()
    ):
        raise UsageError(f"{where}: a step is missing, or a rank does not exist")
    for rank in range(num_ranks):
        requests = [Request(specs[i]) for i in np.flatnonzero(assigned == rank).tolist()]
        try:
            _rehearse_rank(FixedScheduler(limits, schedule.of_rank(rank)), requests, len(steps))
        except UsageError as error:
            raise UsageError(f"{where}: rank {rank}: {error}") from None


def _rehearse_rank(scheduler: FixedScheduler, requests: Sequence[Request], num_steps: int) -> None:
    for request in requests:
        scheduler.add(request)
    for _ in range(num_steps):
        segments = scheduler.schedule()
        scheduler.complete(segments)
        for segment in segments:
            if segment.samples:
                segment.request.append_output(0, 0)
        scheduler.retire()
    for request in requests:
        if not request.is_done:
            raise UsageError(f"request {request.spec.request_id} is not served to its end")


def record(
    results: Sequence[Mapping[str, Any]],
    identity: Mapping[str, Any],
    profile: Profile,
    specs: Sequence[RequestSpec],
    duration_ps: int,
) -> Schedule:
    """The schedule of a run from what its ranks report."""
    assigned = np.full(len(specs), -1, np.int32)
    rows = []
    for result in results:
        for entry in result["requests"]:
            assigned[entry["id"]] = result["rank"]
        rows += [(step, result["rank"], *what) for step, *what in result["schedule"]]
    table = np.array(rows, np.int32).reshape(-1, len(COLUMNS))
    table = table[np.lexsort((table[:, 1], table[:, 0]))]
    machine = {key: (entry.value, entry.unit) for key, entry in dict(profile.items()).items()}
    return Schedule("this run", identity, assigned, table, machine, hash_arrivals(specs), duration_ps)


def hash_arrivals(specs: Sequence[RequestSpec]) -> str:
    return hashlib.sha256(",".join(str(spec.arrival_ps) for spec in specs).encode()).hexdigest()


def compare(here: Schedule, there: Schedule) -> dict[str, Any]:
    """Where two schedules part, and whether the two runs' durations contradict their machines."""
    return {
        "with": there.name,
        "duration_s": there.duration_ps / 1e12,
        "first_difference": first_difference(here, there),
        "anomaly": _anomaly(here, there),
    }


def first_difference(here: Schedule, there: Schedule) -> dict[str, Any] | None:
    """The first decision, in order of step, rank and place in the batch, that is not the same in both.

    Returns:
        step, rank, request, and what was scheduled `here` and `there` (None: nothing); None if all agree.
    """
    batches = [_batches(here), _batches(there)]
    for step, rank in sorted(batches[0].keys() | batches[1].keys()):
        mine, theirs = (batch.get((step, rank), []) for batch in batches)
        if mine == theirs:
            continue
        place = next((i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), None)
        place = min(len(mine), len(theirs)) if place is None else place
        sides = [batch[place] if place < len(batch) else None for batch in (mine, theirs)]
        request = next(side[0] for side in sides if side is not None)
        entries = [None if side is None else dict(zip(COLUMNS[2:], side, strict=True)) for side in sides]
        return {"step": step, "rank": rank, "request": request, "here": entries[0], "there": entries[1]}
    return None


def _batches(schedule: Schedule) -> dict[tuple[int, int], list[tuple[int, ...]]]:
    batches: dict[tuple[int, int], list[tuple[int, ...]]] = {}
    for step, rank, *what in schedule.rows.tolist():
        batches.setdefault((step, rank), []).append(tuple(what))
    return batches


def _anomaly(here: Schedule, there: Schedule) -> str | None:
    """A faster machine that took longer, or a slower one that took less, in words; None if neither, or if the
    machines cannot be ordered or the requests arrived otherwise."""
    changed = [k for k in here.machine if list(here.machine[k]) != list(there.machine.get(k, ()))]
    if here.arrivals != there.arrivals or not changed or here.machine.keys() != there.machine.keys():
        return None
    better = {_better(key, here.machine[key], there.machine[key]) for key in changed}
    longer = here.duration_ps - there.duration_ps
    if better == {1} and longer > 0:
        return f"a faster machine ({', '.join(changed)}) took {longer / 1e9:.3f} ms longer"
    if better == {-1} and longer < 0:
        return f"a slower machine ({', '.join(changed)}) took {-longer / 1e9:.3f} ms less"
    return None


def _better(key: str, mine: Sequence[Any], theirs: Sequence[Any]) -> int:
    sense = 1 if key.endswith("_efficiency") else _FASTER.get(mine[1], 0)
    return sense * (1 if mine[0] > theirs[0] else -1)


def describe(difference: Mapping[str, Any] | None) -> str:
    """A first difference in one line."""
    if difference is None:
        return "none"
    sides = [
        "nothing"
        if side is None
        else f"request {side['request']}: {side['tokens']} tokens ({side['priced_tokens']} priced)"
        for side in (difference["here"], difference["there"])
    ]
    return f"step {difference['step']}, rank {difference['rank']}: {sides[0]} here, {sides[1]} there"
