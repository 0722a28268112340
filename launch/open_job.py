"""The job of an open pod: what `superpod serve` and `LLM` ask for, checked against model and machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import serving
from emulator.errors import UsageError
from launch.model_options import acceptance_of, quantization_of
from launch.paging_options import paging_options
from serving.eplb.options import eplb_options
from serving.feed import is_recording, read_recording
from serving.job import ReplayJob
from serving.model import ModelConfig
from serving.replay import Replay, plan_serve

_PRICED = Path(serving.__file__).parent / "priced"


@dataclass(frozen=True)
class OpenOptions:
    """Options of an open pod, with vLLM's names where it has one."""

    priced_as: str = "deepseek-r1"
    profile: str = "cloudmatrix384"
    overrides: dict[str, str] = field(default_factory=dict)
    seed: int = 0
    max_num_seqs: int = 96
    max_num_batched_tokens: int = 2048
    max_model_len: int | None = None
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    block_size: int = 128
    num_gpu_blocks_override: int | None = None
    load_balancing: str = "least-tokens"
    memory_check: bool = True
    record: str = ""
    priced_overrides: dict[str, str] = field(default_factory=dict)
    dram_blocks: int = 0
    kv_pool_path: str = "ub"
    quantization: str | None = None
    mtp: int = 0
    mtp_acceptance: str | None = None
    eplb: str | None = None
    eplb_step_interval: int | None = None
    redundant_experts: int = 0
    shared_experts: str = "local"
    tp_size: int = 1


def open_plan(model: Path, num_ranks: int, options: OpenOptions) -> tuple[Replay, ModelConfig, int]:
    """A pod that may start, its model, and the most tokens a request of it may use.

    Raises:
        UsageError: no such checkpoint, more ranks than the pod has, another routing shape than the priced
            model's, a longer context than there is, …
    """
    config = ModelConfig.from_hf(model)
    job = ReplayJob(
        model_dir=str(model.resolve()),
        num_ranks=num_ranks,
        priced_as=_absolute(options.priced_as),
        profile=_absolute(options.profile),
        overrides=options.overrides,
        seed=options.seed,
        batched_tokens=options.max_num_batched_tokens,
        max_seqs=options.max_num_seqs,
        check_memory=options.memory_check,
        paging=paging_options(
            options.enable_prefix_caching,
            options.block_size,
            options.num_gpu_blocks_override,
            options.enable_chunked_prefill,
            dram_blocks=options.dram_blocks,
            pool_path=options.kv_pool_path,
            token_scale=1,
        ),
        balancing=options.load_balancing,
        priced_overrides=options.priced_overrides,
        quantization=quantization_of(options.quantization),
        mtp=options.mtp,
        mtp_acceptance=acceptance_of(options.mtp_acceptance, options.mtp),
        eplb=eplb_options(options.eplb, options.eplb_step_interval),
        redundant_experts=options.redundant_experts,
        shared_experts=options.shared_experts,
        tp_size=options.tp_size,
        feed=True,
        record=options.record,
    )
    try:
        plan = plan_serve(job, config)
    except UsageError as error:
        if "priced as" not in str(error):
            raise
        known = ", ".join(sorted(p.stem for p in _PRICED.glob("*.toml")))
        raise UsageError(f"{error}; --priced-as takes {known}, or a .toml file of this shape") from None
    most = min(plan.limits.context, plan.limits.priced_context)
    length = most if options.max_model_len is None else options.max_model_len
    if length > most:
        raise UsageError(f"--max-model-len {length}: this model and machine have at most {most}")
    return plan, config, length


def recorded_model(recording: Path | None) -> Path:
    """The checkpoint a recording was made with."""
    header, _ = read_recording(str(recording))
    return Path(str(header["job"]["model_dir"]))


def ranks_of(num_ranks: int | None, trace: Path | None) -> int:
    """How many ranks a replay has: as asked, else as its recording had.

    Raises:
        UsageError: neither says.
    """
    if num_ranks is not None:
        return num_ranks
    if trace is None or not is_recording(trace):
        raise UsageError(
            "-n is missing: say how many ranks (NPU dies) the pod has, e.g. -n 32; only a recording of "
            "superpod serve --record brings its own number"
        )
    header, _ = read_recording(str(trace))
    return int(header["job"]["num_ranks"])


def write_stop_table(plan: Replay, vocabulary: int, directory: Path) -> None:
    """Write what ranks look for stop strings in, where a recorded request has some."""
    if any(spec.params is not None and spec.params.stop for spec in plan.specs):
        from serving.api.vocabulary import write_table  # brings the tokenizer's library

        directory.mkdir(parents=True, exist_ok=True)
        write_table(plan.job.model_dir, vocabulary, directory)


def _absolute(name: str) -> str:
    """A file's name that holds from any directory; other names stay."""
    return str(Path(name).resolve()) if name.endswith(".toml") else name
