"""A replay before and after its ranks: check everything that can be checked, then merge what they report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from emulator.errors import UsageError
from emulator.profile import Profile, load_profile
from emulator.topology import Topology
from serving.balance import check_policy
from serving.charges import LayerPlan, check_batch, kv_capacity, plan_layers
from serving.eplb.room import check_eplb, eplb_bytes
from serving.feed import read_recording, spec_of
from serving.job import ReplayJob, write_reference, write_requests, write_schedule
from serving.limits import exchange_sizes, job_limits, job_placement, machine_bytes, touched_bytes
from serving.model.config import ModelConfig, with_mtp
from serving.placement import Placement
from serving.pricing import PricedModel
from serving.quantization import quantization_facts
from serving.report import (
    binding_resource,
    cache_facts,
    check_invariants,
    equal_to_reference,
    outcomes,
    virtual_result,
)
from serving.request import RequestSpec
from serving.schedule import Schedule, check_identity, compare, identify, record, rehearse
from serving.scheduler import SchedulerLimits
from serving.speculation_report import check_speculation, speculation_facts
from serving.tables import bytes_by_class
from serving.tensor.check import check_tensor
from serving.tensor.price import shard
from serving.traces import TraceRequest
from serving.workload import WorkloadOptions, make_requests


@dataclass(frozen=True)
class Replay:
    """A replay that may start: every input has been checked."""

    job: ReplayJob
    specs: list[RequestSpec]
    profile: Profile
    priced: PricedModel
    placement: Placement
    limits: SchedulerLimits
    plans: list[LayerPlan]
    machine_bytes: dict[str, int]
    """Heap, managed and staging bytes of a rank, as `emulator.init` takes them."""
    touched_bytes: int
    """Shared memory a rank is expected to write."""
    identity: dict[str, Any]
    """What a schedule of this replay belongs to (`serving.schedule.identify`)."""
    fixed: Schedule | None = None
    """The schedule to follow; then all requests are there at virtual time 0."""
    compared: Schedule | None = None
    """The schedule to compare with."""
    config: ModelConfig | None = None
    """Of the functional model, as it is computed."""
    answers: Sequence[Mapping[str, Any]] | None = None
    """What the reference has answered (`serving.job.read_reference`), where drafts are drawn against it."""


def plan_replay(
    job: ReplayJob,
    config: ModelConfig,
    trace: Sequence[TraceRequest],
    time_scale: float,
    max_output: int | None,
    fixed: Schedule | None = None,
    compared: Schedule | None = None,
) -> Replay:
    """Check a job against its machine, models and workload.

    Raises:
        UsageError: unknown profile key, more ranks than the pod has, another routing shape than the priced
            model's, a die too small at priced size, a budget below the token scale, a schedule (to follow, or
            to compare with) of another run, …
    """
    options = WorkloadOptions(
        config.vocab_size, job.token_scale, time_scale, max_output, job.seed, config.vocab_sections
    )
    return _plan(job, config, make_requests(trace, options), fixed, compared)


def plan_serve(job: ReplayJob, config: ModelConfig) -> Replay:
    """Check a job whose requests come from outside, or from a recording; see `plan_replay`."""
    specs: list[RequestSpec] = []
    if job.recording:
        _, entries = read_recording(job.recording)
        specs = [spec_of(entry["add"], 0) for entry in entries if "add" in entry]
    return _plan(job, config, specs, None, None)


def plan_specs(job: ReplayJob, config: ModelConfig, specs: list[RequestSpec]) -> Replay:
    """Check a job whose requests are made by the caller; see `plan_replay`."""
    return _plan(job, config, specs, None, None)


def _plan(
    job: ReplayJob,
    config: ModelConfig,
    specs: list[RequestSpec],
    fixed: Schedule | None,
    compared: Schedule | None,
) -> Replay:
    config = with_mtp(config, job.mtp, job.model_dir).model_copy(update={"quantization": job.quantization})
    check_speculation(job)
    profile = load_profile(job.profile, job.overrides)
    Topology.from_profile(profile, job.num_ranks)
    check_tensor(job, config)
    priced = shard(PricedModel.load(job.priced_as, profile, job.priced_overrides), job.tp_size)
    plans = plan_layers(config, priced)
    placement = job_placement(job, config)
    check_batch(job.batched_tokens, job.max_seqs)
    check_eplb(job, priced)
    if job.stragglers is not None:
        job.stragglers.check(job.num_ranks)
    check_policy(job.balancing)
    if job.paging is not None:
        job.paging.check(job.token_scale)
        if fixed is not None:
            raise UsageError(
                "--schedule-from: a schedule does not say which blocks are shared; leave out the options of "
                "the paged cache"
            )
    limits = job_limits(job, config, kv_capacity(priced, placement, job.check_memory), specs)
    top_k = config.num_experts_per_tok
    sizes = exchange_sizes(job, limits, placement, top_k, specs)
    memory = machine_bytes(
        sizes, top_k + placement.shared_placed, config.hidden_size, placement.slots_per_rank
    )
    if job.eplb is not None:
        memory |= eplb_bytes(job, config, placement, memory)
    touched = touched_bytes(sizes, config.hidden_size, placement.slots_per_rank)
    identity = identify(config, specs, _settings(job))
    for schedule in (fixed, compared):
        if schedule is not None:
            check_identity(schedule, identity)
    if fixed is not None:
        rehearse(fixed, specs, limits, job.num_ranks)
        specs = [replace(spec, arrival_ps=0) for spec in specs]
    parts = (profile, priced, placement, limits, plans, memory, touched, identity)
    return Replay(job, specs, *parts, fixed, compared, config)


def _settings(job: ReplayJob) -> dict[str, int]:
    """What of a job decides its schedule, beside model and workload."""
    return {
        "ranks": job.num_ranks,
        "seed": job.seed,
        "token_scale": job.token_scale,
        "batched_tokens": job.batched_tokens,
        "max_seqs": job.max_seqs,
        **({"tp_size": job.tp_size} if job.tp_size > 1 else {}),
    }


def write_replay(replay: Replay, directory: str | Path) -> None:
    """Write what the ranks read."""
    replay.job.write(directory)
    write_requests(directory, replay.specs)
    if replay.answers is not None:
        write_reference(directory, replay.answers)
    if replay.fixed is not None:
        write_schedule(directory, replay.fixed.assigned, replay.fixed.rows)


def recorded_schedule(replay: Replay, results: Sequence[Mapping[str, Any]]) -> Schedule:
    """The schedule of a replay that has run."""
    last = max((r["times_ps"][-1] for rank in results for r in rank["requests"] if r["times_ps"]), default=0)
    return record(results, replay.identity, replay.profile, replay.specs, last)


def _schedule_facts(replay: Replay, schedule: Schedule) -> dict[str, Any]:
    return {
        "followed": None if replay.fixed is None else replay.fixed.name,
        "sha256": schedule.sha256,
        "compared": None if replay.compared is None else compare(schedule, replay.compared),
    }


def merge(
    replay: Replay,
    results: Sequence[Mapping[str, Any]],
    machine: Mapping[str, Any],
    reference: Sequence[Mapping[str, Any]] | None,
) -> dict[str, Any]:
    """One result from the ranks' (`serving.job.read_results`), the machine's (`emulator.finalize`) and the
    reference's. Everything in it follows from configuration and seed; the caller adds `host`."""
    endings = outcomes(results)
    replay = _with_arrivals(replay, results)
    invariants = check_invariants(
        replay.specs, results, endings, replay.job.num_ranks, sum(machine["bytes_by_class"])
    )
    result = virtual_result(replay.specs, results, endings)
    differing = None if reference is None else equal_to_reference(endings, reference)
    if differing is not None:
        invariants["tokens_equal_reference"] = not differing
    schedule = recorded_schedule(replay, results)
    job = replay.job
    speculation = {"speculation": speculation_facts(job.mtp, job.mtp_acceptance, results)} if job.mtp else {}
    quantization = _quantization(replay, reference, invariants)
    if replay.fixed is not None:
        invariants["schedule_followed"] = schedule.sha256 == replay.fixed.sha256
    ports = dict(zip(("egress port", "ingress port", "local copies"), machine["busy_ps"], strict=True))
    return {
        **result,
        "functional_tokens": result["work"]["functional_tokens"],
        "priced_tokens": result["work"]["priced_tokens"],
        "tokens_equal_reference": None if differing is None else not differing,
        "requests_differing_from_reference": differing or [],
        "trace_sha256": machine["trace_sha256"],
        "bytes_by_class": bytes_by_class(machine["bytes_by_class"]),
        "bottleneck": binding_resource(results, ports),
        "schedule": _schedule_facts(replay, schedule),
        "invariants": invariants,
        **balancing_facts(replay, results),
        "labels": _labels(replay),
        **quantization,
        **speculation,
        "configuration": _configuration(replay),
        **({} if (cache := cache_facts(results)) is None else {"cache": cache}),
        **(recorded_answers(results) if replay.job.is_open else {}),
    }


