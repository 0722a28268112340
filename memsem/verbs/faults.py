"""Faults of a rank's NIC: a queue pair that fails, completions lost, doubled or late, a ring that stays full.

Made by every context of a run under a fault plan; without one nothing here exists.

    qp_error               the lowest queue pair (jetty) in use goes to ERR; over once it is in RTS again
    completion_lost        the next completion is written nowhere (counted in `Tally.lost`)
    completion_duplicated  the next completion is there twice
    completion_late        the next completion is there `delay_ps` after its time
    full_ring              receives posted from now on are not seen by the NIC until the fault is over

`nic_down` is a link fault (`emulator.links`): the transport's own time-out and retries meet it.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from emulator.engine.posts import DONE_ALWAYS, K_PUT, new_posts
from emulator.fabric import Transaction
from emulator.faults import NOT_NOW, Fault, Undo
from memsem.verbs.enums import IBV_QPS_ERR, IBV_QPS_RESET

if TYPE_CHECKING:
    from memsem.verbs.context import Context
    from memsem.verbs.cq import CQ
    from memsem.verbs.qp import QP
    from memsem.verbs.wr import WC

LATE_QUEUE = 1
"""No queue pair has this number: records of it say that a late completion is due."""
_COMPLETIONS = ("completion_lost", "completion_duplicated", "completion_late")


class _Late(NamedTuple):
    cq: CQ
    wc: WC
    on_poll: Callable[[], None]
    solicited: bool
    fault: Fault


class NicFaults:
    """Faults of one context.

    Args:
        context: whose NIC it is.
    """

    def __init__(self, context: Context) -> None:
        self._context, self._faults = context, context.device.faults
        self._due: deque[Fault] = deque()
        self._late: dict[int, _Late] = {}
        self._broken: dict[int, Fault] = {}
        self._count = 0
        self._full: dict[int, Fault] = {}
        self._held: list[Callable[[], None]] = []
        self._faults.on("qp_error", self._break)
        self._faults.on("full_ring", self._fill)
        for kind in _COMPLETIONS:
            self._faults.on(kind, self._due.append)

    # --- queue pairs ------------------------------------------------------------------------------------

    def _break(self, fault: Fault) -> object:
        usable = [qp for qp in self._context.qps if qp.state not in (IBV_QPS_RESET, IBV_QPS_ERR)]
        if not usable:
            return NOT_NOW
        self._broken[usable[0].qp_num] = fault
        usable[0].break_down()
        return None

    def is_ready(self, qp: QP) -> None:
        """A queue pair has come to RTS."""
        if (fault := self._broken.pop(qp.qp_num, None)) is not None:
            self._faults.over(fault)

    # --- completions ------------------------------------------------------------------------------------

    def spoils(self, cq: CQ, wc: WC, on_poll: Callable[[], None], solicited: bool) -> bool:
        """Whether a request's completion meets a fault; then it has been seen to here."""
        if not self._due:
            return False
        fault, context = self._due.popleft(), self._context
        if fault.kind == "completion_duplicated":
            cq.push(wc, on_poll, solicited)
            cq.push(dataclasses.replace(wc), lambda: self._faults.over(fault), solicited, counted=False)
            return True
        context.count(Transaction.COMPLETION)
        context.tally.completions += 1
        if fault.kind == "completion_lost":
            context.tally.lost += 1
            return True
        number = self._number()
        self._late[number] = _Late(cq, wc, on_poll, solicited, fault)
        context.later(lambda: self._remind(number, fault.delay_ps or 0))
        return True

    def _number(self) -> int:
        self._count += 1
        return self._count

    def _remind(self, number: int, delay_ps: int) -> None:
        """Have a record come to me that long from now; it ends a sleep, too."""
        user_b = self._context.user_b(LATE_QUEUE, number, False)
        own = {"kind": K_PUT, "peer": self._context.rank, "done": DONE_ALWAYS, "user_b": user_b}
        self._context.post(new_posts(1, start_ps=delay_ps, **own))

    def arrive(self, number: int) -> None:
        """A late completion is due, or a full ring is drained."""
        if number not in self._late:
            self._drain(number)
            return
        late = self._late.pop(number)
        if self._context.find_qp(late.wc.qp_num) is None:  # destroyed meanwhile
            return
        late.cq.push(late.wc, late.on_poll, late.solicited, counted=False)
        self._faults.over(late.fault)

    # --- receives ---------------------------------------------------------------------------------------

    def holds(self, post: Callable[[], None]) -> bool:
        """Whether the ring is full; then the receives are posted once it is not."""
        if self._full:
            self._held.append(post)
        return bool(self._full)

    def _fill(self, fault: Fault) -> Undo:
        number, now_ps = self._number(), self._context.now_ps
        self._full[number] = fault
        if fault.duration_ps is not None:
            begin_ps = fault.at_ps if isinstance(fault.at_ps, int) else now_ps
            self._remind(number, max(0, begin_ps + fault.duration_ps - now_ps))
        return lambda: self._drain(number)

    def _drain(self, number: int) -> None:
        if (fault := self._full.pop(number, None)) is None:
            return
        self._faults.over(fault)
        if not self._full:
            held, self._held = self._held, []
            for post in held:
                self._context.later(post)
