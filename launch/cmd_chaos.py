"""`superpod chaos`: serve under generated fault plans, check what must hold, shrink what fails.

Exit code 0: everything held; 1: a plan broke an invariant (its smallest form and the command that replays it
are printed); 2: bad input.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from emulator.config import clock_of
from emulator.errors import UsageError
from emulator.faults import KINDS, FaultPlan
from emulator.faults.generate import BEATEN, INJECTED, SERVED, generate
from emulator.faults.names import nearest
from launch import paths
from launch.cmd_run import check_pod, check_writable, write_out
from launch.helper import Helper
from launch.recovery_options import TIMES_FILE, Period, Timeout, Way, recovery_times
from launch.run import check_start
from serving.recovery.times import RecoveryTimes
from serving.replay import Replay

_FAILED = 1
_MARGIN = 1.1
"""What a run under faults may take over the sum of its parts: steps form anew after a pause."""
_PS_PER_S = 10**12
_DEFAULT_KINDS = ("kill", "kill_in_lock", "freeze", "slow", "gc_pause", "page_fault")


@dataclass
class Campaign:
    """Plans under one prepared replay."""

    replay: Replay
    answers: Mapping[int, tuple[tuple[int, ...], str]]
    directory: Path
    limit_s: float
    times_ps: Mapping[str, int]
    calm_ps: int = 0
    runs: int = 0
    records: list[dict[str, Any]] = field(default_factory=list)

    def run(self, plan: FaultPlan) -> tuple[dict[str, Any], str]:
        """Serve under a plan; its record and its time-line."""
        from launch.chaos.history import check
        from launch.chaos.plot import timeline
        from launch.chaos.report import record
        from launch.chaos.rounds import serve

        self.runs += 1
        place = self.directory / f"run-{self.runs}"
        served = serve(self.replay, plan, place, self.times_ps, self._limit_s(plan))
        if not plan.faults:
            print("".join(f"{text}\n" for text in served.warnings), end="", file=sys.stderr)
        violations = check(served, self.replay.specs, self.answers, self._deadline_ps(plan))
        entry = record(served, self.replay.specs, self.answers, violations, self.calm_ps)
        if not plan.faults and not violations:
            self.calm_ps = entry["last_token_ps"]
        for file in sorted(place.rglob("*"), reverse=True):
            file.unlink() if file.is_file() else file.rmdir()
        return entry, timeline(served, entry, self.replay.specs)

    def _limit_s(self, plan: FaultPlan) -> float | None:
        """Host seconds of a round; under the wall clock what is slept comes on top, and the calm run, which
        says how long that is, has no limit but the engine's own."""
        clock = clock_of()
        if clock.get("clock", "virtual") == "virtual":
            return self.limit_s
        if not self.calm_ps:
            return None
        return self.limit_s + float(clock.get("dilation", 1.0)) * self._deadline_ps(plan) / _PS_PER_S

    def _deadline_ps(self, plan: FaultPlan) -> int:
        """By when every request must have ended: the calm run stretched by slow dies, once a life, and the
        pauses, restarts and freezes on top."""
        from emulator.faults.kinds import KILLS

        if not plan.faults:
            return 1 << 62
        deaths = sum(fault.kind in KILLS for fault in plan.faults)
        if (in_place := self.replay.job.recovery) is not None:
            deaths += sum(
                (fault.duration_ps or 0) > in_place.timeout_ps - in_place.period_ps for fault in plan.faults
            )
        factor = _MARGIN
        for fault in plan.faults:
            factor *= fault.factor or 1.0
        pauses = sum(f.duration_ps or 0 for f in plan.faults)
        down = self.times_ps["detect"] + self.times_ps["world"]
        if in_place is not None:
            slots = self.replay.placement.slots_per_rank  # the survivors may have to load what one rank held
            down += in_place.timeout_ps + in_place.period_ps + in_place.recovery_ps(slots)
        restarts = deaths * down
        return round((deaths + 1) * factor * self.calm_ps) + pauses + restarts


def register(app: typer.Typer) -> None:
    """Add the `chaos` command to `app`."""

    @app.command("chaos")
    def chaos_command(
        num_ranks: Annotated[int, typer.Option("-n", "--np", help="Ranks (NPU dies).")] = 16,
        seeds: Annotated[int, typer.Option(min=1, help="Plans to draw.")] = 20,
        first_seed: Annotated[int, typer.Option(min=0, help="Seed of the first plan.")] = 0,
        faults: Annotated[str | None, typer.Option(help="Kinds to draw, with commas between.")] = None,
        plan: Annotated[Path | None, typer.Option(help="Run this plan instead (TOML or JSON).")] = None,
        requests: Annotated[int, typer.Option(min=9, help="Requests of every run.")] = 24,
        recovery: Way = "restart",
        heartbeat_period: Period = None,
        heartbeat_timeout: Timeout = None,
        limit_s: Annotated[
            float, typer.Option(min=1.0, help="Host seconds beyond what is slept after which a round hangs.")
        ] = 60.0,
        json_out: Annotated[Path | None, typer.Option("--json", help="Write the report here.")] = None,
        plot: Annotated[Path | None, typer.Option(help="Write the last plan's time-line (SVG) here.")] = None,
        shrinking: Annotated[
            bool, typer.Option("--shrink/--no-shrink", help="Make a failing plan small.")
        ] = True,
    ) -> int:
        """Serve under fault plans drawn from seeds; check that nothing hangs, leaks or answers wrongly."""
        for option, path in (("--json", json_out), ("--plot", plot)):
            check_writable(option, path)
        times = recovery_times(recovery, heartbeat_period, heartbeat_timeout)
        check_pod(num_ranks, "cloudmatrix384", {})
        check_start(num_ranks)
        if plan is not None:
            plans = [FaultPlan.load(plan)]
        else:
            kinds = parse_kinds(faults, in_place=times is not None)
            plans = [
                generate(seed, num_ranks, kinds, requests) for seed in range(first_seed, first_seed + seeds)
            ]
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # and clear all away
        own = paths.RunDirectory()
        try:
            campaign = _prepared(own, num_ranks, requests, limit_s, times)
            smallest, picture = _carry_out(campaign, plans, shrinking)
        finally:
            own.remove()
            os.close(own.lock_fd)
        return _tell(campaign, smallest, picture, json_out, plot)


