"""`superpod compare`: one workload over windows, verbs and messages; results equal, costs side by side.

Exit code 0: results and link bytes are equal on all paths; 1: they are not, or a rank failed.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from collectives.compare.merge import merge
from collectives.compare.plot import check_plot, plot
from collectives.compare.report import PATHS, Comparison, table
from collectives.compare.workloads import WORKLOADS, Setting, check, make
from emulator.errors import UsageError
from emulator.profile import load_profile
from launch import run
from launch.clock_report import duration_and_clock, with_report
from launch.cmd_run import Overrides, check_choice, check_pod, parse_set
from launch.compare_faults import compare_under
from launch.outputs import write_out
from launch.ranks_option import ranks_option
from launch.seed_option import seed_option
from launch.workplace import work_directory
from memsem.bench.labels import path_label
from memsem.bench.shapes import parse_sizes

_DEFAULT_SIZES = {"pingpong": "8:4M", "halo": "64:1M", "dispatch": "512,1920,7680", "kv-transfer": "4K:1M"}
_DEFAULT_REPEAT = {"pingpong": 4, "halo": 4, "dispatch": 4, "kv-transfer": 8}
_REPEATED = {"pingpong": "round trips", "halo": "steps", "dispatch": "tokens a rank", "kv-transfer": "layers"}
_HEAP, _WORDS = 4 << 20, 1024
_PAGE, _TRANSFERS = 4096, 40
_LARGEST, _MOST_REPEATED, _MOST_ROOM = 256 << 20, 10_000, 4 << 30
"""Largest message in bytes, most of `--repeat`, and the most bytes of a rank's heap: beyond them a comparison
takes more memory or hours than anybody means."""


def register(app: typer.Typer) -> None:
    """Add the subcommand."""
    app.command("compare", no_args_is_help=True)(compare_command)


def compare_command(
    op: Annotated[
        str | None, typer.Option(help="halo, dispatch, kv-transfer or pingpong (not with --faults).")
    ] = None,
    num_ranks: Annotated[int, ranks_option()] = 2,
    sizes: Annotated[
        str | None, typer.Option(help="Message sizes (dispatch: of a row), 8:4M or 8,64.")
    ] = None,
    repeat: Annotated[int | None, typer.Option(help="Round trips, steps, tokens a rank, or layers.")] = None,
    paths: Annotated[str, typer.Option(help="Paths to compare, comma separated.")] = ",".join(PATHS),
    seed: Annotated[int, seed_option("Of contents and routes.")] = 0,
    pod: Annotated[str, typer.Option(help="Machine profile: a name or a .toml file.")] = "cloudmatrix384",
    overrides: Overrides = None,
    transport: Annotated[str, typer.Option(help="How windows move bytes: shared or rma.")] = "shared",
    mpi_over: Annotated[str, typer.Option(help="Plane of messages: ub, rdma or vpc.")] = "ub",
    delivery: Annotated[str, typer.Option(help="natural or adversarial.")] = "natural",
    faults: Annotated[
        Path | None,
        typer.Option(help="Send transfers under this fault plan: what each path lets one notice."),
    ] = None,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write everything here.")] = None,
    plot_out: Annotated[
        Path | None, typer.Option("--plot", help="Draw time and bandwidth: .png or .svg.")
    ] = None,
) -> int:
    """Run one workload over three ways of moving bytes and say what each contract costs."""
    if (op is None) == (faults is None):
        raise UsageError("compare: give --op (a workload), or --faults (a plan)")
    check_choice("--op", "pingpong" if op is None else op, tuple(WORKLOADS))
    check_choice("--transport", transport, ("shared", "rma"))
    check_choice("--mpi-over", mpi_over, ("ub", "rdma", "vpc"))
    check_choice("--delivery", delivery, ("natural", "adversarial"))
    if plot_out is not None:
        check_plot(plot_out)
    chosen = [name.strip() for name in paths.split(",")]
    for path_name in chosen:
        check_choice("--paths", path_name, PATHS)
        if chosen.count(path_name) > 1:
            raise UsageError(f"--paths {paths}: {path_name} is named twice")
    settings = parse_set(overrides or [])
    check_pod(num_ranks, pod, settings)
    if faults is not None:
        for option, is_given in (
            ("--plot", plot_out is not None),
            ("--paths", chosen != list(PATHS)),
            ("--transport", transport != "shared"),
            ("--delivery", delivery != "natural"),
        ):
            if is_given:
                raise UsageError(f"{option} is of --op: a plan is compared over all paths; leave it out")
        machine = {"profile": pod, "set": settings, "mpi_over": mpi_over, "seed": seed}
        given = parse_sizes(sizes or "64K")
        if len(given) > 1 or given[0] > _LARGEST:
            raise UsageError(f"--sizes {sizes}: with --faults one size, at most {_LARGEST >> 20}M")
        transfers = _TRANSFERS if repeat is None else repeat
        if not 1 <= transfers <= _MOST_REPEATED:
            raise UsageError(f"--repeat {repeat}: 1 to {_MOST_REPEATED} transfers")
        return compare_under(faults, num_ranks, given[0], transfers, machine, json_out)
    assert op is not None
    spec: dict[str, Any] = {
        "op": op,
        "sizes": parse_sizes(sizes or _DEFAULT_SIZES[op]),
        "repeat": _DEFAULT_REPEAT[op] if repeat is None else repeat,
        "seed": seed,
        "paths": chosen,
    }
    if not 1 <= spec["repeat"] <= _MOST_REPEATED:
        raise UsageError(f"--repeat {repeat}: 1 to {_MOST_REPEATED} {_REPEATED[op]}")
    for size in spec["sizes"]:
        if size > _LARGEST:
            raise UsageError(f"--sizes: {size} B is more than this compares; at most {_LARGEST >> 20}M")
        check(op, Setting(num_ranks, size, spec["repeat"], seed))
    config = {
        "profile": pod,
        "set": settings,
        "transport": transport,
        "mpi_over": mpi_over,
        "delivery": delivery,
        "seed": seed,
        **_room(spec, num_ranks),
    }
    comparison, code = _run(spec, num_ranks, config)
    if comparison is None:
        return code
    profile = load_profile(pod, settings)
    labels = {name: path_label(profile, name) for name in chosen}
    return _tell(dataclasses.replace(comparison, labels=labels), json_out, plot_out)


def _room(spec: dict[str, Any], num_ranks: int) -> dict[str, int]:
    """What each rank needs: two buffers a lane by windows and by verbs, a signal word for each, and the
    words of a queue pair per peer."""
    setting = Setting(num_ranks, max(spec["sizes"]), spec["repeat"], spec["seed"])
    workload = make(spec["op"], setting, 0)
    lanes = max(len(workload.inbound(rank)) for rank in range(num_ranks))
    heap = _HEAP + 2 * len(spec["paths"]) * (lanes + 1) * max(1, workload.capacity)
    if heap > _MOST_ROOM:
        raise UsageError(
            f"compare --op {spec['op']}: its buffers take {heap / 1e9:.1f} GB a rank, at most "
            f"{_MOST_ROOM / 1e9:.1f}; give smaller --sizes or --repeat, or fewer --paths"
        )
    return {"heap_bytes": -(-heap // _PAGE) * _PAGE, "words_per_rank": _WORDS + 2 * lanes + 4 * num_ranks}


def _run(spec: dict[str, Any], num_ranks: int, config: dict[str, Any]) -> tuple[Comparison | None, int]:
    with work_directory() as folder:
        program = ["-m", "collectives.compare", json.dumps(spec), str(folder)]
        config, report = with_report(config, folder)
        result = run.run_job(num_ranks, program, config, started_s=run.command_start_s())
        if result.exit_code:
            return None, result.exit_code
        files = [folder / f"{rank}.json" for rank in range(num_ranks)]
        merged = merge(spec["op"], [json.loads(file.read_text()) for file in files])
        return dataclasses.replace(merged, clock=duration_and_clock(report)), 0


def _tell(comparison: Comparison, json_out: Path | None, plot_out: Path | None) -> int:
    if json_out is not None:
        write_out("--json", json_out, json.dumps(comparison.as_dict(), indent=2) + "\n")
    if plot_out is not None:
        plot(comparison, plot_out)
    Console(width=None if sys.stdout.isatty() else 150).print(table(comparison))
    wrong = comparison.unequal()
    for line in wrong:
        typer.echo(f"superpod compare: {line}", err=True)
    equal = "results equal byte for byte, link payloads equal"
    typer.echo(f"{len(comparison.rows)} measurements, " + (equal if not wrong else "NOT equal"))
    return 1 if wrong else 0
