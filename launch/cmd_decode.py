"""`superpod decode`: decode iterations of a whole pod, beside the published ones.

Check everything, make the model unless one is given, run the ranks, merge, print. Exit code 0: all is well,
1: ranks failed, or the published case lies outside its bounds; 2: bad input.
"""

import gc
import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from emulator.clock import clock_said
from launch import paths
from launch.cmd_run import check_choice, check_pod, parse_set
from launch.helper import Helper
from launch.outputs import write_out
from launch.ranks_option import ranks_option
from launch.seed_option import seed_option
from launch.serving_ranks import host_facts, run_ranks
from launch.workplace import job_directory
from serving.decode.report import result_of
from serving.decode.settings import (
    DecodePlan,
    decode_job,
    parse_context,
    plan_decode,
    spare_experts,
    split_overrides,
)
from serving.decode.tables import accounts_table, figures_table, inputs_table
from serving.job import DecodeOptions, read_results, write_requests
from serving.model import ModelConfig, preset_config

_OUTSIDE = 1
_WIDTH = 108


def register(app: typer.Typer) -> None:
    """Add the `decode` command to `app`."""
    app.command("decode", no_args_is_help=True)(decode_command)


def decode_command(
    num_ranks: Annotated[int, ranks_option("Ranks (NPU dies): DPn and EPn.")],
    batch: Annotated[int, typer.Option(help="Sequences a die decodes.")] = 60,
    context: Annotated[str, typer.Option(help="Tokens of context, LOW:HIGH, drawn evenly.")] = "2048:4096",
    steps: Annotated[int, typer.Option(help="Iterations to measure, after one that is not.")] = 4,
    mtp: Annotated[bool, typer.Option(help="One drafted token is verified, and the MTP layer runs.")] = True,
    jitter: Annotated[bool, typer.Option(help="Dies run unevenly, as the priced model's file says.")] = True,
    model: Annotated[
        Path | None, typer.Option(help="Checkpoint directory (else a balanced mini model is made).")
    ] = None,
    priced_as: Annotated[str, typer.Option(help="The model that is charged.")] = "deepseek-r1",
    pod: Annotated[str, typer.Option(help="Machine profile: a name or a .toml file.")] = "cloudmatrix384",
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Set a value of profile, priced model or library (repeatable)."
        ),
    ] = None,
    token_scale: Annotated[
        int, typer.Option(help="Prompt tokens that one computed token stands for.")
    ] = 1024,
    redundant_experts: Annotated[
        int | None, typer.Option(help="Expert replicas beyond one each (else one of each that fits).")
    ] = None,
    seed: Annotated[int, seed_option("Of contents, contexts, jitter and the made model.")] = 0,
    memory_check: Annotated[bool, typer.Option(help="Refuse what a die cannot hold at priced size.")] = True,
    transport: Annotated[str, typer.Option(help="How windows move bytes: shared or rma.")] = "shared",
    json_out: Annotated[Path | None, typer.Option("--json", help="Write the result here.")] = None,
    show_inputs: Annotated[bool, typer.Option("--inputs", help="List every number put in.")] = False,
    progress: Annotated[
        bool, typer.Option("--progress", help="Show progress even if stderr is no terminal.")
    ] = False,
) -> int:
    """Measure decode iterations of a pod: real rows routed, priced at the target's size."""
    check_choice("--transport", transport, ("shared", "rma"))
    settings, bounds = parse_set(overrides or []), parse_context(context)
    check_pod(num_ranks, pod, split_overrides(settings)[0])
    config = preset_config("mini") if model is None else ModelConfig.from_hf(model)
    if redundant_experts is None:
        redundant_experts = spare_experts(num_ranks, config.n_routed_experts)
    with job_directory() as own:
        job = decode_job(
            str(model.resolve() if model else own.path / "model"), num_ranks, batch, bounds,
            DecodeOptions(steps, 2 if mtp else 1, mtp, jitter), settings, priced_as, pod, token_scale,
            redundant_experts, seed, memory_check,
        )  # fmt: skip
        plan = plan_decode(job, config, bounds)
        with Helper("opening the model", own, partial(_open, plan, config, model is None)) as opening:
            opening.start()
            result = _run(plan, own, opening, transport, progress)
    return _tell(result, json_out, show_inputs)


def _open(plan: DecodePlan, config: ModelConfig, is_made: bool) -> None:
    gc.disable()
    import torch

    from serving import model

    torch.set_num_threads(1)
    if is_made:
        model.make_balanced_checkpoint(plan.job.model_dir, config, plan.job.seed)
    else:
        model.load_model(plan.job.model_dir)


def _run(
    plan: DecodePlan, own: paths.RunDirectory, opening: Helper, transport: str, progress: bool
) -> dict[str, Any]:
    """Run the ranks and merge what they say; raises SuperpodError when they ended otherwise than well."""
    directory = own.path
    plan.job.write(directory)
    write_requests(directory, plan.specs)
    ended = run_ranks(plan, directory, transport, opening, progress=progress)
    report = json.loads((directory / "machine.json").read_text())
    result = result_of(plan, read_results(directory))
    kept = {key: report[key] for key in ("trace_sha256", "virtual_duration_s", "wall") if key in report}
    return result | kept | {"host": host_facts(ended, report)}


def _tell(result: dict[str, Any], json_out: Path | None, show_inputs: bool) -> int:
    if json_out is not None:
        write_out("--json", json_out, json.dumps(result, indent=2) + "\n")
    console = Console(width=max(_WIDTH, Console().width))
    console.print(figures_table(result))
    console.print(accounts_table(result))
    if show_inputs:
        console.print(inputs_table(result))
    host = result["host"]
    console.print(f"wall {host['wall_s']:.0f} s, start {host['startup_wall_s']:.0f} s, {host['pss_gb']} GB")
    if "wall" in result:
        console.print(f"clock: {clock_said(result['wall'])}; it starts when the contexts are filled")
    return 0 if result["within_bounds"] else _OUTSIDE
