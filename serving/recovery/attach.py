"""A rank's recovery in place, put together and hooked into its engine."""

from __future__ import annotations

from dataclasses import dataclass

from emulator import Device
from serving.aborts import PlannedAborts
from serving.charges import Charges
from serving.dispatch import Dispatcher
from serving.engine import RankRecord, ServingEngine
from serving.forward import Forward
from serving.job import ReplayJob
from serving.link import PodLink, PodStatus
from serving.model.model import Model
from serving.placement import Placement
from serving.prefix_price import PrefillPrice
from serving.pricing import PricedModel
from serving.recovery.beats import BeatingClock, BeatingStatus, Beats
from serving.recovery.in_place import Recovery
from serving.recovery.masks import LostExperts, Masks
from serving.recovery.outbox import Outbox
from serving.recovery.roles import RoleFaults, Roles
from serving.recovery.stream import TokenStream
from serving.recovery.times import RecoveryTimes


@dataclass(frozen=True)
class Membership:
    """How a rank knows who lives and serves: beats, the outbox of its tokens, roles; clock, status beat."""

    beats: Beats
    outbox: Outbox
    roles: Roles
    status: BeatingStatus
    clock: BeatingClock


def membership(device: Device, job: ReplayJob, times: RecoveryTimes, status: PodStatus) -> Membership:
    """Put a rank's membership together, around its exchange of status words. Collective: costs barriers."""
    beats = Beats(device, times)
    outbox = Outbox(device, times.ask_again_ps)
    roles = Roles(device.rank, list(range(device.num_ranks)), set(job.spare_ranks))
    RoleFaults(roles, device.faults)
    beating = BeatingStatus(status, beats, outbox, roles)
    return Membership(beats, outbox, roles, beating, BeatingClock(device, beats, times.period_ps))


@dataclass(frozen=True)
class Regrouping:
    """Tells a rank's parts who lives and serves, and which experts are where (`in_place.Regroup`)."""

    device: Device
    model: Model
    priced: PricedModel
    prefill: PrefillPrice | None
    forward: Forward
    link: PodLink
    status: PodStatus
    members: Membership

    def __call__(self, roles: Roles, placement: Placement) -> None:
        """Open this rank's experts, and go on with these members."""
        rank = self.device.rank
        serves = rank not in roles.out
        open_experts(self.model, placement, rank)
        charges = Charges(self.priced, len(roles.members), shared_local=not placement.shared_placed)
        charges.prefill = self.prefill
        self.forward.regroup(placement, charges, serves)
        self.status.regroup(roles.living)
        if serves:
            self.link.regroup(roles.members)
        self.members.beats.regroup(roles.living)
        self.members.outbox.regroup(roles.living)


def open_experts(model: Model, placement: Placement, rank: int) -> None:
    """Let a model hold the routed experts that are placed on `rank`."""
    model.open_experts(e for e in placement.experts_on(rank) if e < model.config.n_routed_experts)


def recover(
    engine: ServingEngine,
    dispatcher: Dispatcher,
    placement: Placement,
    stream: TokenStream,
    job: ReplayJob,
    record: RankRecord,
    regroup: Regrouping,
    aborts: PlannedAborts,
) -> Recovery:
    """Put a rank's recovery together; its `run` serves in place of the engine's."""
    assert job.recovery is not None
    members = regroup.members
    if members.roles.out:
        regroup(members.roles, placement)
    masks = Masks(LostExperts(job.lost_experts))
    if masks.policy != LostExperts.LOAD:
        regroup.forward.router, engine.refused = masks, masks.refused
        engine.strict = masks.policy != LostExperts.MASK
    return Recovery(
        device=regroup.device,
        engine=engine,
        dispatcher=dispatcher,
        placement=placement,
        stream=stream,
        times=job.recovery,
        record=record,
        regroup=regroup,
        meet=members.status.exchange,
        beats=members.beats,
        outbox=members.outbox,
        roles=members.roles,
        masks=masks,
        aborts=aborts,
    )
