"""`superpod eplb`: what redundant experts are worth on a model's own routing, native, balanced and ideal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from emulator.errors import UsageError
from emulator.profile import load_profile
from emulator.topology import Topology
from launch.cmd_run import parse_set
from launch.outputs import write_out
from launch.ranks_option import ranks_option
from launch.seed_option import seed_option
from launch.workplace import work_directory

if TYPE_CHECKING:
    from serving.model import Model

_WIDTH = 120
_MOST_SEQUENCES = 1 << 16
_LEAST_TOKENS, _MOST_TOKENS = 1 << 14, 1 << 17
"""Fewer tokens than a step routes would make experts look more uneven than they are in that step."""


def register(app: typer.Typer) -> None:
    """Add the `eplb` command to `app`."""
    app.command("eplb")(eplb_command)


def eplb_command(
    model: Annotated[
        Path | None,
        typer.Option(help="Checkpoint directory with the router (else a mini model is made)."),
    ] = None,
    expert_skew: Annotated[
        float | None,
        typer.Option("--expert-skew", help="Mean loads of the made model's hottest expert (else 18)."),
    ] = None,
    ranks: Annotated[int, ranks_option("Dies.")] = 288,
    redundant_experts: Annotated[int, typer.Option(min=0, help="Replicas beyond one of each expert.")] = 288,
    policy: Annotated[str, typer.Option(help="xdeepserve or deepseek.")] = "xdeepserve",
    batch: Annotated[
        str, typer.Option(help="Sequences a die decodes: numbers with commas.")
    ] = "60,96,128,192",
    context: Annotated[int, typer.Option(min=1, max=1 << 24, help="Tokens each sequence attends to.")] = 3000,
    tokens: Annotated[
        int | None,
        typer.Option(
            min=256,
            max=1 << 22,
            help="Tokens routed and counted, and others to judge by (else those of the largest step).",
        ),
    ] = None,
    slices: Annotated[
        int, typer.Option(min=1, max=4096, help="Slices of time in which rows are counted.")
    ] = 4,
    priced_as: Annotated[str, typer.Option(help="The model that is charged.")] = "deepseek-r1",
    pod: Annotated[str, typer.Option(help="Machine profile: a name or a .toml file.")] = "cloudmatrix384",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a profile value (repeatable).")
    ] = None,
    seed: Annotated[int, seed_option("Of the made model and of the tokens.")] = 0,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write every layer's figures here.")] = None,
) -> int:
    """Balance experts by what a router chose, and price one MoE layer of the busiest die; starts no ranks."""
    from serving.decode.settings import split_overrides
    from serving.eplb.plan import POLICIES, EplbSetting
    from serving.eplb.report import figures, table
    from serving.pricing import PricedModel

    if model is not None and expert_skew is not None:
        raise UsageError("--expert-skew and --model: a given checkpoint has the skew it has; leave one out")
    if policy not in POLICIES:
        raise UsageError(f"--policy {policy}: choose {' or '.join(POLICIES)}")
    sizes = _batches(batch)
    machine, own = split_overrides(parse_set(settings or []))
    profile = load_profile(pod, machine)
    priced = PricedModel.load(priced_as, profile, own)
    topology = Topology.from_profile(profile, ranks)
    nodes = len({topology.node_of(rank) for rank in range(ranks)})
    sizes = _batches(batch)
    if tokens is None:
        tokens = min(max(_LEAST_TOKENS, ranks * max(sizes)), _MOST_TOKENS)
    with _opened(model, 18.0 if expert_skew is None else expert_skew, seed) as router:
        most = router.config.n_routed_experts * (ranks - 1)
        if redundant_experts > most:
            raise UsageError(
                f"--redundant-experts {redundant_experts}: a die holds an expert at most once, so the most "
                f"on {ranks} dies is {most}"
            )
        groups, top_k = router.config.n_group, router.config.num_experts_per_tok
        cases = [
            EplbSetting(ranks, redundant_experts, size, context, policy, groups, top_k, nodes)
            for size in sizes
        ]
        found = figures(router, priced, cases, tokens, slices, seed)
    if json_out is not None:
        write_out("--json", json_out, json.dumps(found, indent=1) + "\n")
    Console(width=_WIDTH).print(table(found, policy, redundant_experts))
    return 0


@contextmanager
def _opened(model: Path | None, skew: float, seed: int) -> Iterator[Model]:
    from serving.model import load_model, make_skewed_checkpoint

    if model is not None:
        yield load_model(model)
        return
    with work_directory() as made:
        make_skewed_checkpoint(made, "mini", seed, skew=skew, overwrite=True)
        yield load_model(made)


def _batches(text: str) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--batch {text}: numbers with commas, for example 60,96,192") from None
    if min(sizes) < 1:
        raise UsageError(f"--batch {text}: at least 1 each")
    if max(sizes) > _MOST_SEQUENCES:
        raise UsageError(f"--batch {text}: at most {_MOST_SEQUENCES} each")
    return sizes
