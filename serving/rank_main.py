"""One rank of a replay, from the job's files to its line of result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from fractions import Fraction
from functools import partial
from typing import Any, Protocol

import torch

import emulator
from emulator.errors import DeadlockError, RankLostError
from emulator.spare import give_back, trim
from serving.aborts import PlannedAborts
from serving.ahead import CommonParts, common_parts, job_requests
from serving.charges import Charges
from serving.decode.forward import DecodeForward, skew_router
from serving.decode.jitter import Jitter
from serving.engine import Clock, RankRecord, Sampled, Sampler, ServingEngine, StatusBoard
from serving.eplb.attach import balance
from serving.feed import OpenSource, RecordedSource, recording_header
from serving.fixed import deciders
from serving.forward import ComputeClock, Forward
from serving.job import Progress, ReplayJob, append_ending, append_result
from serving.kv.lender import Lender, LentTables
from serving.kv.tiers import read_prices, unsaved_share
from serving.link import Channels, PodLink, PodStatus
from serving.model.kv_cache import PagedKV
from serving.model.sampling import choose, sample
from serving.model.stopping import TokenBytes, finish_of
from serving.outputs import OutputSender
from serving.paged import PagedScheduler
from serving.placement import Placement
from serving.prefix_price import PrefillPrice
from serving.pricing import PricedModel
from serving.recovery.beats import BeatingClock, BeatingStatus, Beats
from serving.recovery.in_place import Recovery
from serving.recovery.masks import LostExperts, Masks
from serving.recovery.outbox import Outbox
from serving.recovery.pages import PageFaults
from serving.recovery.pids import note_pid
from serving.recovery.placement import widened
from serving.recovery.points import Points
from serving.recovery.roles import RoleFaults, Roles
from serving.recovery.stream import TokenStream
from serving.request import Request, RequestSpec
from serving.scheduler import Scheduler
from serving.speculation import Speculation, drafter_of
from serving.stragglers import StragglerClock
from serving.tensor.forward import TensorForward
from serving.tensor.group import TensorGroup, followers
from serving.tensor.price import TensorCharges


class StepProgress(Protocol):
    """Who is told how far a rank is."""

    def update(self, rank: int, ended: int, now_ps: int) -> None:
        """A step has ended: requests ended so far, virtual time."""


_TRIM_EVERY = 32


class _Housekeeping:
    """What a rank does once a step for its host: show how far it is, and give freed memory back.

    What steps have touched and left as it was goes back after steps 1, 4, 16, …; freed memory after 2, 8, …
    too. An open pod serves for as long as it likes: there freed memory goes back every 32 steps.
    """

    def __init__(self, progress: StepProgress, rank: int, is_open: bool) -> None:
        self._progress, self._rank, self._is_open, self._steps = progress, rank, is_open, 0

    def __call__(self, ended: int, now_ps: int) -> None:
        self._progress.update(self._rank, ended, now_ps)
        self._steps += 1
        if self._is_open and self._steps % _TRIM_EVERY == 0:
            trim()
        elif self._steps & (self._steps - 1) == 0:  # a power of two
            if self._steps.bit_length() % 2:  # and of four
                give_back()
            else:
                trim()


def serve(directory: str) -> None:
    """Serve a job's requests as this rank and append this rank's result."""
    job, specs = ReplayJob.read(directory), job_requests(directory)
    device = emulator.init()
    serve_on(device, directory, common_parts(job, specs, device.profile), specs)


def serve_on(
    device: emulator.Device,
    directory: str,
    common: CommonParts,
    specs: Sequence[RequestSpec],
    channels: Channels | None = None,
) -> None:
    """Be the rank whose device this is, to the line of result; on other jobs' channels, if there are any."""
    progress = Progress(directory, device.num_ranks)
    progress.update(device.rank, 0, 0)
    try:
        engine, record, kv, run = build(common, specs, device, progress, directory, channels)
    except (RankLostError, DeadlockError) as error:
        if not _is_lost(device, error):
            raise
        append_result(directory, _never_served(device))
        return
    if device.faults.active and common.job.recovery is None:
        engine.ended = lambda request: append_ending(directory, record.ending(device.rank, request))
    if common.job.recovery is not None:
        note_pid(directory, device.rank)
    start_ps = device.now_ps
    record.time.add("other", start_ps)
    give_back()  # what start-up has touched; the first step is the largest
    engine.hold_clock, engine.start_clock = device.engine.hold_clock, device.engine.start_clock
    if common.job.decode is None:
        device.engine.start_clock()  # setting up took the host a while
    else:
        device.engine.hold_clock()  # filling the contexts is setting up; `DecodeForward` starts the clock
    try:
        run()
    except (RankLostError, DeadlockError) as error:
        if not _is_lost(device, error):
            raise
        engine.give_up(f"lost with another rank: {error}")
    kv.check_integrity()
    engine.count()
    append_result(directory, record.as_dict(device.rank, device.now_ps))
    if channels is not None:
        engine.close()