def recorded_answers(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Every answer of a recording that was read back, to be compared with what its clients got."""
    keys = ("id", "rank", "arrival_ps", "tokens", "times_ps", "finish", "stop_reason", "error")
    entries = sorted((e for result in results for e in result["requests"]), key=lambda e: int(e["id"]))
    return {
        "requests": [{key: entry.get(key) for key in keys} for entry in entries],
        "virtual_ps": max((int(result["end_ps"]) for result in results), default=0),
    }


def balancing_facts(replay: Replay, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What live balancing has done, as rank 0 tells it; nothing where there was none."""
    if replay.job.eplb is None:
        return {}
    rounds = results[0].get("balancing", []) if results else []
    whole = [r for r in rounds if "restored_ps" in r]
    return {
        "eplb": {
            "rounds": rounds,
            "moves": sum(r["moves"] for r in whole),
            "moved_bytes": sum(r["moved_bytes"] for r in whole),
            "rounds_completed": len(whole),
        }
    }


def _with_arrivals(replay: Replay, results: Sequence[Mapping[str, Any]]) -> Replay:
    """With the arrivals that requests from outside were given when they came."""
    if not replay.job.is_open:
        return replay
    came = {e["id"]: int(e["arrival_ps"]) for result in results for e in result["requests"]}
    return replace(replay, specs=[replace(s, arrival_ps=came.get(s.request_id, 0)) for s in replay.specs])


def _quantization(
    replay: Replay, reference: Sequence[Mapping[str, Any]] | None, invariants: dict[str, Any]
) -> dict[str, Any]:
    """What an INT8 replay says of it, beside an invariant; nothing of another one."""
    if replay.config is None or replay.config.quantization is None:
        return {}
    facts = quantization_facts(replay.config, replay.placement.slots_per_rank, reference)
    if (error := facts["logit_error"]) is not None:
        invariants["logit_error_within_bound"] = error["relative_rms"] <= error["bound"]
    return {"quantization": facts}


def _labels(replay: Replay) -> dict[str, Any]:
    """How many of the numbers used are measured, published, derived or assumed, and what was simplified."""
    entries = [*dict(replay.profile.items()).values(), *dict(replay.priced.entries.items()).values()]
    notes = [
        f"layer {plan.index} is executed once and charged {plan.repeat} times"
        for plan in replay.plans
        if plan.repeat > 1
    ]
    if replay.job.token_scale > 1:
        notes.append(f"a prompt token computed stands for up to {replay.job.token_scale} priced ones")
    if replay.fixed is not None:
        notes.append("the schedule is a recorded one: every request counts as there at virtual time 0")
    if replay.job.paging is not None and replay.job.paging.dram_blocks:
        notes.append("what the reuse of a prefix does not save is one fitted share (serving/kv/tiers.toml)")
    if not replay.job.check_memory:
        notes.append("the memory of a die at priced size was not checked")
    return {**Counter(entry.label for entry in entries), "notes": notes}


def _configuration(replay: Replay) -> dict[str, Any]:
    job = replay.job
    more: dict[str, Any] = {} if job.paging is None else {"paging": asdict(job.paging)}
    if job.stragglers is not None:
        more["stragglers"] = asdict(job.stragglers)
    if job.balancing != "least-tokens":
        more["balancing"] = job.balancing
    if job.tp_size > 1:
        more["groups"] = {"dp_size": job.num_ranks // job.tp_size, "tp_size": job.tp_size}
    return {
        **more,
        "profile": job.profile,
        "profile_sha256": replay.profile.hash(),
        "overrides": job.overrides | job.priced_overrides,
        "priced_as": job.priced_as,
        "seed": job.seed,
        "token_scale": job.token_scale,
        "batched_tokens": job.batched_tokens,
        "max_seqs": job.max_seqs,
        "shared_experts": job.shared_experts,
        "redundant_experts": job.redundant_experts,
        "eplb": None if job.eplb is None else asdict(job.eplb),
        "temperature": job.sampling.temperature,
        "executed_layers": len(replay.plans),
        "priced_layers": sum(plan.repeat for plan in replay.plans),
    }
