"""Recovery in place: after a death the survivors roll back, share out what the dead held, and go on.

    all survivors are told of the same deaths at one virtual time (`Engine.subscribe`)
    the step under way is taken back: KV lengths; nothing of it had been counted or emitted
    experts: from replicas where there are any, else loaded from the checkpoint (`recovery.placement`)
    exchanges go on among the living
    requests of the dead are handed out again, to be computed from prompt and emitted tokens
    everyone sleeps until the deaths have been declared, and while the pod is set up anew

While the pod is set up the living meet, as often as they beat, or 64 times: a rank that dies meanwhile is
missed there, and all of this happens again. A death that leaves nobody waiting (all have ended) needs
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from emulator import Device
from emulator.errors import MembershipChanged
from serving.dispatch import Dispatcher
from serving.engine import RankRecord, ServingEngine
from serving.placement import Placement
from serving.recovery.beats import Beats, watcher
from serving.recovery.placement import without
from serving.recovery.stream import TokenStream
from serving.recovery.times import RecoveryTimes
from serving.request import Request, RequestSpec

_MEETINGS = 64
"""At most so many while a pod is set up."""
Regroup = Callable[[Sequence[int], Placement], None]
"""Tells the parts of a rank who lives, and which experts are where."""


@dataclass
class Recovery:
    """Recovery of one rank.

    Attributes:
        regroup: called at each change with the living ranks and the new placement.
        meet: the exchange of a word among the living, int64 [n], 0 of the dead.
        beats: mine, and my watch over others.
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
    meet: Callable[[int], NDArray[np.int64]]
    beats: Beats
    dead: list[int] = field(default_factory=list)
    _loading: dict[int, list[int]] = field(default_factory=dict)
    _undeclared: dict[int, int] = field(default_factory=dict)
    """New dead ranks, and who watched them."""

    def run(self) -> None:
        """Serve until no rank has work and no request is to come, whoever dies."""
        self.engine.open_request = self._open
        self.engine.emitted = self._emitted
        self.device.faults.fence = self.beats.fence_ps
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
        per_node = self.device.topology.dies_per_node
        self._undeclared |= {rank: watcher(rank, self._living(), per_node) for rank in new}
        self.dead = sorted({*self.dead, *new})
        living = self._living()
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
        self.record.recoveries.append(
            {
                "change": change.fields["epoch"],
                "dead": new,
                "silent_ps": silent,
                "found_ps": found_ps,
                "declared_ps": 0,
                "resumed_ps": 0,
                "experts_loaded": {str(rank): experts for rank, experts in relocation.loads.items()},
                "recomputed": [spec.request_id for spec in again],
            }
        )

    def _living(self) -> list[int]:
        return [rank for rank in range(self.device.num_ranks) if rank not in self.dead]

    def _set_up(self) -> None:
        """Agree when the deaths are declared, then let the time of a recovery pass; the living meet now and
        then."""
        found_ps = self.record.recoveries[-1]["found_ps"]
        declared_ps = max(found_ps, int(self.meet(self._declared_ps(found_ps)).max()))
        for entry in self.record.recoveries:
            entry["declared_ps"] = entry["declared_ps"] or declared_ps
        self._undeclared.clear()
        most = max((len(experts) for experts in self._loading.values()), default=0)
        ready_ps = declared_ps + self.times.recovery_ps(most)
        pause_ps = max(self.times.period_ps, (ready_ps - found_ps) // _MEETINGS)
        for at_ps in (*range(found_ps + pause_ps, ready_ps, pause_ps), ready_ps):
            self.device.sleep_ps(max(0, at_ps - self.device.now_ps))
            self.meet(0)
        self.record.time.add("recovery", self.device.now_ps - self.record.time.total_ps)
        self._loading.clear()
        for entry in self.record.recoveries:
            entry["resumed_ps"] = entry["resumed_ps"] or ready_ps

    def _declared_ps(self, found_ps: int) -> int:
        """When the new dead are declared, as far as I watched them: the time-out after the last beat; for
        those whose watcher is gone too, after the change."""
        mine = [self.beats.heard_ps(rank) for rank, by in self._undeclared.items() if by == self.device.rank]
        orphans = [found_ps for by in self._undeclared.values() if by in self.dead]
        return max((ps + self.times.timeout_ps for ps in (*mine, *orphans)), default=0)

    def _open(self, spec: RequestSpec) -> Request:
        """A request handed to me, with what another rank has emitted of it."""
        given = self.stream.of(spec.request_id)
        count = len(given.tokens)
        return Request(spec, outputs=given.tokens, token_times_ps=given.times_ps, replayed=count)

    def _emitted(self, request: Request, logits_sha256: str) -> None:
        self.stream.emit(self.device.rank, request, logits_sha256)
