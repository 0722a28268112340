"""What `superpod replay` was asked for: options checked and files read, in one value that plans the replay.

Nothing is run here and nothing written but what a recording's ranks look for stop strings in;
`launch.cmd_replay` does the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from emulator.errors import UsageError
from emulator.faults import FaultPlan
from launch import prepared
from launch.chaos.carried import check_plan
from launch.cmd_run import check_choice, check_pod, parse_set
from launch.model_options import acceptance_of, quantization_of
from launch.open_job import ranks_of, recorded_model, write_stop_table
from launch.paging_options import check_sizes, paging_options, recorded_job
from launch.recovery_options import Policy, policy, recovery_times
from launch.replay_faults import load_checked
from launch.replay_options import ReplayOptions
from serving.decode.settings import split_overrides
from serving.eplb.options import eplb_options
from serving.feed import is_recording
from serving.job import PagingOptions, ReplayJob
from serving.model import ModelConfig, SamplingParams, preset_config
from serving.replay import Replay, plan_replay, plan_serve
from serving.schedule import Schedule
from serving.stragglers import parse_stragglers
from serving.traces import TraceRequest, read_trace
from serving.workload import builtin_trace

_MAY_DIE = "--faults, --recovery in-place"


@dataclass(frozen=True)
class ReplayRequest:
    """A replay's options, checked, with what the files they name say.

    `settings` are changes of the machine, `priced_settings` of the priced model. `faults` is None where no
    rank may die, and an empty plan where ranks may be killed from outside only. `recording` is the trace
    where it is one of `superpod serve --record`; then there are no `lines`.
    """

    options: ReplayOptions
    num_ranks: int
    settings: dict[str, str]
    priced_settings: dict[str, str]
    after: Policy
    faults: FaultPlan | None
    paging: PagingOptions | None
    fixed: Schedule | None
    compared: Schedule | None
    recording: Path | None
    model: Path | None
    lines: list[TraceRequest]
    config: ModelConfig

    def job(self, place: Path) -> ReplayJob:
        """The job of a replay whose files are in `place`. Raises UsageError: values that cannot be."""
        o = self.options
        return ReplayJob(
            model_dir=str(self.model.resolve() if self.model else place / "model"),
            num_ranks=self.num_ranks,
            priced_as=o.priced_as,
            profile=o.pod,
            overrides=self.settings,
            priced_overrides=self.priced_settings,
            seed=o.seed,
            token_scale=o.token_scale,
            batched_tokens=o.batched_tokens,
            max_seqs=o.max_seqs,
            shared_experts=o.shared_experts,
            redundant_experts=o.redundant_experts,
            check_memory=o.memory_check,
            sampling=SamplingParams(o.temperature, top_p=o.top_p),
            schedule="" if self.fixed is None else str(place),
            eplb=eplb_options(o.eplb, o.eplb_step_interval),
            paging=self.paging,
            balancing=o.load_balancing,
            quantization=quantization_of(o.quantization),
            recovery=self.after.times,
            spares=self.after.spares,
            lost_experts=self.after.lost_experts,
            mtp=o.mtp,
            mtp_acceptance=acceptance_of(o.mtp_acceptance, o.mtp),
            stragglers=parse_stragglers(o.slow_die or [], o.gc_pause or [], o.launch_jitter),
            tp_size=o.tp_size,
        )

    def plan(self, place: Path) -> Replay:
        """The replay, with its files in `place`. Raises UsageError: machine or model cannot serve it."""
        job, o = self.job(place), self.options
        if self.recording is None:
            return plan_replay(
                job, self.config, self.lines, o.time_scale, o.max_output, self.fixed, self.compared
            )
        plan = plan_serve(recorded_job(job, self.recording), self.config)
        write_stop_table(plan, self.config.vocab_size, place)
        return plan


def read_request(options: ReplayOptions) -> ReplayRequest:
    """Check options and read the files they name.

    Raises:
        UsageError: options that do not go together, or a file that is none or not what it should be.
    """
    check_choice("--transport", options.transport, ("shared", "rma"))
    settings, priced_settings = split_overrides(parse_set(options.overrides or []))
    num_ranks = ranks_of(options.ranks, options.trace)
    check_pod(num_ranks, options.pod, settings)
    refuse_results_of_prepared(options)
    if options.prepare is not None:
        prepared.check_place(options.prepare)
    in_place = recovery_times(options.recovery, options.heartbeat_period, options.heartbeat_timeout)
    after = policy(num_ranks, in_place, options.spares, options.reload, options.degraded)
    faults = _plan_of_faults(options, num_ranks, settings, in_place is not None)
    _check_groups(options, num_ranks)
    paging = _paging(options)
    fixed, compared = _schedule(options.schedule_from), _schedule(options.compare_schedule)
    recording = options.trace if options.trace is not None and is_recording(options.trace) else None
    model = recorded_model(recording) if recording is not None and options.model is None else options.model
    lines = [] if recording is not None else _lines(options)
    config = _functional_model(model, options)
    return ReplayRequest(
        options, num_ranks, settings, priced_settings, after, faults, paging, fixed, compared, recording,
        model, lines, config,
    )  # fmt: skip


def refuse_results_of_prepared(options: ReplayOptions) -> None:
    """Refuse files that a replay which is only prepared cannot write. Raises UsageError."""
    outputs = {
        "--json": options.json_out,
        "--trace-out": options.trace_out,
        "--schedule-out": options.schedule_out,
    }
    unused = [option for option, path in outputs.items() if path is not None]
    if options.prepare is not None and unused:
        raise UsageError(
            f"{unused[0]}: a prepared replay has no result yet; leave out --prepare, or give --json to "
            "superpod replay-report"
        )


def refuse_with_faults(options: ReplayOptions) -> None:
    """Refuse options that a replay in which ranks may die has no meaning for. Raises UsageError."""
    if options.transport != "shared":
        raise UsageError(
            f"{_MAY_DIE}: ranks die, which --transport {options.transport} cannot survive: use shared"
        )
    others = (options.trace_out, options.schedule_out, options.schedule_from, options.compare_schedule)
    if any(path is not None for path in (*others, options.prepare)):
        raise UsageError(
            f"{_MAY_DIE}: leave out --trace-out, --prepare, --schedule-out, --schedule-from, "
            "--compare-schedule"
        )


def _plan_of_faults(
    options: ReplayOptions, num_ranks: int, settings: dict[str, str], in_place: bool
) -> FaultPlan | None:
    """What breaks; None where no rank may die. Raises UsageError."""
    if options.faults is None and not in_place:
        return None
    refuse_with_faults(options)
    if options.faults is None:
        return FaultPlan()  # ranks may still be killed from outside
    plan = load_checked(options.faults, num_ranks, options.pod, settings)
    check_plan(plan, in_place)
    return plan


def _check_groups(options: ReplayOptions, num_ranks: int) -> None:
    """Refuse groups that do not make up the ranks, or that this replay cannot have. Raises UsageError."""
    check_sizes(num_ranks, options.dp_size, options.tp_size, options.ep_size)
    if options.tp_size > 1 and (options.faults is not None or options.transport != "shared"):
        raise UsageError(f"--tp-size {options.tp_size} does not go with --faults or --transport rma yet")


def _paging(options: ReplayOptions) -> PagingOptions | None:
    return paging_options(
        options.prefix_caching,
        options.block_size,
        options.num_blocks,
        options.chunked_prefill,
        options.dram_blocks,
        options.kv_pool_path,
        options.token_scale,
    )


def _schedule(path: Path | None) -> Schedule | None:
    return None if path is None else Schedule.read(path)


def _lines(options: ReplayOptions) -> list[TraceRequest]:
    """Arrivals and lengths: of the trace, or of the built-in workload."""
    if options.trace is None:
        return builtin_trace(options.requests, options.seed)
    return read_trace(options.trace, options.requests)


def _functional_model(model: Path | None, options: ReplayOptions) -> ModelConfig:
    """The functional model's configuration: of a checkpoint, or of the mini model that will be made."""
    if model is not None:
        return _checkpoint_model(model, options.layers_executed)
    config = _mini_model(options.layers_executed)
    if options.mtp:
        return config.model_copy(update={"num_nextn_predict_layers": options.mtp})
    return config


def _mini_model(layers_executed: int | None) -> ModelConfig:
    mini = preset_config("mini")
    layers = mini.num_hidden_layers if layers_executed is None else layers_executed
    if layers <= mini.first_k_dense_replace:
        raise UsageError(f"--layers-executed {layers}: at least {mini.first_k_dense_replace + 1} are needed")
    return mini.model_copy(update={"num_hidden_layers": layers})


def _checkpoint_model(model: Path, layers_executed: int | None) -> ModelConfig:
    config = ModelConfig.from_hf(model)
    if layers_executed not in (None, config.num_hidden_layers):
        raise UsageError(
            f"--layers-executed {layers_executed}: checkpoint {model} has {config.num_hidden_layers} layers"
        )
    return config
