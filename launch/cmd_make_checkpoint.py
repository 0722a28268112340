"""`superpod make-checkpoint`: write a random model in Hugging Face format."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from emulator.errors import UsageError
from launch.seed_option import seed_option

if TYPE_CHECKING:
    from serving.model.config import ModelConfig


def register(app: typer.Typer) -> None:
    """Add the subcommand."""
    app.command("make-checkpoint")(make_checkpoint_command)


LEAST_VOCABULARY = 260
"""Of the byte-level tokenizer: 256 bytes and four special tokens (`serving.api.made_tokenizer`)."""


def make_checkpoint_command(
    directory: Annotated[Path, typer.Argument(help="Where to write config.json and the tensors.")],
    preset: Annotated[
        str, typer.Option(help="mini routes as DeepSeek-R1, qwen3-moe-mini as Qwen3-30B-A3B; tiny for tests.")
    ] = "mini",
    seed: Annotated[int, seed_option("The same seed gives the same bytes.")] = 0,
    balance_router: Annotated[
        bool, typer.Option("--balance-router", help="Set the router's bias so that expert loads are even.")
    ] = False,
    expert_skew: Annotated[
        float | None,
        typer.Option("--expert-skew", help="Set it so that the hottest expert has so many mean loads."),
    ] = None,
    tokenizer: Annotated[
        bool,
        typer.Option("--tokenizer", help="Write a small byte-level tokenizer with a chat template, too."),
    ] = False,
    drift: Annotated[
        int | None,
        typer.Option(help="With --expert-skew: hot experts move so often in a replay of this model."),
    ] = None,
    mtp_layers: Annotated[
        int, typer.Option("--mtp-layers", min=0, max=2, help="Draft layers for speculative decoding.")
    ] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
) -> int:
    """Write a seeded random model: config.json and safetensors."""
    from serving import model  # torch takes a second: only this command needs it

    made = _with_draft_layers(model.preset_config(preset), mtp_layers)
    if tokenizer and made.vocab_size < LEAST_VOCABULARY:
        fit = ", ".join(n for n, c in model.PRESETS.items() if c.vocab_size >= LEAST_VOCABULARY)
        raise UsageError(
            f"--tokenizer needs a vocabulary of {LEAST_VOCABULARY} and {preset} has {made.vocab_size}: "
            f"take --preset {fit}"
        )
    if drift is not None:
        if expert_skew is None or balance_router:
            raise UsageError("--drift moves hot experts: give --expert-skew as well, and no --balance-router")
        config = model.make_drifting_checkpoint(
            directory, made, seed, skew=expert_skew, sections=drift, overwrite=overwrite
        )
    elif expert_skew is None:
        make = model.make_balanced_checkpoint if balance_router else model.make_checkpoint
        config = make(directory, made, seed, overwrite=overwrite)
    elif balance_router:
        raise UsageError("--expert-skew and --balance-router: the bias cannot be both; leave one out")
    else:
        config = model.make_skewed_checkpoint(directory, made, seed, skew=expert_skew, overwrite=overwrite)
    if tokenizer:
        from serving.api.made_tokenizer import make_tokenizer

        make_tokenizer(directory, config.vocab_size)
    layers, experts = config.num_hidden_layers, config.n_routed_experts
    typer.echo(f"{directory}: {preset}, seed {seed}, {layers} layers, {experts} routed experts")
    return 0


def _with_draft_layers(config: "ModelConfig", layers: int) -> "ModelConfig":
    if layers and config.model_type != "deepseek_v3":
        raise UsageError(f"--mtp-layers {layers}: a model of type {config.model_type} has no draft layers")
    return config.model_copy(update={"num_nextn_predict_layers": layers})
