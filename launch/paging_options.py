"""Options of the paged KV cache, of groups and of balancing, with vLLM's spelling."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from emulator.errors import UsageError
from serving.balance import POLICIES
from serving.feed import read_recording
from serving.job import PagingOptions, ReplayJob, job_of
from serving.kv.tiers import PATHS

DEFAULT_BLOCK = 128
"""Priced tokens; what DeepSeek's deployments on this machine use (arXiv 2506.12708: 128 to 512)."""

DpSize = Annotated[
    int | None, typer.Option("--dp-size", "--data-parallel-size", help="DP groups (default: every rank one).")
]
TpSize = Annotated[int, typer.Option("--tp-size", "--tensor-parallel-size", help="Ranks of a DP group.")]
EpSize = Annotated[
    int | None, typer.Option("--ep-size", help="Ranks that share the experts (default: all of them).")
]
PrefixCaching = Annotated[
    bool,
    typer.Option(
        "--enable-prefix-caching/--no-enable-prefix-caching", help="Keep KV of prefixes and use it again."
    ),
]
BlockSize = Annotated[
    int | None, typer.Option(help=f"Priced tokens of a KV block ({DEFAULT_BLOCK}); makes the cache paged.")
]
NumBlocks = Annotated[
    int | None,
    typer.Option("--num-gpu-blocks-override", help="KV blocks of a rank (default: what its memory holds)."),
]
ChunkedPrefill = Annotated[
    bool,
    typer.Option(
        "--enable-chunked-prefill/--no-enable-chunked-prefill", help="Compute prompts over several steps."
    ),
]
DramBlocks = Annotated[
    int, typer.Option(help="KV blocks of a rank in the host's memory, behind those in HBM.")
]
PoolPath = Annotated[
    str, typer.Option("--kv-pool-path", help=f"How KV comes from there: {' or '.join(PATHS)}.")
]
Balancing = Annotated[
    str, typer.Option("--load-balancing", help=f"Which rank gets a request: {', '.join(POLICIES)}.")
]


def paging_options(
    prefix_caching: bool,
    block_size: int | None,
    num_blocks: int | None,
    chunked_prefill: bool,
    dram_blocks: int,
    pool_path: str,
    token_scale: int,
) -> PagingOptions | None:
    """The paged cache these ask for; None where none of them does.

    Raises:
        UsageError: values that cannot be.
    """
    asked = prefix_caching or block_size is not None or num_blocks is not None or not chunked_prefill
    if not asked and not dram_blocks:
        if pool_path != "ub":
            raise UsageError(f"--kv-pool-path {pool_path}: there is no pool; give --dram-blocks")
        return None
    if num_blocks is not None and num_blocks < 1:
        raise UsageError(f"--num-gpu-blocks-override {num_blocks} must be at least 1")
    options = PagingOptions(
        block_size=max(DEFAULT_BLOCK, token_scale) if block_size is None else block_size,
        num_blocks=num_blocks or 0,
        reuse=prefix_caching,
        chunked=chunked_prefill,
        dram_blocks=dram_blocks,
        pool_path=pool_path,
    )
    options.check(token_scale)
    return options


def check_sizes(num_ranks: int, dp_size: int | None, tp_size: int, ep_size: int | None) -> None:
    """Refuse group sizes that do not make up the ranks, all of which host experts.

    Raises:
        UsageError: naming the size that fits.
    """
    if tp_size < 1 or num_ranks % tp_size:
        nearest = max(n for n in range(1, num_ranks + 1) if num_ranks % n == 0 and n <= max(1, tp_size))
        raise UsageError(
            f"--tp-size {tp_size}: {num_ranks} ranks are no whole number of groups; the nearest is {nearest}"
        )
    groups = num_ranks // tp_size
    if dp_size not in (None, groups):
        raise UsageError(
            f"--dp-size {dp_size}: with --tp-size {tp_size}, {num_ranks} ranks are {groups} DP groups"
        )
    if ep_size not in (None, num_ranks):
        raise UsageError(f"--ep-size {ep_size}: all {num_ranks} ranks share the experts")


def recorded_job(job: ReplayJob, path: Path) -> ReplayJob:
    """The job of a recording, read back with the model that `job` has where the recorded one is not given.

    Raises:
        UsageError: it was recorded with another number of ranks, or is no recording.
    """
    header, _ = read_recording(path)
    recorded = job_of(header["job"])
    if recorded.num_ranks != job.num_ranks:
        raise UsageError(
            f"recording {path} was made with -n {recorded.num_ranks}, this run has -n {job.num_ranks}"
        )
    return replace(recorded, model_dir=job.model_dir, recording=str(path.resolve()))
