"""One rank of a replay, put together: what it decides, computes, exchanges and records.

    Core      what the rank has by itself: model, deciders, record, cache, tensor group
    link      its rows to the experts and back; status: a word from every rank to every rank
    forward   computes a step over core and link
    members   who lives, where the pod recovers in place (`serving.recovery.attach`)
    engine    carries out what the deciders say; its hooks are set last

Windows and channels are carved while this goes on, by all ranks in the same order: the order is part of the
result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import emulator
from serving.aborts import PlannedAborts
from serving.ahead import CommonParts
from serving.charges import Charges
from serving.decode.forward import DecodeForward, skew_router
from serving.decode.jitter import Jitter
from serving.dispatch import Dispatcher
from serving.engine import RankRecord, ServingEngine
from serving.eplb.attach import balance
from serving.feed import OpenSource, RecordedSource, recording_header
from serving.fixed import deciders
from serving.forward import ComputeClock, Forward
from serving.job import ReplayJob
from serving.kv.lender import Lender, LentTables
from serving.kv.tiers import read_prices, unsaved_share
from serving.link import Channels, PodLink, PodStatus
from serving.model.kv_cache import PagedKV
from serving.model.model import Model
from serving.outputs import OutputSender
from serving.paged import PagedScheduler
from serving.placement import Placement
from serving.prefix_price import PrefillPrice
from serving.pricing import PricedModel
from serving.rank_hooks import Housekeeping, StepProgress, count_cache, sampler_of, stops_of
from serving.recovery.attach import Membership, Regrouping, membership, open_experts, recover
from serving.recovery.pages import PageFaults
from serving.recovery.placement import widened
from serving.recovery.points import Points
from serving.recovery.stream import TokenStream
from serving.request import RequestSpec
from serving.scheduler import Scheduler
from serving.speculation import Speculation, drafter_of
from serving.stragglers import StragglerClock
from serving.tensor.forward import TensorForward
from serving.tensor.group import TensorGroup, followers
from serving.tensor.price import TensorCharges


@dataclass(frozen=True)
class Core:
    """What a rank has by itself; `group` is its tensor-parallel group, if it is of one.

    `placement` is the pod's: widened where it recovers in place. `prefill`: prices of whole prefills, for
    jobs that ask for them.
    """

    common: CommonParts
    device: emulator.Device
    placement: Placement
    model: Model
    prefill: PrefillPrice | None
    scheduler: Scheduler
    dispatcher: Dispatcher
    record: RankRecord
    group: TensorGroup | None
    kv: PagedKV

    @property
    def job(self) -> ReplayJob:
        """The job that all ranks serve."""
        return self.common.job


def build(
    common: CommonParts,
    specs: Sequence[RequestSpec],
    device: emulator.Device,
    progress: StepProgress,
    directory: str,
    channels: Channels | None = None,
) -> tuple[ServingEngine, RankRecord, PagedKV, Callable[[], None]]:
    """Put one rank's parts together; the last of them serves. Collective: costs barriers."""
    core = _core(common, specs, device)
    job, record = core.job, core.record
    link = _link(core, channels)
    forward = _forward(core, link)
    status = PodStatus(device, record) if channels is None else channels.status(record)
    members = None if job.recovery is None else membership(device, job, job.recovery, status)
    housekeeping = Housekeeping(progress, device.rank, job.feed)
    engine = _engine(core, forward, status, members, housekeeping)
    speculation = _speculate(core, engine, forward, directory)
    engine.count = partial(count_cache, record, core.scheduler, forward, core.kv)
    aborts = PlannedAborts(specs)
    _connect(job, engine, directory, device.rank, aborts)
    _expose(core, engine, forward, speculation)
    if job.eplb is not None:
        balance(engine, forward, core.model, device, common, record)
    if isinstance(forward, TensorForward):
        return engine, record, core.kv, partial(_run_group, engine, forward)
    if members is None:
        return engine, record, core.kv, engine.run
    parts = (device, core.model, common.priced, core.prefill, forward, link, status, members)
    regroup, stream = Regrouping(*parts), TokenStream(directory, specs)
    recovery = recover(engine, core.dispatcher, core.placement, stream, job, record, regroup, aborts)
    return engine, record, core.kv, recovery.run


def _core(common: CommonParts, specs: Sequence[RequestSpec], device: emulator.Device) -> Core:
    job, priced, limits = common.job, common.priced, common.limits
    placement = common.placement if job.recovery is None else widened(common.placement)
    model = common.models[device.rank % job.tp_size]
    open_experts(model, placement, device.rank)
    prefill = prefill_price(job, priced, placement)
    scheduler, dispatcher = deciders(job, specs, limits, device.rank, prefill)
    cache: Lender | None = scheduler.kv if isinstance(scheduler, PagedScheduler) else None
    record = RankRecord(keep=not job.feed)
    group = None
    if job.tp_size > 1:
        group = TensorGroup(device, priced, record)
        dispatcher.exclude(followers(device.num_ranks, job.tp_size))
        if not group.leads:
            scheduler, cache = Scheduler(limits), None if cache is None else LentTables()
    kv = PagedKV(model.kv_config, limits.kv_blocks, limits.block_tokens, cache)
    return Core(common, device, placement, model, prefill, scheduler, dispatcher, record, group, kv)


