"""`superpod bench`: latency, bandwidth and message rate between two dies, as perftest and OSU print them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from emulator.errors import UsageError
from launch import run
from launch.clock_report import duration_and_clock, with_report
from launch.cmd_run import Overrides, check_choice, parse_set
from launch.outputs import write_out
from launch.pairs import PAIRS, pair_ranks
from launch.seed_option import seed_option
from launch.workplace import work_directory
from memsem.bench.formats import render
from memsem.bench.shapes import (
    ATOMIC_BYTES,
    ENGINES,
    FORMATS,
    KINDS,
    OPERATIONS,
    BenchSpec,
    Sample,
    keeps_full,
    parse_sizes,
)

_DEFAULT_OPS = {"mem": "put", "verbs": "write", "mpi": "send"}
_HEAP = 4 << 20
_PAIR = "pair"
_HELP = (
    "Measure latency, bandwidth, message rate (lat|bw|rate), collectives (coll), experts (ep), HTTP (serve)."
)
_PAGE = 4096


def register(app: typer.Typer) -> None:
    """Add the subcommand."""
    from launch.bench_coll import bench_coll
    from launch.bench_ep import bench_ep
    from launch.bench_serve import ManyObjectives, bench_serve

    bench = typer.Typer(cls=_Kinds, add_completion=False)
    bench.command(_PAIR, cls=_Pair, no_args_is_help=True, hidden=True)(bench_command)
    bench.command("coll", no_args_is_help=True)(bench_coll)
    bench.command("ep")(bench_ep)
    bench.command("serve", cls=ManyObjectives)(bench_serve)
    app.add_typer(bench, name="bench", help=_HELP)


class _Pair(TyperCommand):
    """The command without a name of its own: one blank in its usage line, not two."""

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        formatter.write_usage(" ".join(ctx.command_path.split()), " ".join(self.collect_usage_pieces(ctx)))


class _Kinds(TyperGroup):
    """`bench lat|bw|rate` is one command of two dies; `bench coll`, `ep` and `serve` are three more."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args if args[:1] in (["coll"], ["ep"], ["serve"]) else [_PAIR, *args])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return ("" if name == _PAIR else name), command, rest


def bench_command(
    kind: Annotated[str, typer.Argument(metavar="lat|bw|rate", help="What is measured.")],
    op: Annotated[
        str | None, typer.Option(help="put get put_signal cas | send write read cas | send.")
    ] = None,
    path: Annotated[str, typer.Option(help="mem, verbs or mpi.")] = "mem",
    engine: Annotated[str, typer.Option(help="mem: mte (cores) or dma.")] = "mte",
    pair: Annotated[str, typer.Option(help="same-chip, same-node or cross-node.")] = "same-node",
    sizes: Annotated[str, typer.Option("--sizes", "--block", help="8:16M doubles; or 8,64,1K.")] = "8:16M",
    form: Annotated[str, typer.Option("--format", help="perftest (MiB/s), osu (MB/s) or json.")] = "perftest",
    iterations: Annotated[int, typer.Option("-n", "--iterations", help="Measured, per size.")] = 10,
    warmup: Annotated[int, typer.Option(help="Not measured, per size.")] = 2,
    batch: Annotated[int, typer.Option(help="bw, rate: operations in flight; see --format.")] = 64,
    pod: Annotated[str, typer.Option(help="Machine profile: a name or a .toml file.")] = "cloudmatrix384",
    overrides: Overrides = None,
    transport: Annotated[str, typer.Option(help="How windows move bytes: shared or rma.")] = "shared",
    mpi_over: Annotated[str, typer.Option(help="Plane of messages: ub, rdma or vpc.")] = "ub",
    delivery: Annotated[str, typer.Option(help="natural or adversarial.")] = "natural",
    seed: Annotated[int, seed_option("Of adversarial delivery.")] = 0,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write the JSON rows here as well.")] = None,
) -> int:
    """Measure one operation between two dies, in emulated time: the figures do not depend on this host.

    bw and rate of --path verbs keep --batch requests in flight all the time, as perftest does (formats
    perftest and json); --format osu posts --batch and waits for all, as OSU does, and so do the other paths.

    Collectives, expert parallelism, HTTP: superpod bench coll --help, bench ep --help, bench serve --help.
    """
    if kind not in KINDS:
        check_choice("bench", kind, (*KINDS, "coll", "ep", "serve"))
    check_choice("--path", path, tuple(OPERATIONS))
    check_choice("--engine", engine, ENGINES)
    check_choice("--pair", pair, PAIRS)
    check_choice("--format", form, FORMATS)
    check_choice("--transport", transport, ("shared", "rma"))
    check_choice("--mpi-over", mpi_over, ("ub", "rdma", "vpc"))
    check_choice("--delivery", delivery, ("natural", "adversarial"))
    op = op or _DEFAULT_OPS[path]
    asked = parse_sizes(str(ATOMIC_BYTES) if op == "cas" and sizes == "8:16M" else sizes)
    peer, settings = pair_ranks(pair, pod, parse_set(overrides or []))
    sliding = keeps_full(kind, path, form)
    spec = BenchSpec(kind, op, path, engine, pair, asked, iterations, warmup, batch, peer, sliding)
    config = {
        "profile": pod,
        "set": settings,
        "transport": transport,
        "mpi_over": mpi_over,
        "delivery": delivery,
        "seed": seed,
        "heap_bytes": _heap_bytes(spec),
    }
    samples, wall, code = _run(spec, config)
    if code:
        return code
    if json_out is not None:
        write_out("--json", json_out, render(spec, samples, "json", wall))
    typer.echo(render(spec, samples, form, wall), nl=False)
    return 0


def _heap_bytes(spec: BenchSpec) -> int:
    """Room for what is really moved: verbs keep a source and a target buffer of the largest message."""
    room = _HEAP + (3 * max(spec.sizes) if spec.path == "verbs" else 0)
    return -(-room // _PAGE) * _PAGE


def _run(spec: BenchSpec, config: dict[str, Any]) -> tuple[list[Sample], dict[str, Any] | None, int]:
    """What was measured, what the wall clock has kept (None under the virtual one), and the exit code."""
    with work_directory() as folder:
        out = folder / "samples.json"
        program = ["-m", "memsem.bench", json.dumps(dataclasses.asdict(spec)), str(out)]
        config, report = with_report(config, folder)
        result = run.run_job(spec.peer + 1, program, config, started_s=run.command_start_s())
        if result.exit_code:
            return [], None, result.exit_code
        if not out.exists():
            raise UsageError("bench: the ranks ended without a result")
        rows = json.loads(out.read_text())
        wall = duration_and_clock(report).get("wall")
    return [Sample(**{**row, "times_ps": tuple(row["times_ps"])}) for row in rows], wall, 0
