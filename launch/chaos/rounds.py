"""One plan, from its first rank to the last answer: rounds of a real serving run, the pod restarted between.
Under recovery in place one round is enough, unless a rank dies before the pod serves, or none is left.

Every round is an `mpirun` of stubs on the shared fork server, which has torch imported; so a round of 16
ranks takes about a second.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from emulator.config import clock_of
from emulator.errors import UsageError
from emulator.faults import FaultPlan
from emulator.profile import load_profile
from emulator.topology import Topology
from launch import mpirun, osproc, paths
from serving.job import Progress, read_endings, read_results
from serving.recovery.stream import TokenStream, Touched
from serving.replay import Replay, write_replay
from serving.restart import Ending, Round, endings_of, next_round, round_answers, round_plan, round_specs

PS_PER_S = 1_000_000_000_000
MAX_ROUNDS = 8
_MOST_LIMITS = 10


@dataclass
class Life:
    """A round that has run: its facts, the ranks' results, the machine's, how mpirun ended."""

    round: Round
    results: list[dict[str, Any]]
    machine: dict[str, Any] | None
    exit_code: int | None
    stderr: str
    leftovers: list[str]
    down_ps: int | None = None
    """When the pod stopped serving, if a death ended the round."""
    noted: list[dict[str, Any]] = field(default_factory=list)
    """Requests that ended on ranks that may not have lived to report them."""
    touched: dict[int, Touched] = field(default_factory=dict)
    """Requests served without experts they needed, in the round's numbers."""

    @property
    def recoveries(self) -> list[dict[str, Any]]:
        """What the ranks that lived have gone on after, in order; the same on all."""
        told: list[dict[str, Any]] = next((r.get("recoveries", []) for r in self.results), [])
        return told


@dataclass
class Served:
    """A whole run under one plan."""

    plan: FaultPlan
    lives: list[Life] = field(default_factory=list)
    endings: list[Ending] = field(default_factory=list)
    wall_s: float = 0.0

    @property
    def warnings(self) -> list[str]:
        """What the ranks have said beforehand about the clock, once."""
        lines = [line for life in self.lives for line in life.stderr.splitlines()]
        return [line for line in lines if line.startswith("superpod: warning: dilation")][:1]

    @property
    def clock(self) -> dict[str, Any]:
        """`virtual_duration_s` of the whole run; `wall`: the honesty reports of its rounds, if slept."""
        told = [(life.round.start_ps, life.machine) for life in self.lives if life.machine is not None]
        end_ps = max((start + machine.get("virtual_ps", 0) for start, machine in told), default=0)
        walls = [machine["wall"] for _, machine in told if "wall" in machine]
        return {"virtual_duration_s": end_ps / PS_PER_S, **({"wall": walls} if walls else {})}

    @property
    def faults(self) -> list[dict[str, Any]]:
        """Every fault that fired, in the plan's numbers and the run's time; others with `fired` 0."""
        rows = {i: {"fault": i, "kind": f.kind, "fired": 0} for i, f in enumerate(self.plan.faults)}
        for life in self.lives:
            for row in (life.machine or {}).get("faults", []):
                if row["fired"]:
                    number, start = life.round.faults[row["fault"]], life.round.start_ps
                    undone = None if row["undone_ps"] is None else start + row["undone_ps"]
                    times = {"fired_ps": start + row["fired_ps"], "undone_ps": undone}
                    rows[number] = {**row, **times, "fault": number, "round": life.round.number}
        return list(rows.values())


def serve(
    replay: Replay, plan: FaultPlan, directory: Path, times_ps: Mapping[str, int], limit_s: float | None
) -> Served:
    """Serve a replay's requests under a plan, restarting the pod after each death.

    Args:
        replay: what to serve; its ranks' results go to a directory a round under `directory`.
        times_ps: virtual times "detect" and "world" a restart takes.
        limit_s: host seconds in which a round has to come on, or it counts as hanging; None: as long as it
            wants.

    Raises:
        UsageError: the plan does not fit the machine.
    """
    begin = time.monotonic()
    served = Served(plan)
    profile = load_profile(replay.job.profile, replay.job.overrides)
    plan.resolve(replay.job.num_ranks, Topology.from_profile(profile, replay.job.num_ranks))
    life = Round(0, 0, tuple(range(len(replay.specs))), tuple(range(len(plan.faults))))
    while life.requests and life.number < MAX_ROUNDS:
        lived = _live(replay, life, plan, directory / f"round-{life.number}", limit_s)
        ended = endings_of(life, lived.results, lived.noted)
        served.lives.append(lived)
        served.endings += ended
        if lived.machine is None or not lived.machine["dead_ranks"]:
            break
        fired = [row["fault"] for row in lived.machine.get("faults", []) if row["fired"]]
        lived.down_ps = max((r["end_ps"] for r in lived.results), default=0)
        life = next_round(life, ended, fired, lived.down_ps + times_ps["detect"] + times_ps["world"])
    served.wall_s = time.monotonic() - begin
    return served