def _link(core: Core, channels: Channels | None) -> PodLink:
    """The exchanges of rows, of this rank alone or on other jobs' channels. Collective: costs a barrier."""
    common, config = core.common, core.common.config
    shape = (
        core.placement,
        config.hidden_size,
        config.num_experts_per_tok,
        common.sizes,
        core.record,
        core.job.quantization,
    )
    return PodLink(core.device, *shape) if channels is None else channels.link(*shape)


def _forward(core: Core, link: PodLink) -> Forward:
    """What computes a step: as a rank of a tensor-parallel group, for decode to be measured, or plainly."""
    job, device, priced = core.job, core.device, core.common.priced
    clock = _computing(core)
    parts = (device.rank, clock, core.model, core.common.plans, _charges(core), core.placement, link, core.kv)
    forward: Forward
    if core.group is not None:
        forward = TensorForward(*parts, core.record.time, group=core.group)
    elif job.decode is None:
        forward = Forward(*parts, core.record.time)
    else:
        jitter = Jitter.from_entries(priced.entries, job.seed) if job.decode.jitter else Jitter()
        skew_router(core.model, float(priced.entries.value("decode.router_skew")), job.seed)
        measured = (job.decode, jitter, core.record.decode, device.engine.start_clock)
        forward = DecodeForward(*parts, core.record.time, *measured)
    if job.paging is not None and job.paging.dram_blocks:
        forward.tiers = read_prices(job.paging.pool_path, device.profile, priced.kv_bytes(1))
    return forward


def _charges(core: Core) -> Charges:
    """What this rank's steps are charged."""
    kind = Charges if core.group is None else TensorCharges
    shared_local = not core.placement.shared_placed
    charges = kind(core.common.priced, core.device.num_ranks, shared_local=shared_local)
    charges.prefill = core.prefill
    return charges


def _computing(core: Core) -> ComputeClock:
    """The clock of this rank's computing, which may straggle."""
    job, device = core.job, core.device
    if job.stragglers is None:
        return device
    return StragglerClock(device, device.rank, job.stragglers, job.seed)


def prefill_price(job: ReplayJob, priced: PricedModel, placement: Placement) -> PrefillPrice | None:
    """Prices of whole prefills, for jobs that ask for them."""
    reuse = job.paging is not None and job.paging.reuse
    if not reuse and job.balancing != "prefill-cost":
        return None
    pooled = job.paging is not None and job.paging.dram_blocks
    return PrefillPrice(
        priced,
        job.num_ranks,
        placement.slots_per_rank,
        shared_local=not placement.shared_placed,
        unsaved=unsaved_share() if pooled else Fraction(0),
    )


def _engine(
    core: Core,
    forward: Forward,
    status: PodStatus,
    members: Membership | None,
    housekeeping: Housekeeping,
) -> ServingEngine:
    """The engine, whose clock and status words beat where the pod recovers in place."""
    return ServingEngine(
        rank=core.device.rank,
        clock=core.device if members is None else members.clock,
        status=status if members is None else members.status,
        forward=forward,
        scheduler=core.scheduler,
        dispatcher=core.dispatcher,
        sampler=sampler_of(core.job),
        record=core.record,
        progress=housekeeping,
    )


def _speculate(core: Core, engine: ServingEngine, forward: Forward, directory: str) -> Speculation | None:
    """Let an engine verify drafts, where the job has them."""
    if not core.job.mtp:
        return None
    drafter = drafter_of(core.job, directory, core.common.config.vocab_size)
    record = core.record.speculation
    speculation = Speculation(forward, core.model, core.kv, core.scheduler, drafter, record)
    engine.speculation = speculation
    if isinstance(forward, TensorForward):
        forward.speculation = speculation
    return speculation


def _connect(job: ReplayJob, engine: ServingEngine, directory: str, rank: int, aborts: PlannedAborts) -> None:
    """Give an engine its source of requests and its outlet, where it has them."""
    if job.recording:
        engine.source = RecordedSource(job.recording)
    if job.is_open:
        engine.stops = stops_of(directory)
    if job.feed:
        engine.source = OpenSource(directory, rank, job.record, recording_header(job))
        engine.outlet = OutputSender(directory, rank)
    if not job.is_open:
        engine.source = aborts


def _expose(core: Core, engine: ServingEngine, forward: Forward, speculation: Speculation | None) -> None:
    """Tell faults of the states that requests enter, and let them take pages of the cache."""
    device, record = core.device, core.record
    engine.faults = forward.faults = Points(device, record.points) if core.job.note_states else device.faults
    if speculation is not None:
        speculation.faults = engine.faults
    page_faults = PageFaults(core.kv, device, record.page_faults)
    engine.lost = page_faults.take
    device.faults.on("page_fault", page_faults.strike)


def _run_group(engine: ServingEngine, forward: TensorForward) -> None:
    """Serve as a rank of a tensor-parallel group."""
    engine.run()
    forward.close()
