"""Recovery in place: after a death the survivors roll back, share out what the dead held, and go on.

    all survivors are told of the same deaths at one virtual time (`Engine.subscribe`)
    the step under way is taken back: KV lengths; nothing of it had been counted or emitted
    a spare stands in for the dead, if there is one, and loads what it held (`recovery.roles`)
    experts: else from replicas where there are any, else loaded from the checkpoint (`recovery.placement`)
    exchanges go on among the living
    requests of the dead are handed out again, to be computed from prompt and emitted tokens
    everyone sleeps until the deaths have been declared, and while the pod is set up anew

While the pod is set up the living meet, as often as they beat, or 64 times: a rank that dies meanwhile is
missed there, and all of this happens again. A death that leaves nobody waiting (all have ended) needs
nothing. Ranks that come and go while the pod serves are the same without detection: they are agreed on at a
step's boundary, where nothing has to be taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from emulator import Device
from emulator.errors import MembershipChanged
from serving.aborts import PlannedAborts
from serving.dispatch import Dispatcher
from serving.engine import RankRecord, ServingEngine
from serving.placement import Placement
from serving.recovery.beats import Beats, watcher
from serving.recovery.masks import LostExperts, Masks
from serving.recovery.outbox import Outbox
from serving.recovery.placement import Relocation, joined, without
from serving.recovery.roles import Roles, RolesChanged, Wish
from serving.recovery.stream import TokenStream
from serving.recovery.times import RecoveryTimes
from serving.request import Request, RequestSpec

_LOOKS = 8
"""At the end tokens are looked after so many times in the time after which one is sent again."""
_MEETINGS = 64
"""At most so many while a pod is set up."""
MOVED = "moved to another rank"
"""The error of a request that its rank hands over; it is not reported."""
Regroup = Callable[[Roles, Placement], None]
"""Tells the parts of a rank who lives and serves, and which experts are where."""


@dataclass
class Recovery:
    """Recovery of one rank.

    Attributes:
        regroup: called at each change with the living ranks and the new placement.
        meet: the exchange of a word among the living, int64 [n], 0 of the dead.
        beats: mine, and my watch over others.
        outbox: what takes my tokens to the front end.
        roles: who lives and serves. masks: experts nobody holds, and whom that touches.
        aborts: those that the workload plans.
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
    outbox: Outbox
    roles: Roles
    masks: Masks
    aborts: PlannedAborts
    _loading: dict[int, list[int]] = field(default_factory=dict)
    _undeclared: dict[int, int] = field(default_factory=dict)
    """New dead ranks, and who watched them."""
    _changed: bool = False
    """Since the pod was last set up."""
    _gone: set[int] = field(default_factory=set)

    def run(self) -> None:
        """Serve until no rank has work and no request is to come, whoever dies."""
        self.engine.open_request = self._open
        self.engine.emitted = self._emitted
        self.engine.ended = lambda request: self.stream.end(self.device.rank, request)
        self.engine.leads = lambda: self.device.rank == self.roles.living[0]
        self.device.faults.fence = self.beats.fence_ps
        self.device.subscribe()
        if self.roles.out:
            self.dispatcher.lose(sorted(self.roles.out), lambda _: True)
        while not self._undisturbed(self._serve):
            while self._changed and not self._undisturbed(self._set_up):
                pass

    def _serve(self) -> None:
        """Serve, and go on until every token is known to have reached the front end."""
        self.engine.run()
        while self.meet(self.outbox.unsettled).any():
            self.device.sleep_ps(self.times.ask_again_ps // _LOOKS)
        self.record.time.add("waiting", self.device.now_ps - self.record.time.total_ps)
        self.record.delivery = self.outbox.as_dict()

    def _undisturbed(self, work: Callable[[], None]) -> bool:
        """Work; False if ranks died meanwhile, and the others know."""
        try:
            work()
        except MembershipChanged as change:
            self._share_out(change)
            return False
        except RolesChanged as change:
            self._move(change.wishes)
            return False
        return True

    def _share_out(self, change: MembershipChanged) -> None:
        """Take the step back, and share what the dead held among the living; alike on all of them."""
        self.device.lost()  # posts know of it, too
        found_ps = self.device.now_ps
        living = self.roles.living
        new = [rank for rank in change.ranks if rank in living]
        per_node = self.device.topology.dies_per_node
        self._undeclared |= {rank: watcher(rank, living, per_node) for rank in new}
        self._gone |= set(new)
        self.engine.roll_back()
        served = [rank for rank in new if rank not in self.roles.out]
        stand_in = self.roles.lose(new)
        for rank in new:
            self._loading.pop(rank, None)
        reloads = self.masks.policy == LostExperts.LOAD
        members = self.roles.members
        relocation = without(self.placement, new, members, stand_in, reloads, self.masks.lost)
        self._take_over(relocation, served, sorted(stand_in.values()))
        known = self.device.board.silent_ps  # of those a plan has ended
        silent = [int(known[rank]) if known.size and known[rank] else found_ps for rank in new]
        self.record.recoveries[-1] |= {"change": change.fields["epoch"], "dead": new, "silent_ps": silent}

    def _move(self, wishes: Sequence[Wish]) -> None:
        """Let ranks come and go as agreed; alike on all of them."""
        came, went = self.roles.grant(wishes)
        if not (came or went):
            return
        if self.device.rank in went:
            self.engine.give_up(MOVED)
            for request in [r for r in self.record.requests if r.error == MOVED]:
                self.record.requests.remove(request)
                self.record.logits.pop(request.spec.request_id, None)
        relocation = without(self.placement, went, self.roles.members, lost=self.masks.lost)
        loads = relocation.loads
        if came:
            relocation = joined(relocation.placement, came, self.roles.members)
            both = {**loads, **{r: loads.get(r, []) + more for r, more in relocation.loads.items()}}
            relocation = replace(relocation, loads=both)
        self._take_over(relocation, went, came)
        self.record.recoveries[-1] |= {"left": went, "declared_ps": self.device.now_ps}

    def _take_over(self, relocation: Relocation, gone: Sequence[int], came: Sequence[int]) -> None:
        """Go on with other experts in other places; requests of `gone` are handed out again."""
        found_ps, self._changed = self.device.now_ps, True
        self.record.time.add("waiting", found_ps - self.record.time.total_ps)
        self.placement = relocation.placement
        self.masks.lost, self.masks.change = list(relocation.lost), len(self.record.recoveries) + 1
        self.regroup(self.roles, self.placement)
        again = self.dispatcher.lose(gone, self.stream.has_ended)
        self.dispatcher.join(came)
        self.aborts.again()
        for rank, experts in relocation.loads.items():
            self._loading.setdefault(rank, []).extend(experts)
        self.record.recoveries.append(
            {
                "change": 0,
                "dead": [],
                "left": [],
                "joined": list(came),
                "silent_ps": [],
                "found_ps": found_ps,
                "declared_ps": 0,
                "resumed_ps": 0,
                "experts_lost": list(relocation.lost),
                "experts_loaded": {str(rank): experts for rank, experts in relocation.loads.items()},
                "recomputed": [spec.request_id for spec in again],
            }
        )

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
        self._changed = False
        for entry in self.record.recoveries:
            entry["resumed_ps"] = entry["resumed_ps"] or ready_ps

    def _declared_ps(self, found_ps: int) -> int:
        """When the new dead are declared, as far as I watched them: the time-out after the last beat; for
        those whose watcher is gone too, after the change."""
        mine = [self.beats.heard_ps(rank) for rank, by in self._undeclared.items() if by == self.device.rank]
        orphans = [found_ps for by in self._undeclared.values() if by in self._gone]
        return max((ps + self.times.timeout_ps for ps in (*mine, *orphans)), default=0)

    def _open(self, spec: RequestSpec) -> Request:
        """A request handed to me, with what another rank has emitted of it."""
        given = self.stream.of(spec.request_id)
        count = len(given.tokens)
        return Request(spec, outputs=given.tokens, token_times_ps=given.times_ps, replayed=count)

    def _emitted(self, request: Request, logits_sha256: str) -> None:
        self.stream.emit(self.device.rank, request, logits_sha256)
        if self.masks.policy != LostExperts.LOAD:
            number = request.spec.request_id
            self.stream.note_masks(request, self.masks.history[number], self.masks.touched.get(number))
        start_ps = self.device.now_ps
        self.outbox.post(request.spec.request_id, len(request.outputs) - 1, request.outputs[-1])
        self.record.time.add("other", self.device.now_ps - start_ps)
