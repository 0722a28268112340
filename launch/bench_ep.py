"""`superpod bench ep`: percentiles, tokens/s and load of dispatch and combine, in Mooncake's shape."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from collectives.bench import ep_shapes
from collectives.bench.ep_shapes import EpSpec
from emulator.errors import UsageError
from emulator.profile import load_profile
from launch import bench_gate
from launch.bench_coll import run_bench
from launch.cmd_run import Overrides, check_choice, check_pod, parse_set
from launch.outputs import write_out
from launch.ranks_option import ranks_option
from launch.seed_option import seed_option
from launch.workplace import work_directory

_MIB = 1 << 20
_TOPK = 8


def bench_ep(
    ranks: Annotated[int, ranks_option(least=1)] = 8,
    scheme: Annotated[str, typer.Option(help="xccl, cann, deepep, deepep-ll, all-to-all or agrs.")] = "xccl",
    library: Annotated[str | None, typer.Option(help="Whose costs; by default the scheme's own.")] = None,
    experts: Annotated[
        int | None, typer.Option(help="Of all ranks; 256 or nearest above by default.")
    ] = None,
    tokens: Annotated[int, typer.Option(help="Of each rank.")] = 128,
    topk: Annotated[int | None, typer.Option(help="Experts of a token; 8 or the model's by default.")] = None,
    hidden: Annotated[int, typer.Option(help="Values of a row, as charged.")] = 7168,
    real_hidden: Annotated[int, typer.Option(help="Values of a row really moved.")] = 16,
    dtype: Annotated[str | None, typer.Option(help="Dispatched: int8, fp8 or bf16.")] = None,
    routing: Annotated[str, typer.Option(help="uniform, k-hot, zipf, or gate: a model's own.")] = "uniform",
    hot_experts: Annotated[int | None, typer.Option(help="k-hot: how many (else 32).")] = None,
    hot_fraction: Annotated[
        float | None, typer.Option(help="k-hot: their share of the draws (else 0.9).")
    ] = None,
    zipf_alpha: Annotated[float | None, typer.Option(help="zipf: exponent (else 1).")] = None,
    model: Annotated[
        Path | None, typer.Option(help="gate: checkpoint; by default the mini preset, made from --seed.")
    ] = None,
    layer: Annotated[int | None, typer.Option(help="gate: whose router; the first MoE layer's.")] = None,
    iterations: Annotated[int, typer.Option("--iterations", "--iters", help="Measured.")] = 10,
    warmup: Annotated[int, typer.Option(help="Not measured.")] = 1,
    seed: Annotated[int, seed_option("Of routing and contents.")] = 0,
    form: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
    pod: Annotated[str, typer.Option(help="Machine profile: a name or a .toml file.")] = "cloudmatrix384",
    overrides: Overrides = None,
    transport: Annotated[str, typer.Option(help="How bytes move: shared or rma.")] = "shared",
    json_out: Annotated[Path | None, typer.Option("--json", help="Write the JSON here as well.")] = None,
) -> int:
    """Measure dispatch and combine of expert parallelism in emulated time.

    The routing is drawn once from --seed; of a gate, what its router chooses for seeded tokens that went
    through the model's layers before it. Experts return their rows at no charge; what comes home is checked.
    JSON has the fields of Mooncake's ep_benchmark.
    """
    check_choice("--format", form, ("table", "json"))
    check_choice("--transport", transport, ("shared", "rma"))
    if dtype is not None:
        check_choice("--dtype", dtype, ("int8", "fp8", "bf16"))
    settings = parse_set(overrides or [])
    check_pod(ranks, pod, settings)
    machine = load_profile(pod, settings).name
    experts_of_all = -(-256 // ranks) * ranks if experts is None else experts
    spec = EpSpec(
        scheme, library or ep_shapes.usual_library(scheme, machine), experts_of_all, tokens,
        _TOPK if topk is None else topk, hidden, real_hidden, dtype, routing,
        iterations=iterations, warmup=warmup, seed=seed,
    )  # fmt: skip
    spec = _skewed(spec, hot_experts, hot_fraction, zipf_alpha)
    spec = _of_gate(spec, model, layer, experts, topk, ranks)
    ep_shapes.check(spec, ranks, machine)
    config = {"profile": pod, "set": settings, "transport": transport}
    facts, code = _measure(spec, ranks, machine, config)
    if code:
        return code
    if json_out is not None:
        write_out("--json", json_out, ep_shapes.as_json(facts))
    typer.echo(ep_shapes.as_json(facts) if form == "json" else ep_shapes.table(facts), nl=False)
    return 0


def _skewed(spec: EpSpec, hot: int | None, share: float | None, alpha: float | None) -> EpSpec:
    """The specification with how uneven its routing is. Raises: UsageError, options of another routing."""
    for option, value, routing in (
        ("--hot-experts", hot, "k-hot"),
        ("--hot-fraction", share, "k-hot"),
        ("--zipf-alpha", alpha, "zipf"),
    ):
        if value is not None and spec.routing != routing:
            raise UsageError(f"{option} {value}: for --routing {routing} only, not {spec.routing}")
    return spec._replace(
        hot=spec.hot if hot is None else hot,
        share=spec.share if share is None else share,
        alpha=spec.alpha if alpha is None else alpha,
    )


def _of_gate(
    spec: EpSpec, model: Path | None, layer: int | None, experts: int | None, topk: int | None, ranks: int
) -> EpSpec:
    """The specification with what a model's gate decides. Raises: UsageError, options that do not fit."""
    if spec.routing != ep_shapes.GATE:
        for option, value in (("--model", model), ("--layer", layer)):
            if value is not None:
                raise UsageError(f"{option} {value}: for --routing gate only, not {spec.routing}")
        return spec
    gate = bench_gate.find_gate(model, layer, experts, topk, ranks)
    return spec._replace(experts=gate.experts, topk=gate.topk, model=gate.model, layer=gate.layer)


def _measure(spec: EpSpec, ranks: int, machine: str, config: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Draw the routing and run; returns the result and the exit code."""
    with work_directory() as folder:
        if spec.routing == ep_shapes.GATE:
            spec = spec._replace(folder=str(folder))
            bench_gate.draw(spec, ranks)
        load = ep_shapes.loads(spec, ranks)
        most = max(1, int(load.reshape(ranks, -1).sum(axis=1).max()))
        spec = spec._replace(max_rows=most, planes=ep_shapes.planes_of(spec.scheme, spec.library))
        told, clock, code = run_bench(
            "ep", ranks, spec._asdict(), {**config, "managed_bytes": _managed(spec, ranks)}
        )
    if code:
        return {}, code
    times = np.array(told["times_ps"], np.int64).reshape(ranks, spec.iterations, 3)
    return ep_shapes.result(spec, machine, times, told["wrong"], load) | clock, 0


def _managed(spec: EpSpec, ranks: int) -> int:
    """Room for two blocks of each operation and what goes with them, in whole MiB."""
    row = 64 + 4 * (spec.real_hidden + spec.topk + 4)
    rows = spec.max_rows + spec.tokens * (min(spec.topk, ranks) + spec.topk)
    need = 2 * (rows + 256) * row + 1024 * ranks
    return 2 * (-(-need // _MIB) + 1) * _MIB