def _live(replay: Replay, life: Round, plan: FaultPlan, directory: Path, limit_s: float | None) -> Life:
    """Run one round."""
    directory.mkdir(parents=True)
    answers = round_answers(life, replay.answers)
    mine = replace(replay, specs=round_specs(life, replay.specs), answers=answers)
    write_replay(mine, directory)
    Progress(directory, replay.job.num_ranks, create=True)
    in_place = replay.job.recovery is not None
    stream = TokenStream(directory, mine.specs, create=True) if in_place else None
    faults = round_plan(life, plan)
    (directory / "plan.toml").write_text(faults.to_toml())
    config = {
        "profile": replay.job.profile,
        "set": replay.job.overrides,
        "seed": replay.job.seed,
        "report": str(directory / "machine.json"),
        "keep_going": True,
        **clock_of(),
        **({"faults": str(directory / "plan.toml")} if faults.faults else {}),
        **replay.machine_bytes,
    }
    code, stderr, leftovers = run_ranks(replay.job.num_ranks, directory, config, limit_s)
    path = directory / "machine.json"
    machine = json.loads(path.read_text()) if path.exists() else None
    noted = read_endings(directory) if stream is None else stream.endings()
    touched = {} if stream is None else stream.touched()
    return Life(life, read_results(directory), machine, code, stderr, leftovers, noted=noted, touched=touched)


def run_ranks(
    num_ranks: int, directory: Path, config: Mapping[str, Any], limit_s: float | None
) -> tuple[int | None, str, list[str]]:
    """Run the ranks of a prepared replay; (exit code or None if it hung and was ended, stderr, what it left
    in /dev/shm)."""
    program = [*paths.stub_command(), "-m", "serving", str(directory)]
    command = mpirun.command(num_ranks, program, keep_going=True, export=["SUPERPOD_CONFIG"])
    environment = mpirun.environment({**os.environ, "SUPERPOD_CONFIG": json.dumps(dict(config))}, directory)
    before, me = frozenset(_jobs("*")), os.getpid()
    with open(directory / "stderr.txt", "w+b") as said:
        started = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
            preexec_fn=lambda: osproc.die_with_parent(me),
        )
        try:
            code = wait_for_end(lambda: started.wait(limit_s), lambda: _progress(directory))
        finally:
            if started.poll() is None:  # it hangs, or we are ended
                os.killpg(started.pid, signal.SIGKILL)
                started.wait()
        said.seek(0)
        text = said.read().decode(errors="replace")
    return code, text, leftovers(started.pid, before)


def wait_for_end(wait: Callable[[], int], progress: Callable[[], bytes]) -> int | None:
    """Wait for a round's end; its exit code, or None if it hangs.

    A busy host is no hang: it is one where nothing has changed in a whole limit, or after `_MOST_LIMITS`.

    Args:
        wait: for one limit; raises TimeoutExpired.
        progress: what the ranks have said of how far they are.
    """
    before = b""
    for _ in range(_MOST_LIMITS):
        try:
            return wait()
        except subprocess.TimeoutExpired:
            if (now := progress()) == before:
                return None
            before = now
    return None


def _progress(directory: Path) -> bytes:
    file = directory / "progress.bin"
    return file.read_bytes() if file.exists() else b""


def _jobs(mpirun_pid: int | str) -> list[str]:
    return [path.name for path in paths.SHM.glob(f"superpod-*-{mpirun_pid}@*")]


def leftovers(mpirun_pid: int, before: frozenset[str] = frozenset()) -> list[str]:
    """Names in /dev/shm that belong to a job whose mpirun has ended; without those there `before`, of a
    process that had the same number."""
    deadline = time.monotonic() + 2.0
    while True:
        left = [name for name in _jobs(mpirun_pid) if name not in before]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)  # the server learns of the end a moment later


def restart_times(path: Path) -> dict[str, int]:
    """Read the virtual times of a restart, ps. Raises UsageError."""
    import tomllib

    try:
        rows = tomllib.loads(path.read_text())["restart"]
        return {name: round(rows[f"{name}_s"]["value"] * PS_PER_S) for name in ("detect", "world")}
    except (OSError, KeyError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path}: restart.detect_s and restart.world_s are needed: {error}") from None


def exact(served: Served, answers: Mapping[int, tuple[tuple[int, ...], str]]) -> Sequence[int]:
    """Requests that ended with the reference's tokens and logits."""
    return [
        e.request
        for e in served.endings
        if e.error is None and answers[e.request] == (e.tokens, e.logits_sha256)
    ]
