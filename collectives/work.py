"""One collective on its way: its phases, in order, and what may go wrong.

    phase    before(): publish bytes    flow: virtual time    after(): take bytes

The first phase of an asynchronous collective leaves at the call if nothing of the group is open; the rest
passes at `wait`. Collectives of a group pass in the order they were called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from collectives import movement
from collectives.agreement import (
    AGREED,
    CollectiveMismatchError,
    CollectiveTimeoutError,
    Descriptor,
    absent,
    differences,
    mismatch,
)
from collectives.algorithms import Flow
from collectives.groups import Group
from emulator.engine.reports import ranges
from emulator.errors import DeadlockError, InternalError

_MARK = "collective "


def _nothing() -> None:
    return None


@dataclass(frozen=True)
class Phase:
    """What happens before, during and after a stretch of virtual time."""

    flow: Flow
    before: Callable[[], None] = _nothing
    after: Callable[[], None] = _nothing


class Work:
    """A collective that was called; complete after `wait`.

    Attributes:
        algorithm: its name. descriptor: what was called.
        disagreement: says who expects other than is sent, when the balance of all is not 0.
        start_ps, end_ps: virtual times of call and completion (-1 before).
    """

    def __init__(
        self,
        group: Group,
        descriptor: Descriptor,
        algorithm: str,
        phases: Sequence[Phase],
        disagreement: Callable[[], str] = str,
    ) -> None:
        self.group, self.descriptor, self.algorithm = group, descriptor, algorithm
        self.start_ps, self.end_ps = group.device.now_ps, -1
        self._phases, self._posted = list(phases), False
        self._agreed = np.array(descriptor[:AGREED])
        self._disagreement = disagreement
        self._timeout_ps = group.timeout_ps
        self._error: BaseException | None = None

    @property
    def call(self) -> int:
        """Which collective of the group this is, from 1."""
        return self.descriptor.number

    def is_completed(self) -> bool:
        """Whether it has ended (well or with an error)."""
        return self.end_ps >= 0

    def start(self) -> None:
        """Let the first phase leave, without blocking, if nothing of the group is before it."""
        self.group.open.append(self)
        if self.group.open[0] is self:
            self._post()

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
        while not self.is_completed():
            self.group.open[0]._complete()
        if self._error is not None:
            raise self._error

    # --- parts ------------------------------------------------------------------------------------------

    def _post(self) -> None:
        first = self._phases[0]
        first.before()
        self.group.store.announce(self.call, self.descriptor)
        self._posted = True
        movement.post(self.group, first.flow)

    def _complete(self) -> None:
        try:
            self._pass_all()
        except BaseException as error:
            self._error = error
            raise
        finally:
            self.end_ps = self.group.device.now_ps
            self.group.open.popleft()

    def _pass_all(self) -> None:
        if not self._posted:
            self._post()
        until_ps = None if self._timeout_ps is None else self.start_ps + self._timeout_ps
        for number, phase in enumerate(self._phases):
            if number:
                phase.before()
                movement.post(self.group, phase.flow)
            try:
                in_time = movement.wait(self.group, self.call, number, phase.flow, until_ps)
            except (DeadlockError, InternalError) as error:
                self._explain(error)
                raise
            if not in_time:
                raise self._late()
            if number == 0:
                self._compare()
            phase.after()

    def _compare(self) -> None:
        """All have entered: compare what they called."""
        table = self.group.store.announced(self.call)
        agreed = (table[:, :AGREED] == self._agreed).all()
        if agreed and not int(table[:, AGREED].sum()):
            if self.call == 1:
                self.group.store.opened()
            return
        text: str | None = self._disagreement() if agreed else differences(table, self.group.members)
        raise mismatch(self.group.name, self.descriptor, text or "descriptors differ")

    def _explain(self, error: DeadlockError | InternalError) -> None:
        """Raise what lies behind a run that cannot go on, if it is a disagreement of this group."""
        if isinstance(error, InternalError):
            text = str(error).partition(": ")[2]
            if text.startswith(_MARK):
                raise CollectiveMismatchError(text, group=self.group.name, call=self.call) from None
            return
        calls = self.group.store.last_calls()
        missing = absent(calls, self.call, self.group.members)
        table = self.group.store.announced(self.call)
        here = table[table[:, 0] == self.call]
        members = np.array(self.group.members)[table[:, 0] == self.call].tolist()
        unlike = differences(here, members) if len(here) > 1 else None
        if unlike is None and missing:
            unlike = f"{ranges(missing)} never entered it; {error.message}"
        if unlike is not None:
            raise mismatch(self.group.name, self.descriptor, unlike) from error

    def _late(self) -> CollectiveTimeoutError:
        group = self.group
        missing = absent(group.store.last_calls(), self.call, group.members)
        who = f"; {ranges(missing)} had not entered" if missing else ""
        return CollectiveTimeoutError(
            f"collective {self.call} of group {group.name} ({self.descriptor.words}) took longer than "
            f"{self._timeout_ps} ps on rank {group.device.rank}{who}",
            group=group.name, call=self.call, timeout_ps=self._timeout_ps, missing=tuple(missing),
        )  # fmt: skip
