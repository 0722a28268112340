"""`superpod chaos`: serve under generated fault plans, check what must hold, shrink what fails.

Exit code 0: everything held; 1: a plan broke an invariant (its smallest form and the command that replays it
are printed); 2: bad input.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from emulator.errors import UsageError
from emulator.faults import ALL_STATES, STATES, FaultPlan
from emulator.faults.generate import generate
from emulator.faults.names import nearest
from launch.chaos.campaign import Campaign, Notebook, prepared
from launch.chaos.carried import check_plan, parse_kinds
from launch.cmd_run import check_pod
from launch.outputs import write_out
from launch.ranks_option import ranks_option
from launch.recovery_options import (
    Degraded,
    Period,
    Policy,
    Reload,
    Spares,
    Timeout,
    Way,
    policy,
    recovery_times,
)
from launch.replay_faults import load_checked
from launch.run import check_start
from launch.seed_option import seed_option
from launch.workplace import job_directory

_FAILED = 1
_POD = "cloudmatrix384"


def register(app: typer.Typer) -> None:
    """Add the `chaos` command to `app`."""

    @app.command("chaos")
    def chaos_command(
        num_ranks: Annotated[int, ranks_option()] = 16,
        seeds: Annotated[int, typer.Option(min=1, max=1_000_000, help="Plans to draw.")] = 20,
        first_seed: Annotated[int, seed_option("Seed of the first plan.")] = 0,
        faults: Annotated[str | None, typer.Option(help="Kinds to draw, with commas between.")] = None,
        states: Annotated[
            str | None,
            typer.Option(
                help="States of requests to strike, with commas between; all: abort, preemption, move and "
                "draft too, on a pod that has them."
            ),
        ] = None,
        plan: Annotated[Path | None, typer.Option(help="Run this plan instead (TOML or JSON).")] = None,
        requests: Annotated[int, typer.Option(min=9, max=100_000, help="Requests of every run.")] = 24,
        recovery: Way = "in-place",
        spares: Spares = 0,
        reload: Reload = True,
        degraded: Degraded = False,
        heartbeat_period: Period = None,
        heartbeat_timeout: Timeout = None,
        limit_s: Annotated[
            float, typer.Option(min=1.0, help="Host seconds beyond what is slept after which a round hangs.")
        ] = 60.0,
        json_out: Annotated[Path | None, typer.Option("--json", help="Write the report here.")] = None,
        resume: Annotated[
            Path | None,
            typer.Option(help="Note each plan's record here; what is noted there already is not run again."),
        ] = None,
        plot: Annotated[Path | None, typer.Option(help="Write the last plan's time-line (SVG) here.")] = None,
        shrinking: Annotated[
            bool, typer.Option("--shrink/--no-shrink", help="Make a failing plan small.")
        ] = True,
    ) -> int:
        """Serve under fault plans drawn from seeds; check that nothing hangs, leaks or answers wrongly."""
        times = recovery_times(recovery, heartbeat_period, heartbeat_timeout)
        after = policy(num_ranks, times, spares, reload, degraded)
        check_pod(num_ranks, _POD, {})
        check_start(num_ranks)
        given = None if plan is None else load_checked(plan, num_ranks, _POD, {})
        if given is not None:
            check_plan(given, times is not None)
        kinds = parse_kinds(faults, in_place=times is not None)
        met = parse_states(states)
        notebook = None
        if resume is not None and given is None:
            notebook = Notebook(resume, _settings(num_ranks, requests, kinds, after, met))
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # and clear all away
        with job_directory() as own:
            campaign = prepared(own, num_ranks, requests, limit_s, after, met)
            plans = (
                [given]
                if given is not None
                else _drawn(campaign, range(first_seed, first_seed + seeds), kinds, met)
            )
            smallest, picture = campaign.carry_out(plans, shrinking, notebook)
        return _tell(campaign, kinds if given is None else (), met, smallest, picture, json_out, plot)


def _settings(
    num_ranks: int, requests: int, kinds: Sequence[str], after: Policy, states: Sequence[str] = STATES
) -> dict[str, Any]:
    """What makes two campaigns' records comparable; JSON values."""
    policy_of = json.loads(json.dumps(asdict(after)))
    more = {} if tuple(states) == STATES else {"states": list(states)}
    return {"ranks": num_ranks, "requests": requests, "faults": list(kinds), "policy": policy_of, **more}


def _drawn(
    campaign: Campaign, seeds: Sequence[int], kinds: Sequence[str], states: Sequence[str]
) -> list[FaultPlan]:
    ranks, requests = campaign.replay.job.num_ranks, len(campaign.replay.specs)
    return [generate(seed, ranks, kinds, requests, moments=campaign.moments, states=states) for seed in seeds]


def parse_states(words: str | None) -> tuple[str, ...]:
    """Turn `decode,abort` or `all` into states; None: those that every pod has. Raises UsageError."""
    if words is None:
        return STATES
    states = tuple(word.strip() for word in words.split(",") if word.strip())
    for state in states:
        if state not in (*ALL_STATES, "all"):
            raise UsageError(
                f"--states {words}: no state is called {state!r}; nearest: {nearest(state, ALL_STATES)}"
            )
    if not states:
        raise UsageError("--states: name at least one state, or all")
    return ALL_STATES if "all" in states else states


def _tell(
    campaign: Campaign,
    kinds: Sequence[str],
    states: Sequence[str],
    smallest: Sequence[tuple[FaultPlan, str]],
    picture: str,
    json_out: Path | None,
    plot: Path | None,
) -> int:
    from launch.chaos import report

    numbers, matrix = report.summary(campaign.records), report.coverage(campaign.records, kinds, states)
    numbers["least_of_a_kind_and_state"] = report.least_covered(matrix)
    ranks, requests = campaign.replay.job.num_ranks, len(campaign.replay.specs)
    if json_out is not None:
        told = {"ranks": ranks, "summary": numbers, "coverage": matrix, "plans": campaign.records}
        write_out("--json", json_out, json.dumps(told, indent=1) + "\n")
    if plot is not None and picture:
        write_out("--plot", plot, picture)
    console = Console()
    console.print(report.coverage_table(matrix))
    console.print(report.summary_table(numbers))
    for plan, violation in smallest:
        path = Path(f"chaos-seed-{plan.seed}.toml").resolve()
        path.write_text(plan.to_toml())
        print(f"superpod: broken: {violation}\n{plan.to_toml()}", file=sys.stderr)
        print(
            f"  {report.replay_command(plan, str(path), campaign.replay.job, requests, states)}",
            file=sys.stderr,
        )
    for entry in campaign.records:
        idle = [f"{row['fault']} ({row['kind']})" for row in entry["faults"] if not row["fired"]]
        if idle:
            print(f"superpod: seed {entry['seed']}: never fired: {', '.join(idle)}", file=sys.stderr)
    return _FAILED if smallest else 0