def _is_lost(device: emulator.Device, error: RankLostError | DeadlockError) -> bool:
    """Whether others are dead; the engine may know of it before the board does."""
    return isinstance(error, RankLostError) or bool(device.board.dead.any())


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


def _sampler(job: ReplayJob) -> Sampler:
    def choose_for(logits: torch.Tensor, request: Request, position: int) -> Sampled:
        spec = request.spec
        if spec.params is None:
            return Sampled(sample(logits, job.sampling, spec.seed, spec.choice, position))
        rest = (spec.seed, spec.choice, position, spec.prompt, request.outputs)
        chosen = choose(logits, spec.params, *rest)
        return Sampled(chosen.token, chosen.logprobs)

    return choose_for


def _stops(directory: str) -> Callable[[Request], None]:
    """Ends a request whose last output says so."""
    table = TokenBytes.read(directory)

    def stop(request: Request) -> None:
        params = request.spec.params
        if params is None:
            return
        finish = finish_of(params, request.outputs, request.spec.max_output, table)
        if finish is not None and finish.reason == "stop":
            request.stop(finish.stop_reason)

    return stop


def _connect(job: ReplayJob, engine: ServingEngine, directory: str, rank: int) -> None:
    """Give an engine its source of requests and its outlet, where it has them."""
    if job.recording:
        engine.source = RecordedSource(job.recording)
    if job.is_open:
        engine.stops = _stops(directory)
    if job.feed:
        engine.source = OpenSource(directory, rank, job.record, recording_header(job))
        engine.outlet = OutputSender(directory, rank)


def _run_group(engine: ServingEngine, forward: TensorForward) -> None:
    """Serve as a rank of a tensor-parallel group."""
    engine.run()
    forward.close()


def _count_cache(record: RankRecord, scheduler: Scheduler, forward: Forward, kv: PagedKV) -> None:
    """What a paged cache has done, at the end; nothing may be held any more."""
    if not isinstance(scheduler, PagedScheduler):
        record.work.kv_blocks_allocated, record.work.kv_blocks_freed = kv.pages_allocated, kv.pages_freed
        return
    cache = scheduler.kv
    cache.check_integrity(idle=True)
    record.work.kv_blocks_allocated, record.work.kv_blocks_freed = cache.hbm.allocated, cache.hbm.freed
    tiers = {"evicted": cache.hbm.evicted, "dram_evicted": cache.dram.evicted if cache.dram else 0}
    record.cache = {**asdict(scheduler.counts), **tiers, **forward.moved}


def _never_served(device: emulator.Device) -> dict[str, Any]:
    """The line of a rank whose pod lost another while it started: it has had no request."""
    record = RankRecord()
    record.time.add("other", device.now_ps)
    return record.as_dict(device.rank, device.now_ps)


