"""The call of a device that hands over many steps at once; see `emulator.engine.schedules`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from emulator.engine.api import Engine
from emulator.engine.schedules import SEND_DTYPE, STEP_DTYPE, Sends, Steps
from emulator.ledger import Ledger
from emulator.tracing import Op, RankTrace

if TYPE_CHECKING:
    from emulator.board import Board
    from emulator.delivery import Delivery
    from emulator.posting import Posting


class ScheduleCalls(ABC):
    """Part of `emulator.device.Device`."""

    engine: Engine
    trace: RankTrace
    board: Board
    ledger: Ledger
    delivery: Delivery
    posting: Posting
    _schedule: Callable[..., Any]

    def schedule(self, steps: Steps, sends: Sends, step_ps: int = 0, timeout_ps: int | None = None) -> int:
        """Carry out steps of compute, puts and a wait, asleep: one wake-up in all. See `Engine.schedule`.

        The puts carry no payload. Fences do not order them after earlier puts where delivery is adversarial,
        and `barrier` does not wait for them; `quiet` does.

        Args:
            steps: [count] of STEP_DTYPE.
            sends: the puts they refer to, SEND_DTYPE.
            step_ps: what each put costs me beside the call price.
            timeout_ps: virtual time after which the schedule ends at a wait; None for never.

        Returns:
            how many steps were carried out: `len(steps)` unless the time-out came.

        Completion: my heap shows everything up to the last wait that was carried out.

        Raises:
            UsageError: a field out of range. RankLostError: a peer is known to be dead.
        """
        if not self.delivery.reorders:
            carried_out: int | None = self._schedule(steps, sends, step_ps, timeout_ps)
            if carried_out is not None:
                if self.posting.owners:
                    self.posting.dispatch()
                return carried_out
        return self._by_steps(steps, sends, step_ps, timeout_ps)

    def _by_steps(self, steps: Steps, sends: Sends, step_ps: int, timeout_ps: int | None) -> int:
        """The same, not compiled."""
        if not (_has(steps, STEP_DTYPE) and _has(sends, SEND_DTYPE)):
            self.engine.schedule(steps, sends, step_ps, timeout_ps)  # says what is wrong
        if self.dead.any():
            for peer in np.flatnonzero(self.dead[sends["peer"]]):
                self._check_alive("schedule", int(sends["peer"][peer]))
        sends = self.delivery.disturb_sends(sends)
        start, last = self.engine.now_ps, _after_last_wait(steps)
        done: int = self._blocking(
            Op.SCHEDULE, self.engine.schedule, steps[:last], sends, step_ps, timeout_ps, record=False
        )
        if done == last < len(steps):  # not seen to before: that would move my view past my last wait
            done += self.engine.schedule(steps[last:], sends, step_ps)
        self._count(sends, start)
        return done

    def _count(self, sends: Sends, start_ps: int) -> None:
        """Note what was charged (all of it, also where a time-out came first)."""
        nbytes = int(sends["nbytes"].sum())
        if len(sends) and sends["plane"].any():
            np.add.at(self.ledger.wire, sends["plane"], sends["nbytes"])
        elif nbytes:
            self.ledger.moved(0, nbytes)
        self.trace.add(Op.SCHEDULE, start_ps, self.engine.now_ps, -1, nbytes)

    @property
    @abstractmethod
    def dead(self) -> npt.NDArray[np.uint8]: ...

    @abstractmethod
    def _check_alive(self, call: str, rank: int) -> None: ...

    @abstractmethod
    def _blocking(self, op: Op, call: Callable[..., Any], *arguments: Any, record: bool = True) -> Any: ...


def _has(rows: Any, dtype: Any) -> bool:
    return isinstance(rows, np.ndarray) and rows.dtype == dtype and rows.ndim == 1


def _after_last_wait(steps: Steps) -> int:
    """Return the number of steps up to the last that waits."""
    if not len(steps) or steps["word"][-1] >= 0:
        return len(steps)
    waits = np.flatnonzero(steps["word"] >= 0)
    return int(waits[-1]) + 1 if waits.size else 0
