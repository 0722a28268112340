"""Runs the operations of litmus programs by URMA: one jetty in RM mode a rank, which reaches all others."""

from __future__ import annotations

import numpy as np

from emulator import Device
from emulator.errors import InternalError
from memsem import Window
from memsem.litmus_deal import Deal
from memsem.litmus_ops import Op, Put, Quiet
from memsem.verbs import Exchange
from memsem.verbs.jetty import Jetty, JfsWr, Sge, WrFlag, import_jetty
from memsem.verbs.urma import (
    Access,
    Context,
    CrStatus,
    Jfc,
    Opcode,
    Segment,
    TransMode,
    import_seg,
)

_ITEM, _SLOTS = 8, 16
_ORDERS = {"none": 0, "relaxed": 1, "strong": 2}


class UrmaMachine:
    """Writes by a jetty in RM mode. Made on all ranks together."""

    def __init__(self, device: Device, window: Window) -> None:
        self._device, self._window = device, window
        self._context = context = Context(device, max_qp=4, memory_bytes=1 << 16)
        self._memory = Segment(context, window.local, Access.READ | Access.WRITE)
        self._scratch = Segment(context, _SLOTS * _ITEM, Access.LOCAL_ONLY)
        self._jfc = Jfc(context, 64)
        self._jetty = Jetty(context, TransMode.RM, self._jfc)
        told = Exchange(context, 6).all_gather(*self._jetty.id, *self._memory.ubva)
        self._targets = [import_jetty(context, row[:2]) for row in told.tolist()]
        self._segments = [import_seg(context, row[2:]) for row in told.tolist()]
        self._number = 0
        self._under_way: list[str] = []

    def prepare(self, deal: Deal) -> None:
        """Nothing to get ready."""

    def do(self, deal: Deal, op: Op) -> None:
        """Execute one operation."""
        if isinstance(op, Put):
            self._put(deal, op)
        elif isinstance(op, Quiet):
            self.complete(deal)
        else:
            raise InternalError(f"litmus: {op} cannot be run by URMA")

    def _put(self, deal: Deal, op: Put) -> None:
        assert op.tell is not None and len(op.writes) == 1, "one write, and where it stands among completions"
        name, value = op.writes[0]
        self._number += 1
        at = self._number % _SLOTS * _ITEM
        self._scratch.view[at : at + _ITEM] = np.array([value], np.int64).view(np.uint8)
        home = deal.home(name)
        wr = JfsWr(
            Opcode.WRITE,
            self._targets[home],
            user_ctx=len(self._under_way),
            local=[Sge(self._scratch, _ITEM, at)],
            remote=Sge(self._segments[home], _ITEM, deal.place(name) * _ITEM),
            flag=WrFlag(_ORDERS[op.order], op.complete, op.fence),
        )
        self._under_way.append(op.tell)
        self._jetty.post_jetty_send_wr(wr)

    def complete(self, deal: Deal) -> None:
        """Take all completions; their order answers `tell`."""
        for place, cr in enumerate(self._jfc.wait_jfc(len(self._under_way)) if self._under_way else []):
            if cr.status != CrStatus.SUCCESS:
                raise InternalError(f"litmus: {cr}")
            deal.found[self._under_way[cr.user_ctx]] = place
        self._under_way.clear()