def build(
    common: CommonParts,
    specs: Sequence[RequestSpec],
    device: emulator.Device,
    progress: StepProgress,
    directory: str,
    channels: Channels | None = None,
) -> tuple[ServingEngine, RankRecord, PagedKV, Callable[[], None]]:
    """Put one rank's parts together; the last of them serves."""
    job = common.job
    config, priced, placement, limits = common.config, common.priced, common.placement, common.limits
    if job.recovery is not None:
        placement = widened(placement)
    model = common.models[device.rank % job.tp_size]
    model.open_experts(e for e in placement.experts_on(device.rank) if e < config.n_routed_experts)
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
    pricing = Charges if group is None else TensorCharges
    charges = pricing(priced, device.num_ranks, shared_local=not placement.shared_placed)
    charges.prefill = prefill
    top_k = config.num_experts_per_tok
    shape = (placement, config.hidden_size, top_k, common.sizes, record, job.quantization)
    link = PodLink(device, *shape) if channels is None else channels.link(*shape)
    computing: ComputeClock = device
    if job.stragglers is not None:
        computing = StragglerClock(device, device.rank, job.stragglers, job.seed)
    parts = (device.rank, computing, model, common.plans, charges, placement, link, kv, record.time)
    forward: Forward
    if group is not None:
        forward = TensorForward(*parts, group=group)
    elif job.decode is None:
        forward = Forward(*parts)
    else:
        jitter = Jitter.from_entries(priced.entries, job.seed) if job.decode.jitter else Jitter()
        skew_router(model, float(priced.entries.value("decode.router_skew")), job.seed)
        forward = DecodeForward(*parts, job.decode, jitter, record.decode, device.engine.start_clock)
    if job.paging is not None and job.paging.dram_blocks:
        forward.tiers = read_prices(job.paging.pool_path, device.profile, priced.kv_bytes(1))
    pod_status = PodStatus(device, record) if channels is None else channels.status(record)
    clock: Clock = device
    status: StatusBoard = pod_status
    if job.recovery is not None:
        beats = Beats(device, job.recovery)
        outbox = Outbox(device, job.recovery.ask_again_ps)
        roles = Roles(device.rank, list(range(device.num_ranks)), set(job.spare_ranks))
        RoleFaults(roles, device.faults)
        status = BeatingStatus(pod_status, beats, outbox, roles)
        clock = BeatingClock(device, beats, job.recovery.period_ps)
    engine = ServingEngine(
        rank=device.rank,
        clock=clock,
        status=status,
        forward=forward,
        scheduler=scheduler,
        dispatcher=dispatcher,
        sampler=_sampler(job),
        record=record,
        progress=_Housekeeping(progress, device.rank, job.feed),
    )
    if job.mtp:
        drafter = drafter_of(job, directory, config.vocab_size)
        speculation = Speculation(forward, model, kv, scheduler, drafter, record.speculation)
        engine.speculation = speculation
        if isinstance(forward, TensorForward):
            forward.speculation = speculation
    engine.count = partial(_count_cache, record, scheduler, forward, kv)
    _connect(job, engine, directory, device.rank)
    aborts = PlannedAborts(specs)
    if not job.is_open:
        engine.source = aborts
    engine.faults = forward.faults = Points(device, record.points) if job.note_states else device.faults
    if job.mtp:
        speculation.faults = engine.faults
    page_faults = PageFaults(kv, device, record.page_faults)
    engine.lost = page_faults.take
    device.faults.on("page_fault", page_faults.strike)
    if job.eplb is not None:
        balance(engine, forward, model, device, common, record)
    if isinstance(forward, TensorForward):
        return engine, record, kv, partial(_run_group, engine, forward)
    if job.recovery is None:
        return engine, record, kv, engine.run

    def regroup(roles: Roles, placement: Placement) -> None:
        serves = device.rank not in roles.out
        opened = (e for e in placement.experts_on(device.rank) if e < config.n_routed_experts)
        model.open_experts(opened)
        charges = Charges(priced, len(roles.members), shared_local=not placement.shared_placed)
        charges.prefill = prefill
        forward.regroup(placement, charges, serves)
        pod_status.regroup(roles.living)
        if serves:
            link.regroup(roles.members)
        beats.regroup(roles.living)
        outbox.regroup(roles.living)

    if roles.out:
        regroup(roles, placement)
    masks = Masks(LostExperts(job.lost_experts))
    if masks.policy != LostExperts.LOAD:
        forward.router, engine.refused = masks, masks.refused
        engine.strict = masks.policy != LostExperts.MASK
    stream = TokenStream(directory, specs)
    parts_of = (device, engine, dispatcher, placement, stream, job.recovery, record)
    recovery = Recovery(
        *parts_of,
        regroup,
        meet=status.exchange,
        beats=beats,
        outbox=outbox,
        roles=roles,
        masks=masks,
        aborts=aborts,
    )
    return engine, record, kv, recovery.run
