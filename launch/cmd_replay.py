"""`superpod replay`: serve a request trace on N emulated dies and report what its users would have waited.

Check everything, run the ranks and watch them, then the reference; merge; print. Exit code 0: all
is well; 1: ranks failed, an invariant is broken, or an answer differs from the reference's; 2: bad input, a
request that no rank can hold included (the others are served and reported first).

What needs torch is done by helper processes: this one would hold its 140 MB as long as ranks run.
"""

import gc
import json
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from launch import paths, prepared
from launch.helper import Helper
from launch.option_class import takes
from launch.outputs import write_out
from launch.replay_faults import replay_under
from launch.replay_options import ReplayOptions
from launch.replay_request import read_request
from launch.serving_ranks import host_facts, machine_of, run_ranks
from launch.workplace import job_directory
from serving.job import ReplayJob, read_reference, read_results
from serving.model import ModelConfig
from serving.replay import Replay, merge, recorded_schedule, write_replay
from serving.tables import emulator_table, placement_table, serving_table

_FAILED, _BAD_INPUT = 1, 2


@dataclass(frozen=True)
class Running:
    """How to run what was planned."""

    transport: str
    check_reference: bool
    progress: bool
    trace_out: Path | None
    schedule_out: Path | None = None


def register(app: typer.Typer) -> None:
    """Add the `replay` command to `app`."""
    app.command("replay", no_args_is_help=True)(takes(ReplayOptions)(replay_command))


def replay_command(options: ReplayOptions) -> int:
    """Replay a request trace over an emulated pod: real tokens, priced at the target's size."""
    request = read_request(options)
    with job_directory() as own:
        place = own.path if options.prepare is None else options.prepare.resolve()
        plan = request.plan(place)
        if options.show_placement:
            Console().print(placement_table(plan.placement))
        running = Running(
            options.transport,
            options.check_reference,
            options.progress,
            options.trace_out,
            options.schedule_out,
        )
        with _opening(plan.job, request.config, own, is_made=request.model is None) as opening:
            if options.prepare is not None:
                _prepare(plan, own, place, running, opening)
                return 0
            if request.faults is not None:
                is_asked = options.check_reference or plan.job.mtp_acceptance
                with _reference(own) if is_asked else nullcontext() as reference:
                    return replay_under(plan, request.faults, own, opening, reference, options.json_out)
            result = run_replay(plan, own, running, opening)
    return tell(result, options.json_out)


def _prepare(plan: Replay, own: paths.RunDirectory, place: Path, running: Running, opening: Helper) -> None:
    """Write the job into `place`, with its model and, where drafts need them, the reference's answers."""
    opening.wait()
    prepared.write(plan, place, machine_config(plan, place, running))
    if plan.job.mtp_acceptance:  # drafts are drawn against what one process answers
        with _reference(own, place) as reference:
            reference.wait()


def _opening(job: ReplayJob, config: ModelConfig, own: paths.RunDirectory, is_made: bool) -> Helper:
    """The process that makes the model, or checks every tensor of the one given; begun."""
    helper = Helper("opening the model", own, partial(_make_or_check, job, config, is_made))
    helper.start()
    return helper


def _make_or_check(job: ReplayJob, config: ModelConfig, is_made: bool) -> None:
    gc.disable()  # saves 0.1 s of torch's import, and this process ends soon
    import torch

    from serving import model

    torch.set_num_threads(1)  # a forked process has no pool of threads
    if is_made:
        model.make_checkpoint(job.model_dir, config, job.seed)
    else:
        model.load_model(job.model_dir)


def run_replay(plan: Replay, own: paths.RunDirectory, running: Running, opening: Helper) -> dict[str, Any]:
    """Run a planned replay with its files in `own`; return the merged result, `host` included.

    No rank starts before `opening` has ended well.

    Raises:
        UsageError: what `opening` found wrong with the model.
        SuperpodError: the ranks or the reference ended without a result.
    """
    directory = own.path
    write_replay(plan, directory)
    first = bool(plan.job.mtp_acceptance)  # drafts are drawn against what one process answers
    if first:
        opening.wait()
    with _reference(own) if running.check_reference or first else nullcontext() as reference:
        if first and reference is not None:
            reference.wait()
        ended = run_ranks(
            plan,
            directory,
            running.transport,
            opening,
            progress=running.progress,
            trace_out=running.trace_out,
        )
        if reference is not None and not first:
            with Console(stderr=True).status("one process answers the same requests …"):
                reference.wait()
    answers = read_reference(directory) if running.check_reference else None
    machine = json.loads((directory / "machine.json").read_text())
    results = read_results(directory)
    result = merge(plan, results, machine, answers)
    if running.schedule_out is not None:
        recorded_schedule(plan, results).write(running.schedule_out)
    wall = {"wall": machine["wall"]} if "wall" in machine else {}
    return result | wall | {"host": host_facts(ended, machine)}


def machine_config(plan: Replay, directory: Path, running: Running) -> dict[str, Any]:
    """What the ranks' `emulator.init` reads."""
    return machine_of(plan, directory, running.transport)


def _reference(own: paths.RunDirectory, directory: Path | None = None) -> Helper:
    """The process that answers every request of the job in a directory (else `own`) by itself, once the ranks
    have: it would take 0.2 GB beside them."""
    return Helper("the reference", own, partial(_answer, str(directory or own.path)))


def _answer(directory: str) -> None:
    from serving.reference import answer_requests

    answer_requests(directory)


def tell(result: Mapping[str, Any], json_out: Path | None) -> int:
    """Print the tables, write the JSON, and say by the exit code how it went."""
    if json_out is not None:
        write_out("--json", json_out, json.dumps(result, indent=2) + "\n")
    console = Console()
    console.print(serving_table(result))
    console.print(emulator_table(result))
    broken = [name for name, holds in result["invariants"].items() if not holds]
    for name in broken:
        print(f"superpod: broken: {name}", file=sys.stderr)
    for failure in result["failures"]:
        print(f"superpod: error: request {failure['request']}: {failure['error']}", file=sys.stderr)
    if broken:
        return _FAILED
    was_so = "requests" in result  # a recording's failed when it was made, too
    return _BAD_INPUT if result["failures"] and not was_so else 0