def parse_kinds(words: str | None, in_place: bool = False) -> tuple[str, ...]:
    """Turn `kill,freeze` into kinds. Raises UsageError for an unknown kind or one no layer carries out."""
    carried = (*INJECTED, *SERVED, *(BEATEN if in_place else ()))
    if words is None:
        return _DEFAULT_KINDS
    kinds = tuple(word.strip() for word in words.split(",") if word.strip())
    for kind in kinds:
        if kind not in KINDS:
            raise UsageError(
                f"--faults {words}: no fault is called {kind!r}; nearest: {nearest(kind, KINDS)}"
            )
        if kind not in carried:
            raise UsageError(
                f"--faults {words}: colocated serving has no layer that carries out {kind}; "
                f"choose among {', '.join(carried)}"
            )
    if not kinds:
        raise UsageError("--faults: name at least one kind")
    return kinds


def _prepared(
    own: paths.RunDirectory, num_ranks: int, requests: int, limit_s: float, recovery: RecoveryTimes | None
) -> Campaign:
    """Make model and reference in a process of its own (this one stays without torch), then a calm run."""
    from launch.chaos.rounds import restart_times

    helper = Helper("the reference", own, lambda: _make(str(own.path), num_ranks, requests, recovery))
    with helper:
        helper.start()
        helper.wait()
    import pickle

    replay, answers = pickle.loads((own.path / "chaos.pickle").read_bytes())
    times = restart_times(TIMES_FILE)
    campaign = Campaign(replay, answers, own.path, limit_s, times)
    calm, _ = campaign.run(FaultPlan())
    if calm["violations"]:
        raise UsageError(f"chaos: the run without faults is not well: {calm['violations'][0]}")
    return campaign


def _make(directory: str, num_ranks: int, requests: int, recovery: RecoveryTimes | None) -> None:
    import pickle

    from launch.chaos.workload import prepare

    made = prepare(Path(directory), num_ranks, requests, recovery=recovery)
    (Path(directory) / "chaos.pickle").write_bytes(pickle.dumps(made))


def _carry_out(
    campaign: Campaign, plans: Sequence[FaultPlan], shrinking: bool
) -> tuple[list[tuple[FaultPlan, str]], str]:
    """Run the plans; the failing ones at their smallest with what they break, and the last time-line."""
    from launch.chaos.shrink import shrink

    smallest, picture = [], ""
    for plan in plans:
        entry, picture = campaign.run(plan)
        campaign.records.append(entry)
        if sys.stderr.isatty():
            print(f"\rplan {len(campaign.records)} of {len(plans)}", end="", file=sys.stderr)
        if entry["violations"]:
            print(f"superpod: seed {plan.seed}: {entry['violations'][0]}", file=sys.stderr)
            if shrinking:
                plan = shrink(plan, lambda p: bool(campaign.run(p)[0]["violations"]), most_runs=20)
            smallest.append((plan, entry["violations"][0]))
    return smallest, picture


def _tell(
    campaign: Campaign,
    smallest: Sequence[tuple[FaultPlan, str]],
    picture: str,
    json_out: Path | None,
    plot: Path | None,
) -> int:
    from launch.chaos.report import coverage, coverage_table, replay_command, summary, summary_table

    numbers, matrix = summary(campaign.records), coverage(campaign.records)
    console = Console()
    console.print(coverage_table(matrix))
    console.print(summary_table(numbers))
    ranks, requests = campaign.replay.job.num_ranks, len(campaign.replay.specs)
    way = "restart" if campaign.replay.job.recovery is None else "in-place"
    for plan, violation in smallest:
        path = Path(f"chaos-seed-{plan.seed}.toml").resolve()
        path.write_text(plan.to_toml())
        print(f"superpod: broken: {violation}\n{plan.to_toml()}", file=sys.stderr)
        print(f"  {replay_command(plan, str(path), ranks, requests, way)}", file=sys.stderr)
    for entry in campaign.records:
        idle = [f"{row['fault']} ({row['kind']})" for row in entry["faults"] if not row["fired"]]
        if idle:
            print(f"superpod: seed {entry['seed']}: never fired: {', '.join(idle)}", file=sys.stderr)
    if json_out is not None:
        report = {"ranks": ranks, "summary": numbers, "coverage": matrix, "plans": campaign.records}
        write_out("--json", json_out, json.dumps(report, indent=1) + "\n")
    if plot is not None:
        write_out("--plot", plot, picture)
    return _FAILED if smallest else 0
