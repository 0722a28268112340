"""`superpod compare`: one workload over windows, verbs and messages; results equal, costs side by side.

Exit code 0: results and link bytes are equal on all paths; 1: they are not, or a rank failed.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from collectives.compare.merge import merge
from collectives.compare.plot import plot
from collectives.compare.report import Comparison, table
from emulator.profile import load_profile
from launch import run
from launch.clock_report import duration_and_clock, with_report
from launch.compare_faults import compare_under
from launch.compare_request import CompareOptions, check_options, room, transfers, workload
from launch.option_class import takes
from launch.outputs import write_out
from launch.workplace import work_directory
from memsem.bench.labels import path_label


def register(app: typer.Typer) -> None:
    """Add the subcommand."""
    app.command("compare", no_args_is_help=True)(takes(CompareOptions)(compare_command))


def compare_command(options: CompareOptions) -> int:
    """Run one workload over three ways of moving bytes and say what each contract costs."""
    settings = check_options(options)
    machine: dict[str, Any] = {
        "profile": options.pod,
        "set": settings,
        "mpi_over": options.mpi_over,
        "seed": options.seed,
    }
    if options.faults is not None:
        size, count = transfers(options)
        return compare_under(options.faults, options.num_ranks, size, count, machine, options.json_out)
    assert options.op is not None
    spec = workload(options, options.op)
    windows = {"transport": options.transport, "delivery": options.delivery, **room(spec, options.num_ranks)}
    comparison, code = _run(spec, options.num_ranks, machine | windows)
    if comparison is None:
        return code
    profile = load_profile(options.pod, settings)
    labels = {name: path_label(profile, name) for name in options.chosen}
    return _tell(dataclasses.replace(comparison, labels=labels), options.json_out, options.plot_out)


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
