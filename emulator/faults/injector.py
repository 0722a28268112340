"""One rank's injector: watches time, operations and request states, fires what is due, undoes what ends.

`device.faults` is `NoFaults` in a run without plan: layers call `point` and `on` all the same, which do
nothing. With a plan the rank takes its steps one by one instead of in compiled calls (same times), and each
entry into the engine is an operation that is counted and at which due faults fire *before* it acts.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from emulator.faults.plan import Fault

if TYPE_CHECKING:
    from emulator.engine.api import Engine

Undo = Callable[[], None]
NOT_NOW = object()
"""What a handler returns that finds nothing to break: the fault has not fired."""
Handler = Callable[[Fault], object]
"""Carries a fault out; returns its undo, called at the end of the duration, or None, or `NOT_NOW`."""
OPERATIONS = (
    "compute", "sleep", "put", "get", "wait_get", "atomic", "post", "schedule", "fence", "quiet", "wait",
    "test", "read", "observe", "exchange", "exchange_post", "exchange_wait",
)  # fmt: skip
"""Engine entries that count as operations of a rank."""
FIRED, RANK, FIRED_PS, UNDONE_PS = range(4)
"""Columns of the shared log, int64 [faults, 4]: times fired, rank, when, when undone (-1: not)."""


Fence = Callable[[int], int]
"""When a rank that is silent from a time on is declared dead, ps."""


class Faults(Protocol):
    """What layers know of the injector."""

    active: bool
    plan: tuple[Fault, ...]
    fence: Fence | None
    """Where somebody watches: who is silent for longer than that is ended."""

    def on(self, kind: str, handler: Handler, wanted: Callable[[], bool] | None = None) -> None:
        """Register who carries a kind out on this rank; `wanted`: whether it is about this rank at all."""

    def point(self, kind: str, **facts: Any) -> None:
        """Say where the rank is: `point("decode", request=5)`, a request state with its request."""

    def fired(self, index: int, ps: int) -> None:
        """Note that plan fault number `index` fired; for layers that fire by their own time-line."""

    def undone(self, index: int, ps: int) -> None:
        """Note that it is over."""

    def over(self, fault: Fault) -> None:
        """Note that a fault that fired here is over now; for layers that see it end."""

    def end(self, silent_ps: int) -> None:
        """End this rank, of which the others have heard nothing since `silent_ps`."""


class NoFaults:
    """No plan: everything is a no-op."""

    active = False
    plan: tuple[Fault, ...] = ()
    fence: Fence | None = None

    def on(self, kind: str, handler: Handler, wanted: Callable[[], bool] | None = None) -> None:
        """Nothing will happen."""

    def point(self, kind: str, **facts: Any) -> None:
        """Nothing is due."""

    def fired(self, index: int, ps: int) -> None:
        """Nothing can have."""

    def undone(self, index: int, ps: int) -> None:
        """Nothing can be."""

    def over(self, fault: Fault) -> None:
        """None is."""

    def end(self, silent_ps: int) -> None:
        """Nobody is silent."""


class Injector:
    """Faults of one rank.

    Args:
        plan: the resolved plan, the same on all ranks.
        rank: this rank.
        engine: its engine; the entries in `OPERATIONS` are wrapped on this object.
        log: shared int64 [faults, 4], see `FIRED`.
        silent: shared int64 [ranks], since when a rank that was ended did nothing.
    """

    active = True

    def __init__(
        self,
        plan: Sequence[Fault],
        rank: int,
        engine: Engine,
        log: npt.NDArray[np.int64],
        silent: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self.plan = tuple(plan)
        self.operations = 0
        self.fence: Fence | None = None
        self._silent = np.zeros(rank + 1, np.int64) if silent is None else silent
        self._rank, self._engine, self._log = rank, engine, log
        mine = [(i, f) for i, f in enumerate(plan) if _home(f) in (rank, None)]
        self._timed = sorted(((int(f.at_ps), i) for i, f in mine if isinstance(f.at_ps, int)), reverse=True)
        self._counted = sorted(((f.at_op, i) for i, f in mine if f.at_op is not None), reverse=True)
        self._stated = [(i, f) for i, f in mine if f.at_request is not None]
        self._seen: dict[tuple[str, int], int] = {}
        self._ends: list[tuple[int, int, Undo]] = []
        self._factors: list[float] = []
        self._wanted: dict[str, Callable[[], bool]] = {}
        self._handlers: dict[str, Handler] = {
            "kill": self._kill, "kill_in_lock": self._kill_in_lock, "freeze": self._freeze,
            "gc_pause": self._freeze, "slow": self._slow,
        }  # fmt: skip
        self._enter = {name: getattr(engine, name) for name in OPERATIONS}
        for name in OPERATIONS:
            setattr(engine, name, self._watched(name))

    def on(self, kind: str, handler: Handler, wanted: Callable[[], bool] | None = None) -> None:
        """See `Faults.on`."""
        self._handlers[kind] = handler
        if wanted is not None:
            self._wanted[kind] = wanted

    def point(self, kind: str, **facts: Any) -> None:
        """See `Faults.point`."""
        self._due_by_time()
        if not self._stated or "request" not in facts:
            return
        request = int(facts["request"])
        self._seen[kind, request] = count = self._seen.get((kind, request), 0) + 1
        for index, fault in tuple(self._stated):
            at = fault.at_request
            if at and at.state == kind and at.request in (None, request) and at.count <= count:
                self._stated.remove((index, fault))
                if not self._log[index, FIRED]:  # else the request was elsewhere when it did
                    self._fire(index)

    def fired(self, index: int, ps: int) -> None:
        """See `Faults.fired`."""
        self._log[index] = (self._log[index, FIRED] + 1, self._rank, ps, -1)

    def undone(self, index: int, ps: int) -> None:
        """See `Faults.undone`."""
        self._log[index, UNDONE_PS] = ps

    def over(self, fault: Fault) -> None:
        """See `Faults.over`."""
        index = next(i for i, each in enumerate(self.plan) if each is fault)
        self.undone(index, self._engine.now_ps)

    # --- what is due ------------------------------------------------------------------------------------

    def _watched(self, name: str) -> Callable[..., Any]:
        enter = self._enter[name]

        def operation(*arguments: Any, **named: Any) -> Any:
            self.operations += 1
            self._due_by_time()
            while self._counted and self._counted[-1][0] <= self.operations:
                self._fire(self._counted.pop()[1])
            return enter(*arguments, **named)

        def compute(ps: int, *arguments: Any, **named: Any) -> Any:
            self.operations += 1
            self._due_by_time()
            while self._counted and self._counted[-1][0] <= self.operations:
                self._fire(self._counted.pop()[1])
            for factor in self._factors:
                ps = round(ps * factor)
            return enter(ps, *arguments, **named)

        return compute if name == "compute" else operation

    def _due_by_time(self) -> None:
        """Undo and fire, in order of time, everything due by now."""
        while True:
            now = self._engine.now_ps
            end = min(self._ends, default=None, key=lambda entry: entry[:2])
            start = self._timed[-1] if self._timed else None
            if end is not None and end[0] <= now and (start is None or end[0] <= start[0]):
                self._ends.remove(end)
                end[2]()
                self.undone(end[1], end[0])
            elif start is not None and start[0] <= now:
                self._fire(self._timed.pop()[1])
            else:
                return

    def _fire(self, index: int) -> None:
        fault = self.plan[index]
        handler = self._handlers.get(fault.kind)
        if handler is None or not self._wanted.get(fault.kind, _always)():
            return  # no layer of this program has it: reported as never fired; or another rank's
        if _home(fault) is None and self._log[index, FIRED]:
            return  # it was somebody else
        start = self._engine.now_ps
        self.fired(index, start)
        undo = handler(fault)
        if undo is NOT_NOW:
            self._log[index] = 0
        elif callable(undo) and fault.duration_ps is not None:
            begin = fault.at_ps if isinstance(fault.at_ps, int) else start
            self._ends.append((begin + fault.duration_ps, index, undo))

    # --- kinds carried out here -------------------------------------------------------------------------

    def _kill(self, _: Fault) -> None:
        """End this process for good; what it has posted goes on."""
        self.end(self._engine.now_ps)

    def end(self, silent_ps: int) -> None:
        """See `Faults.end`."""
        self._engine.flush()
        self._silent[self._rank] = max(1, silent_ps)
        os.kill(os.getpid(), signal.SIGKILL)

    def _kill_in_lock(self, fault: Fault) -> None:
        self._engine.log_lock(self._rank)
        self._kill(fault)

    def _freeze(self, fault: Fault) -> Undo:
        """Do nothing until the end of the duration; counted from the planned time even if I was blocked."""
        now = self._engine.now_ps
        begin = fault.at_ps if isinstance(fault.at_ps, int) else now
        end = begin + (fault.duration_ps or 0)
        fenced = self.fence is not None and self.fence(now) < end
        if self.fence is not None and fenced:
            end = self.fence(now)
        if end > now:
            self._enter["compute"](end - now, 0, True)
        if fenced:
            self.end(now)
        return lambda: None

    def _slow(self, fault: Fault) -> Undo:
        factor = fault.factor or 1.0
        self._factors.append(factor)
        return lambda: self._factors.remove(factor)


def _always() -> bool:
    return True


def _home(fault: Fault) -> int | None:
    """The rank that notes a fault: its own, a link's die (rank 0 for a switch or node); None: any."""
    if fault.link is None:
        return fault.rank if isinstance(fault.rank, int) else None
    name, _, rest = fault.link.partition(":")
    return int(rest.split("/")[0]) if name in ("die", "plane", "nic") else 0
