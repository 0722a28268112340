"""What `superpod compare` was asked for: its options, checked, as the workload or the transfers it runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from collectives.compare.plot import check_plot
from collectives.compare.report import PATHS
from collectives.compare.workloads import WORKLOADS, Setting, check, make
from emulator.errors import UsageError
from launch.cmd_run import Overrides, check_choice, check_pod, parse_set
from launch.ranks_option import ranks_option
from launch.seed_option import seed_option
from memsem.bench.shapes import parse_sizes

_DEFAULT_SIZES = {"pingpong": "8:4M", "halo": "64:1M", "dispatch": "512,1920,7680", "kv-transfer": "4K:1M"}
_DEFAULT_REPEAT = {"pingpong": 4, "halo": 4, "dispatch": 4, "kv-transfer": 8}
_REPEATED = {"pingpong": "round trips", "halo": "steps", "dispatch": "tokens a rank", "kv-transfer": "layers"}
_HEAP, _WORDS = 4 << 20, 1024
_PAGE, _TRANSFERS = 4096, 40
_LARGEST, _MOST_REPEATED, _MOST_ROOM = 256 << 20, 10_000, 4 << 30
"""Largest message in bytes, most of `--repeat`, and the most bytes of a rank's heap: beyond them a comparison
takes more memory or hours than anybody means."""


@dataclass(frozen=True)
class CompareOptions:
    """As the command line gives them."""

    op: Annotated[
        str | None, typer.Option(help="halo, dispatch, kv-transfer or pingpong (not with --faults).")
    ] = None
    num_ranks: Annotated[int, ranks_option()] = 2
    sizes: Annotated[str | None, typer.Option(help="Message sizes (dispatch: of a row), 8:4M or 8,64.")] = (
        None
    )
    repeat: Annotated[int | None, typer.Option(help="Round trips, steps, tokens a rank, or layers.")] = None
    paths: Annotated[str, typer.Option(help="Paths to compare, comma separated.")] = ",".join(PATHS)
    seed: Annotated[int, seed_option("Of contents and routes.")] = 0
    pod: Annotated[str, typer.Option(help="Machine profile: a name or a .toml file.")] = "cloudmatrix384"
    overrides: Overrides = None
    transport: Annotated[str, typer.Option(help="How windows move bytes: shared or rma.")] = "shared"
    mpi_over: Annotated[str, typer.Option(help="Plane of messages: ub, rdma or vpc.")] = "ub"
    delivery: Annotated[str, typer.Option(help="natural or adversarial.")] = "natural"
    faults: Annotated[
        Path | None,
        typer.Option(help="Send transfers under this fault plan: what each path lets one notice."),
    ] = None
    json_out: Annotated[Path | None, typer.Option("--json", help="Write everything here.")] = None
    plot_out: Annotated[
        Path | None, typer.Option("--plot", help="Draw time and bandwidth: .png or .svg.")
    ] = None

    @property
    def chosen(self) -> list[str]:
        """Names of the paths to compare."""
        return [name.strip() for name in self.paths.split(",")]


def check_options(options: CompareOptions) -> dict[str, str]:
    """Check what both kinds of comparison have; return the profile's changed values. Raises UsageError."""
    if (options.op is None) == (options.faults is None):
        raise UsageError("compare: give --op (a workload), or --faults (a plan)")
    check_choice("--op", "pingpong" if options.op is None else options.op, tuple(WORKLOADS))
    check_choice("--transport", options.transport, ("shared", "rma"))
    check_choice("--mpi-over", options.mpi_over, ("ub", "rdma", "vpc"))
    check_choice("--delivery", options.delivery, ("natural", "adversarial"))
    if options.plot_out is not None:
        check_plot(options.plot_out)
    for name in options.chosen:
        check_choice("--paths", name, PATHS)
        if options.chosen.count(name) > 1:
            raise UsageError(f"--paths {options.paths}: {name} is named twice")
    settings = parse_set(options.overrides or [])
    check_pod(options.num_ranks, options.pod, settings)
    return settings


def transfers(options: CompareOptions) -> tuple[int, int]:
    """Bytes of a transfer under a plan of faults, and how many there are. Raises UsageError."""
    for option, is_given in (
        ("--plot", options.plot_out is not None),
        ("--paths", options.chosen != list(PATHS)),
        ("--transport", options.transport != "shared"),
        ("--delivery", options.delivery != "natural"),
    ):
        if is_given:
            raise UsageError(f"{option} is of --op: a plan is compared over all paths; leave it out")
    given = parse_sizes(options.sizes or "64K")
    if len(given) > 1 or given[0] > _LARGEST:
        raise UsageError(f"--sizes {options.sizes}: with --faults one size, at most {_LARGEST >> 20}M")
    count = _TRANSFERS if options.repeat is None else options.repeat
    if not 1 <= count <= _MOST_REPEATED:
        raise UsageError(f"--repeat {options.repeat}: 1 to {_MOST_REPEATED} transfers")
    return given[0], count


def workload(options: CompareOptions, op: str) -> dict[str, Any]:
    """What the ranks are told to run (`collectives.compare.__main__`). Raises UsageError."""
    spec: dict[str, Any] = {
        "op": op,
        "sizes": parse_sizes(options.sizes or _DEFAULT_SIZES[op]),
        "repeat": _DEFAULT_REPEAT[op] if options.repeat is None else options.repeat,
        "seed": options.seed,
        "paths": options.chosen,
    }
    if not 1 <= spec["repeat"] <= _MOST_REPEATED:
        raise UsageError(f"--repeat {options.repeat}: 1 to {_MOST_REPEATED} {_REPEATED[op]}")
    for size in spec["sizes"]:
        if size > _LARGEST:
            raise UsageError(f"--sizes: {size} B is more than this compares; at most {_LARGEST >> 20}M")
        check(op, Setting(options.num_ranks, size, spec["repeat"], options.seed))
    return spec


def room(spec: dict[str, Any], num_ranks: int) -> dict[str, int]:
    """What each rank needs: two buffers a lane by windows and by verbs, a signal word for each, and the
    words of a queue pair per peer."""
    setting = Setting(num_ranks, max(spec["sizes"]), spec["repeat"], spec["seed"])
    made = make(spec["op"], setting, 0)
    lanes = max(len(made.inbound(rank)) for rank in range(num_ranks))
    heap = _HEAP + 2 * len(spec["paths"]) * (lanes + 1) * max(1, made.capacity)
    if heap > _MOST_ROOM:
        raise UsageError(
            f"compare --op {spec['op']}: its buffers take {heap / 1e9:.1f} GB a rank, at most "
            f"{_MOST_ROOM / 1e9:.1f}; give smaller --sizes or --repeat, or fewer --paths"
        )
    return {"heap_bytes": -(-heap // _PAGE) * _PAGE, "words_per_rank": _WORDS + 2 * lanes + 4 * num_ranks}
