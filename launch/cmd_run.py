"""`superpod run`: start a program on N ranks of one pod."""

import contextlib
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from emulator.config import DELIVERIES, FAULTS_KEY, MPI_PLANES, TRANSPORTS, environment_config
from emulator.errors import UsageError
from launch import run
from launch.clock_report import duration_and_clock, with_report
from launch.outputs import write_out
from launch.ranks_option import ranks_option
from launch.seed_option import seed_option
from launch.workplace import work_directory


def parse_set(pairs: list[str]) -> dict[str, str]:
    """Turn `key=value` words into a mapping. Raises UsageError for a word without `=` or a key twice."""
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not key or not value:
            raise UsageError(f"--set {pair}: write key=value, e.g. --set ub.latency_inter_us=4")
        if key in found:
            raise UsageError(f"--set {pair}: {key} is set twice")
        found[key] = value
    return found


def check_choice(option: str, value: str, choices: tuple[str, ...]) -> str:
    """Return `value` if it is one of `choices`. Raises UsageError that lists them."""
    if value not in choices:
        raise UsageError(f"{option} {value}: choose one of {', '.join(choices)}")
    return value


def check_pod(num_ranks: int, pod: str, overrides: dict[str, str]) -> None:
    """Check profile, overrides and size. Raises UsageError: unknown profile or key, or more ranks than the
    pod has."""
    from emulator.profile import load_profile

    profile = load_profile(pod, overrides)
    dies = 1
    for key in ("pod.nodes", "pod.chips_per_node", "pod.dies_per_chip"):
        dies *= int(profile.value(key))
    if num_ranks > dies:
        raise UsageError(f"-n {num_ranks}: pod {pod} has {dies} dies, one rank each")


def report_races(folder: str) -> int:
    """Print the races of a run that recorded what its windows touched; 1 if there are any."""
    from memsem.checker import main  # NumPy and the checker are of no use to a run without it

    return main([folder])


_KEYS = {"pod": "profile"}


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def merged_config(options: dict[str, Any], settings: dict[str, str], given: set[str]) -> dict[str, Any]:
    """Return the run's configuration: options given on the command line, then `SUPERPOD_CONFIG`, then the
    options' defaults; `set` key by key. Raises UsageError for a bad `SUPERPOD_CONFIG`."""
    environment = environment_config()
    said = {key: value for key, value in options.items() if key in given}
    overrides = {**environment.get("set", {}), **settings}
    return {**options, **environment, **said, "set": overrides}


def register(app: typer.Typer) -> None:
    """Add the subcommand."""
    app.command("run", context_settings={"allow_interspersed_args": False}, no_args_is_help=True)(run_command)


Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a profile value (repeatable).")
]


def run_command(
    context: typer.Context,
    num_ranks: Annotated[int, ranks_option("Ranks (NPU dies) to start.")],
    program: Annotated[
        list[str] | None, typer.Argument(metavar="PROGRAM ARGS…", help="A script with its arguments.")
    ] = None,
    module: Annotated[str | None, typer.Option("-m", help="Run a module instead, as python -m does.")] = None,
    pod: Annotated[str, typer.Option(help="Machine profile: a name or a .toml file.")] = "cloudmatrix384",
    transport: Annotated[str, typer.Option(help="How windows move bytes: shared or rma.")] = "shared",
    overrides: Overrides = None,
    seed: Annotated[int, seed_option("Seed of everything random.")] = 0,
    delivery: Annotated[
        str,
        typer.Option(help="natural, or adversarial: any order the order flags permit, drawn from --seed."),
    ] = "natural",
    mpi_over: Annotated[str, typer.Option(help="Plane that carries messages: ub, rdma or vpc.")] = "ub",
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Survivors outlive a rank.")] = False,
    faults: Annotated[
        Path | None, typer.Option(help="Break things as this plan (TOML or JSON) says.")
    ] = None,
    check_races: Annotated[
        bool, typer.Option("--check-races", help="Report races of the windows at the end; exit 1 with any.")
    ] = False,
    trace_out: Annotated[Path | None, typer.Option(help="Write a Perfetto/Chrome trace here.")] = None,
    accelerate: Annotated[bool, typer.Option(help="Answer the start's look-ups from shared memory.")] = True,
    progress: Annotated[bool, typer.Option("--progress", help="Show progress on any stderr.")] = False,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write how the run went here.")] = None,
) -> int:
    """Start a program on N ranks: forked torch processes under a real mpirun.

    It behaves as under a plain mpirun: input, output, exit code, Ctrl-C.
    """
    argv = [*(["-m", module] if module else []), *(program or [])]
    if not argv:
        raise UsageError("superpod run: name a program, e.g. superpod run -n 16 app.py")
    if not module and (app := Path(argv[0])).is_dir() and not (app / "__main__.py").exists():
        raise UsageError(f"superpod run: {app} is a directory without __main__.py")
    check_choice("--transport", transport, TRANSPORTS)
    check_choice("--delivery", delivery, DELIVERIES)
    check_choice("--mpi-over", mpi_over, MPI_PLANES)
    given = {"transport": transport, "delivery": delivery, "mpi_over": mpi_over}
    config = merged_config(
        {"profile": pod, "seed": seed, "keep_going": keep_going, **given},
        parse_set(overrides or []),
        given={_KEYS.get(name, name) for name in context.params if _is_given(context, name)},
    )
    check_pod(num_ranks, config["profile"], config["set"])
    if check_races and trace_out is not None:
        raise UsageError("--check-races keeps its own records: run without --trace-out")
    report: Path | None = None
    with contextlib.ExitStack() as held:
        faulty = _with_faults(config, faults, num_ranks)
        if faulty or json_out is not None:
            config, report = with_report(config, held.enter_context(work_directory()))
        if check_races:
            folder = str(held.enter_context(work_directory()))
            config.update(check_races=True, trace=folder)
        result = run.run_job(
            num_ranks,
            argv,
            config,
            keep_going=config["keep_going"],
            accelerate=accelerate,
            progress=progress,
            trace_out=trace_out,
            measure_memory=json_out is not None,
            started_s=run.command_start_s(),
        )
        told = duration_and_clock(report) | read_fault_log(report if faulty else None)
        races = report_races(folder) if check_races and result.exit_code == 0 else 0
    if json_out is not None:
        write_out("--json", json_out, json.dumps(dataclasses.asdict(result) | told, indent=2) + "\n")
    return result.exit_code or races


def _with_faults(config: dict[str, Any], plan: Path | None, num_ranks: int) -> bool:
    """Put a fault plan into the configuration, checked; whether there is one. Raises UsageError."""
    plan = plan or (Path(given) if (given := os.environ.get(FAULTS_KEY)) else None)
    if plan is None:
        return False
    from launch.replay_faults import load_checked

    loaded = load_checked(plan, num_ranks, config["profile"], config["set"])
    config.update(faults=str(plan.resolve()), keep_going=config["keep_going"] or loaded.kills)
    return True


def read_fault_log(report: Path | None) -> dict[str, Any]:
    """Return `faults` of a run's report, and say which never fired; nothing without a plan or a report."""
    if report is None or not report.exists():
        return {}
    from emulator.faults.log import never_fired

    rows = json.loads(report.read_text()).get("faults", [])
    if (idle := never_fired(rows)) is not None:
        print(f"superpod: {idle}", file=sys.stderr)
    return {"faults": rows}
