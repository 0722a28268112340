"""Options of `superpod serve`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from launch.cmd_run import parse_set
from launch.model_options import AcceptanceOption, MtpOption, QuantizationOption
from launch.open_job import OpenOptions
from launch.paging_options import (
    DEFAULT_BLOCK,
    Balancing,
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
from launch.seed_option import seed_option
from serving.decode.settings import split_overrides


@dataclass(frozen=True)
class ServeOptions:
    """As the command line gives them; those an open pod has too are named alike."""

    model: Annotated[Path, typer.Argument(help="Checkpoint directory.")]
    num_ranks: Annotated[int, ranks_option()]
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000
    served_model_name: Annotated[
        list[str] | None, typer.Option(help="What clients call the model (several: the first answers).")
    ] = None
    api_key: Annotated[
        str | None, typer.Option(envvar="SUPERPOD_API_KEY", help="Bearer key that clients must give.")
    ] = None
    max_queue: Annotated[
        int | None, typer.Option(min=1, help="Most requests that wait for a first token; then 429.")
    ] = None
    record: Annotated[Path | None, typer.Option(help="Write arrivals and aborts here, for replay.")] = None
    priced_as: Annotated[str, typer.Option(help="The model that is charged.")] = "deepseek-r1"
    pod: Annotated[str, typer.Option(help="Machine profile: a name or a .toml file.")] = "cloudmatrix384"
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Set a value of profile, priced model or library (repeatable)."
        ),
    ] = None
    seed: Annotated[int, seed_option("Of requests that give none.")] = 0
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Requests a rank runs at once.")] = 96
    max_num_batched_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a rank and step.")] = 2048
    max_model_len: Annotated[
        int | None, typer.Option(min=2, help="Most tokens of prompt and answer (else what the model has).")
    ] = None
    enable_prefix_caching: PrefixCaching = True
    enable_chunked_prefill: ChunkedPrefill = True
    block_size: Annotated[int, typer.Option(min=1, help="Tokens of a KV block.")] = DEFAULT_BLOCK
    num_gpu_blocks_override: NumBlocks = None
    dram_blocks: DramBlocks = 0
    kv_pool_path: PoolPath = "ub"
    load_balancing: Balancing = "least-tokens"
    dp_size: DpSize = None
    tp_size: TpSize = 1
    ep_size: EpSize = None
    quantization: QuantizationOption = None
    mtp: MtpOption = 0
    mtp_acceptance: AcceptanceOption = None
    eplb: Annotated[
        str | None, typer.Option(help="Balance experts while serving: xdeepserve or deepseek.")
    ] = None
    eplb_step_interval: Annotated[
        int | None, typer.Option(help="Steps between two balancings (else 32).")
    ] = None
    redundant_experts: Annotated[int, typer.Option(min=0, help="Expert replicas beyond one each.")] = 0
    shared_experts: Annotated[str, typer.Option(help="local, or placed like routed ones.")] = "local"
    memory_check: Annotated[bool, typer.Option(help="Refuse what a die cannot hold at priced size.")] = True
    json_out: Annotated[
        Path | None, typer.Option("--json", help="At the end write what was served here.")
    ] = None
    progress: Annotated[bool, typer.Option("--progress", help="Show how the ranks start.")] = False

    def pod_options(self) -> OpenOptions:
        """Those that the pod behind the server has. Raises UsageError: a `--set` that is none."""
        settings, priced_settings = split_overrides(parse_set(self.overrides or []))
        alike = {field.name for field in dataclasses.fields(OpenOptions)} & set(vars(self))
        return dataclasses.replace(
            OpenOptions(**{name: getattr(self, name) for name in alike}),
            profile=self.pod,
            overrides=settings,
            priced_overrides=priced_settings,
            record=str(self.record.resolve()) if self.record else "",
        )
