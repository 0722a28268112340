"""A stream of transfers from one rank to another, the same over three contracts.

    windows    put with a signal, then `quiet`; the receiver waits for the signal
    verbs      RDMA WRITE with immediate, then its completion; the receiver waits for its own
    messages   `Send`, `Recv`

`send` returns what the program was told was wrong, or None; it raises what it was told by an exception. A
lane that was told something is made ready again by `mend`.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from emulator import Device
from memsem import Window
from memsem import mpi as MPI
from memsem import verbs as v

PATHS = ("windows", "verbs", "messages")
PATIENCE_PS = 20_000_000_000_000
"""Verbs: a program that waits for a completion gives up after 20 s, beyond every retransmission."""
_TIMEOUT, _RETRIES = 14, 7
"""67 ms before the NIC sends again what is not answered, seven times (values of perftest and Open MPI)."""
_RNR_TIMER = 12
_ACCESS = v.IBV_ACCESS_LOCAL_WRITE | v.IBV_ACCESS_REMOTE_WRITE
_RECEIVES = 32


class Lane(Protocol):
    """One rank's end of a stream to or from `partner`."""

    def send(self, number: int) -> str | None:
        """Send transfer `number` and wait until it is complete; what was wrong with it."""

    def receive(self, number: int) -> str | None:
        """Wait until transfer `number`, or a later one, is here."""

    def mend(self) -> None:
        """Be ready for another attempt."""


class WindowLane:
    """Memory semantics."""

    def __init__(self, device: Device, partner: int, size: int) -> None:
        self._partner, self._data = partner, np.zeros(size, np.uint8)
        self._window = Window.create(size, np.uint8, signals=1)

    def send(self, number: int) -> str | None:
        self._window.put_signal(self._partner, self._data, 0, 0, number + 1)
        self._window.quiet()
        return None

    def receive(self, number: int) -> str | None:
        self._window.signal_wait_until(0, "ge", number + 1)
        return None

    def mend(self) -> None:
        """Nothing has to be made anew."""


class VerbsLane:
    """A reliable connection; the sender makes it anew after an error."""

    def __init__(self, device: Device, partner: int, size: int) -> None:
        self._device, self._partner = device, partner
        self._context = context = v.Context(device, max_qp=2, max_mr=2, memory_bytes=2 * size + 4096)
        pd = v.PD(context)
        self._memory = v.MR(pd, size, _ACCESS)
        self._scq, self._rcq = v.CQ(context, 64), v.CQ(context, 2 * _RECEIVES)
        cap = v.QPCap(16, _RECEIVES)
        self._qp = v.QP(pd, v.QPInitAttr(v.IBV_QPT_RC, scq=self._scq, rcq=self._rcq, cap=cap))
        told = v.Exchange(context, 3).all_gather(self._qp.qp_num, self._memory.buf, self._memory.rkey)
        self._dest, self._address, self._key = (int(number) for number in told[partner])
        self._qp.to_rts(self._attributes())
        self._posted = 0
        self._provide()

    def _attributes(self) -> v.QPAttr:
        address = v.AHAttr(dlid=self._partner + 1)
        attr = v.QPAttr(dest_qp_num=self._dest, ah_attr=address, qp_access_flags=_ACCESS)
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = _TIMEOUT, _RETRIES, 6, _RNR_TIMER
        return attr

    def send(self, number: int) -> str | None:
        element = v.SGE(self._memory.buf, self._memory.length, self._memory.lkey)
        wr = v.SendWR(number, v.IBV_WR_RDMA_WRITE_WITH_IMM, num_sge=1, imm_data=number, sg=[element])
        wr.set_wr_rdma(self._key, self._address)
        self._qp.post_send(wr)
        while (wc := self._next(self._scq)) is not None:
            if wc.status != v.IBV_WC_SUCCESS:
                return v.ibv_wc_status(wc.status).name
            if wc.wr_id == number:
                return None
        return "no completion"

    def receive(self, number: int) -> str | None:
        while (wc := self._next(self._rcq)) is not None:
            self._posted -= 1
            self._provide()
            if wc.status != v.IBV_WC_SUCCESS:
                return v.ibv_wc_status(wc.status).name
            if wc.imm_data >= number:
                return None
        return "no completion"

    def _next(self, cq: v.CQ) -> v.WC | None:
        """The next completion; None after the program's patience."""
        end_ps = self._device.now_ps + PATIENCE_PS
        self._context.observe()
        while not len(cq):
            left = end_ps - self._device.now_ps
            if left <= 0 or not self._device.wait_inbox(self._device.inbox_seen, left):
                return None
            self._context.do_chores()
        return cq.poll(1)[1][0]

    def _provide(self) -> None:
        element = v.SGE(self._memory.buf, self._memory.length, self._memory.lkey)
        while self._posted < _RECEIVES // 2 and self._qp.receives.room:
            self._qp.post_recv(v.RecvWR(num_sge=1, sg=[element]))
            self._posted += 1

    def mend(self) -> None:
        self._qp.modify(v.QPAttr(qp_state=v.IBV_QPS_RESET), v.IBV_QP_STATE)
        self._qp.to_rts(self._attributes())
        self._posted = 0
        self._provide()


class MessageLane:
    """Messages of MPI."""

    def __init__(self, device: Device, partner: int, size: int) -> None:
        self._partner, self._data, self._comm = partner, np.zeros(size, np.uint8), MPI.COMM_WORLD

    def send(self, number: int) -> str | None:
        self._comm.Send(self._data, dest=self._partner, tag=number)
        return None

    def receive(self, number: int) -> str | None:
        self._comm.Recv(self._data, source=self._partner, tag=MPI.ANY_TAG)
        return None

    def mend(self) -> None:
        """Nothing has to be made anew."""


LANES = {"windows": WindowLane, "verbs": VerbsLane, "messages": MessageLane}
