"""One collective on its way: its phases, in order, and what may go wrong.

    phase    before: publish bytes    flow: virtual time    after: take bytes

The first phase of an asynchronous collective leaves at the call if nothing of the group is open, else when
the one before it is complete. The rest passes at `wait`, or while the rank waits for something else
(`collectives.progress`): ranks may wait for the works of several groups in any order. Collectives of a group
pass in the order they were called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from collectives import movement, progress
from collectives.agreement import Descriptor
from collectives.algorithms import Exchange
from collectives.disagreement import MACHINE_ERRORS, compare, explain, late
from collectives.groups import Group
from collectives.plan import Phase, Plan

_LONG = 1 << 64


class Work:
    """A collective that was called; complete after `wait`.

    Attributes:
        group, plan: where, and what. number: which collective of the group it is, from 1.
        send, recv: the buffers.
        start_ps, end_ps: virtual times of call and completion (-1 before).
    """

    __slots__ = (
        "_entered", "_error", "_moving", "_phase", "_posted", "_timeout_ps", "end_ps", "group", "number",
        "plan", "recv", "send", "start_ps",
    )  # fmt: skip

    def __init__(self, group: Group, plan: Plan, send: Any = None, recv: Any = None) -> None:
        self.group, self.plan, self.send, self.recv = group, plan, send, recv
        group.calls += 1
        self.number, self.start_ps, self.end_ps = group.calls, group.device.now_ps, -1
        self._entered = self._posted = False
        self._phase, self._timeout_ps = 0, group.timeout_ps
        self._moving: progress.Moving | None = None
        self._error: Exception | None = None

    @property
    def algorithm(self) -> str:
        """Name of the algorithm."""
        return self.plan.algorithm

    @property
    def descriptor(self) -> Descriptor:
        """What was called."""
        return self.plan.descriptor._replace(number=self.number)

    def is_completed(self) -> bool:
        """Whether it has ended (well or with an error)."""
        return self.end_ps >= 0

    def start(self) -> None:
        """Let the first phase leave, without blocking, if nothing of the group is before it by now."""
        self.group.open.append(self)
        self.group.space.busy[self.group] = None
        if self.group.open[0] is self:
            self._leave()
        else:
            progress.catch_up(self.group)

    def run(self) -> None:
        """Call and complete it, after what is open of the group. Raises: as `wait`."""
        group = self.group
        if group.open:
            group.open.append(self)
            self.wait()
            return
        quick = self.plan.packed and not group.timed and group.device.compiled
        others = group.space.busy and progress.wanted(group.space, group)
        enter = group.enter if quick and not others else None
        try:
            if enter is None or not self._pass_quickly(enter):
                self._pass_all()
        finally:
            self.end_ps = group.device.now_ps

    def wait(self, timeout_ps: int | None = None) -> None:
        """Complete this collective and those of the group called before it. Blocks.

        Args:
            timeout_ps: longest from the call on, virtual time; by default the group's at the call.

        Raises:
            CollectiveMismatchError: the ranks disagree; on every rank. CollectiveTimeoutError: too late.
            RankLostError: a member is dead. DeadlockError: it can never end.
        """
        if timeout_ps is not None:
            self._timeout_ps = timeout_ps
        while self.end_ps < 0:
            self.group.open[0]._complete()
        if self._error is not None:
            raise self._error

    # --- parts ------------------------------------------------------------------------------------------

    def _leave(self) -> None:
        self._enter()
        movement.post(self.group, self.number, self.plan.phases[0].flow, self._tag())
        self._posted = True

    def _enter(self) -> None:
        self._entered = True
        before = self.plan.phases[0].before
        if before is not None:
            before(self)
        store = self.group.store
        store.announce(self.number, self.plan.descriptor)
        store.flush()

    def _tag(self) -> int:
        """What goes with an exchange: alike on all ranks that make the same call, but for the balance."""
        tag = (self.plan.mark * (2 * self.number + 1) + self.plan.descriptor.balance) % _LONG
        return tag - _LONG if tag >> 63 else tag

    def _complete(self) -> None:
        try:
            self.group.check()
            self._pass_all()
        except Exception as error:
            self._error = error
        finally:
            self._over()

    def _over(self) -> None:
        """Complete, well or not: make room for the group's next."""
        group = self.group
        self.end_ps = group.device.now_ps
        group.open.popleft()
        if not group.open:
            group.space.busy.pop(group, None)
        if group.open and self._error is None:
            group.open[0]._leave()

    def _pass_quickly(self, enter: Callable[[bytes, int], bool | None]) -> bool:
        """As `_pass_all` of plain exchanges, in less code: among hundreds of ranks a call finds cold caches.

        Returns:
            False where the first exchange could not begin; nothing has happened then.
        """
        group, plan, first = self.group, self.plan, self.plan.phases[0]
        if first.before is not None:
            first.before(self)
        if first.due is not None:
            first.due(self)
        try:
            agreed = enter(plan.packed, self.number)
            if agreed is None:
                return False
            group.device.exchange_ended()
            self._tail(first)
            if not agreed:
                compare(self)
            if first.after is not None:
                first.after(self)
            for phase in plan.phases[1:]:
                if phase.before is not None:
                    phase.before(self)
                if phase.due is not None:
                    phase.due(self)
                assert isinstance(phase.flow, Exchange)
                group.exchange_tags(group.place, phase.flow.record_bytes, self._tag())
                self._tail(phase)
                if phase.after is not None:
                    phase.after(self)
        except MACHINE_ERRORS as error:
            explain(self, error)
            raise
        return True

    def _tail(self, phase: Phase) -> None:
        """Spend what each rank spends alone after an exchange. Raises: CollectiveTimeoutError."""
        assert isinstance(phase.flow, Exchange)
        device = self.group.device
        if phase.flow.tail_ps:
            device.compute(phase.flow.tail_ps)
        if self._timeout_ps is not None and device.now_ps > self.start_ps + self._timeout_ps:
            raise late(self, self._timeout_ps)

    def _pass_all(self) -> None:
        if not self._entered:
            self._enter()
        while self._phase < len(self.plan.phases):
            self._begin_phase()
            due = self.plan.phases[self._phase].due
            if due is not None:
                due(self)
            self._end_phase(self._passed())

    def _begin_phase(self) -> None:
        before = self.plan.phases[self._phase].before
        if self._phase and self._moving is None and before is not None:
            before(self)
            self.group.store.flush()

    def _passed(self) -> int | None:
        """Let the phase's flow pass; returns the sum of the tags, None if it has none."""
        try:
            if self._moving is not None or progress.wanted(self.group.space, self.group):
                return progress.passed(self._flow_on_its_way(), self._here().until_ps)
            flow = self.plan.phases[self._phase].flow
            return movement.wait(self._here(), flow, self._tag(), self._posted and not self._phase)
        except movement.TooLate:
            raise late(self, self._timeout_ps) from None
        except MACHINE_ERRORS as error:
            explain(self, error)
            raise

    def _here(self) -> movement.Here:
        until_ps = None if self._timeout_ps is None else self.start_ps + self._timeout_ps
        return movement.Here(self.group, self.number, self._phase, until_ps)

    def _end_phase(self, tags: int | None) -> None:
        group, tag, after = self.group, self._tag(), self.plan.phases[self._phase].after
        balance = self.plan.descriptor.balance
        if not self._phase and (
            tags is None or (tags - group.size * (tag - balance)) % _LONG or not group.prepared
        ):
            compare(self)
        self._moving = None
        self._phase += 1
        if after is not None:
            after(self)

    # --- moving on while this rank waits for something else -----------------------------------------------

    def _flow_on_its_way(self) -> progress.Moving:
        """The flow of this phase, to be moved step by step."""
        if self._moving is None:
            flow = self.plan.phases[self._phase].flow
            self._moving = progress.Moving(self._here(), flow, self._tag(), self._posted and not self._phase)
        return self._moving

    def needs_help(self) -> bool:
        """Whether somebody may have to wait for a step of mine that is yet to come."""
        if not self._entered:
            return False  # after a disagreement: it leaves when it is waited for
        if len(self.group.open) > 1 or self._phase + 1 < len(self.plan.phases):
            return True
        if self._moving is not None:
            return self._moving.more
        return progress.more_after(self.plan.phases[self._phase].flow)

    @property
    def is_entered(self) -> bool:
        """Whether it has begun."""
        return self._entered

    def condition(self) -> tuple[int, int, int] | None:
        """What it waits for; None if nothing, it can be moved on at once."""
        return self._flow_on_its_way().condition

    def move_on(self) -> None:
        """What it waited for came: take the next step. Errors are for whoever waits for it."""
        moving = self._flow_on_its_way()
        try:
            moving.advance()
            if not moving.done:
                return
            self._end_phase(moving.tags)
            if self._phase < len(self.plan.phases):
                self._begin_phase()
                self._flow_on_its_way()
                return
            until_ps = self._here().until_ps
            if until_ps is not None and self.group.device.now_ps > until_ps:
                raise late(self, self._timeout_ps)
        except Exception as error:
            self._error = error
        self._over()
