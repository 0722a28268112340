"""Options of `superpod replay`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from launch.model_options import (
    AcceptanceOption,
    GcPause,
    LaunchJitter,
    MtpOption,
    QuantizationOption,
    SlowDie,
)
from launch.paging_options import (
    Balancing,
    BlockSize,
    ChunkedPrefill,
    DpSize,
    DramBlocks,
    EpSize,
    NumBlocks,
    PoolPath,
    PrefixCaching,
    TpSize,
)
from launch.ranks_option import ranks_option
from launch.recovery_options import Degraded, Period, Reload, Spares, Timeout, Way
from launch.seed_option import seed_option


@dataclass(frozen=True)
class ReplayOptions:
    """As the command line gives them."""

    ranks: Annotated[
        int | None, ranks_option("Ranks (NPU dies): required, but for a recording that brings its own.")
    ] = None
    requests: Annotated[int, typer.Option(help="Serve the first K requests.")] = 32
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Mooncake JSONL, Azure CSV, or what serve --record wrote (else a built-in workload)."
        ),
    ] = None
    model: Annotated[Path | None, typer.Option(help="Checkpoint directory (else a mini model is made).")] = (
        None
    )
    priced_as: Annotated[str, typer.Option(help="The model that is charged.")] = "deepseek-r1"
    token_scale: Annotated[int, typer.Option(help="Prompt tokens that one computed token stands for.")] = 1
    max_output: Annotated[
        int | None, typer.Option(help="Most output tokens of a request (else what its trace says).")
    ] = None
    time_scale: Annotated[float, typer.Option(help="Arrivals so many times as fast.")] = 1.0
    seed: Annotated[int, seed_option("Of contents, samplers and the made model.")] = 0
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0
    top_p: Annotated[float, typer.Option(help="Nucleus sampling; 1 keeps all.")] = 1.0
    check_reference: Annotated[
        bool, typer.Option("--check-reference", help="Compare with one process, bit for bit.")
    ] = False
    json_out: Annotated[Path | None, typer.Option("--json", help="Write the result here.")] = None
    pod: Annotated[str, typer.Option(help="Machine profile: a name or a .toml file.")] = "cloudmatrix384"
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set a value of profile, priced model or library (repeatable).",
        ),
    ] = None
    transport: Annotated[str, typer.Option(help="How windows move bytes: shared or rma.")] = "shared"
    shared_experts: Annotated[str, typer.Option(help="local, or placed like routed ones.")] = "local"
    redundant_experts: Annotated[int, typer.Option(help="Expert replicas beyond one each.")] = 0
    eplb: Annotated[
        str | None, typer.Option(help="Balance experts while serving: xdeepserve or deepseek.")
    ] = None
    eplb_step_interval: Annotated[
        int | None, typer.Option(help="Steps between two balancings (else 32).")
    ] = None
    show_placement: Annotated[
        bool, typer.Option("--show-placement", help="Print which experts live where.")
    ] = False
    batched_tokens: Annotated[
        int,
        typer.Option(
            "--max-num-batched-tokens", "--batched-tokens", help="Priced tokens of a rank and step."
        ),
    ] = 2048
    max_seqs: Annotated[
        int, typer.Option("--max-num-seqs", "--max-seqs", help="Requests a rank runs at once.")
    ] = 96
    dp_size: DpSize = None
    tp_size: TpSize = 1
    ep_size: EpSize = None
    prefix_caching: PrefixCaching = False
    block_size: BlockSize = None
    num_blocks: NumBlocks = None
    chunked_prefill: ChunkedPrefill = True
    dram_blocks: DramBlocks = 0
    kv_pool_path: PoolPath = "ub"
    load_balancing: Balancing = "least-tokens"
    quantization: QuantizationOption = None
    mtp: MtpOption = 0
    mtp_acceptance: AcceptanceOption = None
    slow_die: SlowDie = None
    gc_pause: GcPause = None
    launch_jitter: LaunchJitter = 0.0
    layers_executed: Annotated[
        int | None, typer.Option(help="Layers of the made model (8); each is charged for several.")
    ] = None
    memory_check: Annotated[bool, typer.Option(help="Refuse what a die cannot hold at priced size.")] = True
    trace_out: Annotated[Path | None, typer.Option(help="Write a Perfetto/Chrome trace here.")] = None
    schedule_out: Annotated[
        Path | None, typer.Option(help="Write which rank computed what in which step.")
    ] = None
    schedule_from: Annotated[
        Path | None,
        typer.Option(help="Follow a schedule of --schedule-out exactly; arrivals do not gate."),
    ] = None
    compare_schedule: Annotated[
        Path | None, typer.Option(help="Name the first decision that differs from such a schedule.")
    ] = None
    prepare: Annotated[
        Path | None, typer.Option(help="Only write the job there, to run it under your own mpirun.")
    ] = None
    faults: Annotated[Path | None, typer.Option(help="Break things as this plan (TOML or JSON) says.")] = None
    recovery: Way = "restart"
    spares: Spares = 0
    reload: Reload = True
    degraded: Degraded = False
    heartbeat_period: Period = None
    heartbeat_timeout: Timeout = None
    progress: Annotated[
        bool, typer.Option("--progress", help="Show progress even if stderr is no terminal.")
    ] = False
