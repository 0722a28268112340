"""Recovery in place: after a death the survivors roll back, share out what the dead held, and go on.

    all survivors are told of the same deaths at one virtual time (`Engine.subscribe`)
    the step under way is taken back: KV lengths; nothing of it had been counted or emitted
    experts: from replicas where there are any, else loaded from the checkpoint (`recovery.placement`)
    exchanges go on among the living
    requests of the dead are handed out again, to be computed from prompt and emitted tokens
    everyone sleeps until the deaths have been declared, and while the pod is set up anew

While the pod is set up the living meet once a heartbeat period: a rank that dies meanwhile is missed there,
and all of this happens again. A death that leaves nobody waiting (all have ended) needs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from emulator import Device
from emulator.errors import MembershipChanged
from serving.dispatch import Dispatcher
from serving.engine import RankRecord, ServingEngine
from serving.placement import Placement
from serving.recovery.placement import without
from serving.recovery.stream import TokenStream
from serving.recovery.times import RecoveryTimes
from serving.request import Request, RequestSpec

Regroup = Callable[[Sequence[int], Placement], None]
"""Tells the parts of a rank who lives, and which experts are where."""


@dataclass
class Recovery:
    """Recovery of one rank.

    Attributes:
        regroup: called at each change with the living ranks and the new placement.
        meet: an exchange among the living.
        dead: ranks that are gone.
    """

    device: Device
    engine: ServingEngine
    dispatcher: Dispatcher
    placement: Placement
    stream: TokenStream
    times: RecoveryTimes
    record: RankRecord
    regroup: Regroup
    meet: Callable[[], object]
    dead: list[int] = field(default_factory=list)
    _loading: dict[int, list[int]] = field(default_factory=dict)
    _ready_ps: int = 0

    def run(self) -> None:
        """Serve until no rank has work and no request is to come, whoever dies."""
        self.engine.open_request = self._open
        self.engine.emitted = self._emitted
        self.device.faults.fence = self.times.declared_ps
        self.device.engine.subscribe()
        while not self._undisturbed(self.engine.run):
            while not self._undisturbed(self._set_up):
                pass

    def _undisturbed(self, work: Callable[[], None]) -> bool:
        """Work; False if ranks died meanwhile, and the others know."""
        try:
            work()
        except MembershipChanged as change:
            self._share_out(change)
            return False
        return True

    def _share_out(self, change: MembershipChanged) -> None:
        """Take the step back, and share what the dead held among the living; alike on all of them."""
        found_ps = self.device.now_ps
        self.record.time.add("waiting", found_ps - self.record.time.total_ps)
        new = [rank for rank in change.ranks if rank not in self.dead]
        self.dead = sorted({*self.dead, *new})
        living = [rank for rank in range(self.device.num_ranks) if rank not in self.dead]
        self.engine.roll_back()
        relocation = without(self.placement, new, living)
        self.placement = relocation.placement
        self.regroup(living, self.placement)
        again = self.dispatcher.lose(new, self.stream.is_complete)
        for rank in new:
            self._loading.pop(rank, None)
        for rank, experts in relocation.loads.items():
            self._loading.setdefault(rank, []).extend(experts)
        silent = [int(self.device.board.silent_ps[rank]) or found_ps for rank in new]
        declared_ps = max(found_ps, *(self.times.declared_ps(ps) for ps in silent))
        most = max((len(experts) for experts in self._loading.values()), default=0)
        self._ready_ps = declared_ps + self.times.recovery_ps(most)
        self.record.recoveries.append(
            {
                "change": change.fields["epoch"],
                "dead": new,
                "silent_ps": silent,
                "found_ps": found_ps,
                "declared_ps": declared_ps,
                "resumed_ps": 0,
                "experts_loaded": {str(rank): experts for rank, experts in relocation.loads.items()},
                "recomputed": [spec.request_id for spec in again],
            }
        )

    def _set_up(self) -> None:
        """Let the time of a recovery pass; the living meet once a period."""
        found_ps = self.record.recoveries[-1]["found_ps"]
        for at_ps in (*range(found_ps, self._ready_ps, self.times.period_ps), self._ready_ps):
            self.device.sleep_ps(max(0, at_ps - self.device.now_ps))
            self.meet()
        self.record.time.add("recovery", self.device.now_ps - self.record.time.total_ps)
        self._loading.clear()
        for entry in self.record.recoveries:
            entry["resumed_ps"] = entry["resumed_ps"] or self._ready_ps

    def _open(self, spec: RequestSpec) -> Request:
        """A request handed to me, with what another rank has emitted of it."""
        given = self.stream.of(spec.request_id)
        count = len(given.tokens)
        return Request(spec, outputs=given.tokens, token_times_ps=given.times_ps, replayed=count)

    def _emitted(self, request: Request, logits_sha256: str) -> None:
        self.stream.emit(self.device.rank, request, logits_sha256)
