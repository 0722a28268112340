"""`superpod bench coll`: time and bandwidth of a collective, as nccl-tests and OSU print them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from collectives.bench.formats import render
from collectives.bench.shapes import (
    DTYPES,
    FORMATS,
    REDUCTIONS,
    CollSample,
    CollSpec,
    check,
    lifted,
    most_moved,
    operation,
)
from collectives.select import checked
from emulator.errors import UsageError
from launch import run
from launch.clock_report import duration_and_clock, with_report
from launch.cmd_run import Overrides, check_choice, check_pod, parse_set
from launch.outputs import write_out
from launch.ranks_option import ranks_option
from launch.workplace import work_directory
from memsem.bench.shapes import parse_size, parse_sizes


def bench_coll(
    coll: Annotated[str, typer.Option(help="all_reduce, all_gather(_v), all_to_all(_v), ...")],
    ranks: Annotated[int, ranks_option(least=1)] = 8,
    algo: Annotated[str | None, typer.Option(help="ring, full-mesh, ...; the selector's by default.")] = None,
    sizes: Annotated[str, typer.Option(help="8:16M doubles; or 8,64,1K. Of the larger buffer.")] = "1K:16M",
    form: Annotated[str, typer.Option("--format", help="nccl, osu or json.")] = "nccl",
    dtype: Annotated[str, typer.Option(help="float, double, half, bfloat16, int8, ...")] = "float",
    redop: Annotated[str, typer.Option(help="sum, prod, max or min.")] = "sum",
    root: Annotated[int, typer.Option(help="Of rooted collectives.")] = 0,
    iterations: Annotated[int, typer.Option(help="Measured, per size.")] = 5,
    warmup: Annotated[int, typer.Option(help="Not measured, per size.")] = 1,
    real: Annotated[
        str, typer.Option(help="Most bytes really moved and checked, of all ranks together.")
    ] = "256M",
    pod: Annotated[str, typer.Option(help="Machine profile: a name or a .toml file.")] = "cloudmatrix384",
    overrides: Overrides = None,
    transport: Annotated[str, typer.Option(help="How bytes move: shared or rma.")] = "shared",
    json_out: Annotated[Path | None, typer.Option("--json", help="Write the JSON rows here as well.")] = None,
) -> int:
    """Measure a collective among --ranks dies in emulated time: the figures do not depend on this host.

    All bytes are really moved and checked, out of place and in place, as long as the buffers of all ranks
    together have no more than --real; larger ones are charged in full and moved in part, and the header says
    how much. #wrong counts wrong elements of what was moved, over all ranks.
    """
    check_choice("--format", form, FORMATS)
    check_choice("--dtype", dtype, tuple(DTYPES))
    check_choice("--redop", redop, REDUCTIONS)
    check_choice("--transport", transport, ("shared", "rma"))
    settings = parse_set(overrides or [])
    check_pod(ranks, pod, settings)
    name = operation(coll)
    if algo is not None:
        checked(name, algo)
    asked = (1,) if name == "barrier" else parse_sizes(sizes)
    spec = CollSpec(name, algo, asked, dtype, redop, root, iterations, warmup, parse_size(real, "--real"))
    check(spec, ranks)
    _note(lifted(spec, ranks))
    config = {
        "profile": pod,
        "set": settings,
        "transport": transport,
        "heap_bytes": 1 << 20,
    }
    told, clock, code = run_bench("coll", ranks, spec._asdict(), config, most_moved(spec, ranks))
    if code:
        return code
    wall = clock.get("wall")
    samples = [CollSample(**row) for row in told]
    if json_out is not None:
        write_out("--json", json_out, render(spec, samples, "json", wall))
    typer.echo(render(spec, samples, form, wall), nl=False)
    return 0


def _note(changed: list[tuple[int, int]]) -> None:
    """Say, beside the output, which sizes are measured as larger ones."""
    if changed:
        sizes = ", ".join(str(asked) for asked, _ in changed)
        text = f"--sizes {sizes}: less than an element of each rank, measured as {changed[0][1]} bytes"
        typer.echo(f"superpod: note: {text}", err=True)


def run_bench(
    kind: str, ranks: int, spec: dict[str, Any], config: dict[str, Any], moved: int = 0
) -> tuple[Any, dict[str, Any], int]:
    """Run `collectives.bench` on all ranks; returns what rank 0 wrote, how long it took and on what clock
    (`duration_and_clock`), and the exit code.

    moved: bytes of a buffer, of all ranks together. Each rank holds up to four (what is given, sent, received
    and wanted); all publish theirs twice (`collectives.store`).
    """
    with work_directory() as folder:
        out = folder / "told.json"
        program = ["-m", "collectives.bench", kind, json.dumps(spec), str(out)]
        config, report = with_report(config, folder)
        result = run.run_job(
            ranks, program, config,
            rank_bytes=4 * moved // ranks, shm_bytes=2 * moved, started_s=run.command_start_s(),
        )  # fmt: skip
        if result.exit_code:
            return None, {}, result.exit_code
        if not out.exists():
            raise UsageError("bench: the ranks ended without a result")
        return json.loads(out.read_text()), duration_and_clock(report), 0
