"""Runs the operations of litmus programs by verbs, on the memory of the litmus window.

Every two ranks are connected by two RC queue pairs, "a" and "b", which share completion queues for sends and
receives; each rank has a UD queue pair, too. All are made once and used by all programs.
"""

from __future__ import annotations

import numpy as np

from emulator import Device
from emulator.errors import InternalError
from memsem import Window
from memsem import verbs as v
from memsem.litmus_deal import Deal
from memsem.litmus_ops import Get, Litmus, Load, Op, Put, Quiet, Recv, Send

ACCESS = v.IBV_ACCESS_LOCAL_WRITE | v.IBV_ACCESS_REMOTE_WRITE | v.IBV_ACCESS_REMOTE_READ
QUEUES = ("a", "b")
_ITEM, _GRH, _DEPTH, _QKEY = 8, 40, 64, 0x11
_SLOTS = 16


class VerbsMachine:
    """RC and UD queue pairs of this rank. Made on all ranks together."""

    def __init__(self, device: Device, window: Window) -> None:
        self._device, self._window = device, window
        context = v.Context(device, max_qp=2 * device.num_ranks + 1, memory_bytes=1 << 16)
        self._context, self._pd = context, v.PD(context)
        self._memory = v.MR(self._pd, window.local, ACCESS)
        self._scratch = v.MR(self._pd, _SLOTS * (_ITEM + _GRH), ACCESS)
        self._scq, self._rcq = v.CQ(context, 4 * _DEPTH), v.CQ(context, 4 * _DEPTH)
        self._next = self._signalled = 0
        self._tells: dict[int, str] = {}
        self._make_queue_pairs()

    def _make_queue_pairs(self) -> None:
        ranks = [rank for rank in range(self._device.num_ranks) if rank != self._device.rank]
        self._rc = {(rank, queue): self._queue_pair(v.IBV_QPT_RC) for rank in ranks for queue in QUEUES}
        self._ud = self._queue_pair(v.IBV_QPT_UD)
        me = self._device.rank
        numbers = [
            [*(self._rc[rank, q].qp_num if rank != me else 0 for q in QUEUES), self._ud.qp_num,
             self._memory.buf, self._memory.rkey]
            for rank in range(self._device.num_ranks)
        ]  # fmt: skip
        self._told = v.Exchange(self._context, 5).all_to_all(numbers)
        for (rank, queue), qp in self._rc.items():
            attr = v.QPAttr(dest_qp_num=int(self._told[rank, QUEUES.index(queue)]), qp_access_flags=ACCESS)
            attr.ah_attr = v.AHAttr(dlid=rank + 1)
            attr.rnr_retry, attr.retry_cnt, attr.timeout, attr.max_rd_atomic = 7, 7, 14, 16
            qp.to_rts(attr)
        self._ud.to_rts(v.QPAttr(qkey=_QKEY))
        self._ah = {rank: v.AH(self._pd, v.AHAttr(dlid=rank + 1)) for rank in ranks}

    def _queue_pair(self, kind: int) -> v.QP:
        attr = v.QPInitAttr(kind, scq=self._scq, rcq=self._rcq, cap=v.QPCap(_DEPTH, _DEPTH), sq_sig_all=1)
        return v.QP(self._pd, attr)

    # --- one program ------------------------------------------------------------------------------------

    def prepare(self, deal: Deal) -> None:
        """Post the receives of my thread, before anybody starts."""
        for op in deal.thread(self._device.rank):
            if isinstance(op, Recv) and op.how == "imm":
                self._rc[self._writer(deal.litmus, deal), "a"].post_recv(v.RecvWR())
            elif isinstance(op, Recv):
                at = self._place()
                sg = [v.SGE(at, _GRH + _ITEM, self._scratch.lkey)]
                self._ud.post_recv(v.RecvWR(wr_id=at, num_sge=1, sg=sg))

    def _writer(self, litmus: Litmus, deal: Deal) -> int:
        """The rank whose put carries immediate data."""
        threads = litmus.threads.items()
        names = [name for name, ops in threads for op in ops if isinstance(op, Put) and op.notice is not None]
        return deal.number[names[0]]

    def do(self, deal: Deal, op: Op) -> None:
        """Execute one operation."""
        if isinstance(op, Put):
            self._put(deal, op)
        elif isinstance(op, Get):
            self._get(deal, op)
        elif isinstance(op, Send):
            self._send(deal, op)
        elif isinstance(op, Recv):
            self._recv(deal, op)
        elif isinstance(op, Load):
            deal.found[op.reg] = int(self._window.load(deal.place(op.var), 1)[0])
        elif isinstance(op, Quiet):
            self.complete(deal)
        else:
            raise InternalError(f"litmus: {op} cannot be run by verbs")

    def complete(self, deal: Deal) -> None:
        """Take all completions of sends; their order answers `tell`."""
        for wc in self._scq.wait(self._signalled) if self._signalled else []:
            _check(wc)
            if wc.wr_id in self._tells:
                deal.found[self._tells[wc.wr_id]] = sum(name in deal.found for name in self._tells.values())
        self._signalled = 0
        self._tells.clear()

    # --- operations -------------------------------------------------------------------------------------

    def _put(self, deal: Deal, op: Put) -> None:
        assert op.queue is not None and len(op.writes) == 1, "one write of one RC queue pair"
        (name, value), at = op.writes[0], self._place()
        self._device.heap[at : at + _ITEM] = np.array([value], np.int64).view(np.uint8)
        plain = op.notice is None
        wr = self._request(v.IBV_WR_RDMA_WRITE if plain else v.IBV_WR_RDMA_WRITE_WITH_IMM, at)
        wr.imm_data = op.notice or 0
        if op.tell is not None:
            self._tells[wr.wr_id] = op.tell
        self._post(deal, name, op.queue, wr)

    def _get(self, deal: Deal, op: Get) -> None:
        assert op.queue is not None and op.blocking
        at = self._place()
        self._post(deal, op.var, op.queue, self._request(v.IBV_WR_RDMA_READ, at))
        self.complete(deal)
        deal.found[op.reg] = int(self._device.heap[at : at + _ITEM].view(np.int64)[0])

    def _request(self, opcode: int, at: int) -> v.SendWR:
        self._next += 1
        sg = [v.SGE(at, _ITEM, self._scratch.lkey)]
        return v.SendWR(self._next, opcode, 1, sg=sg, send_flags=v.IBV_SEND_SIGNALED)

    def _post(self, deal: Deal, name: str, queue: str, wr: v.SendWR) -> None:
        home = deal.home(name)
        base, rkey = (int(number) for number in self._told[home, 3:5])
        wr.set_wr_rdma(rkey, base + deal.place(name) * _ITEM)
        self._rc[home, queue].post_send(wr)
        self._signalled += 1

    def _send(self, deal: Deal, op: Send) -> None:
        target, at = deal.number[op.to], self._place()
        self._device.heap[at : at + _ITEM] = np.array([op.value], np.int64).view(np.uint8)
        wr = self._request(v.IBV_WR_SEND, at)
        wr.set_wr_ud(self._ah[target], int(self._told[target, 2]), _QKEY)
        self._ud.post_send(wr)
        self._signalled += 1

    def _recv(self, deal: Deal, op: Recv) -> None:
        (wc,) = self._rcq.wait(1)
        _check(wc)
        at = wc.wr_id + _GRH
        datagram = op.how == "ud"
        value = int(self._device.heap[at : at + _ITEM].view(np.int64)[0]) if datagram else wc.imm_data
        deal.found[op.reg] = value

    def _place(self) -> int:
        """Address of scratch memory that was last used a program ago."""
        self._next += 1
        return self._scratch.buf + self._next % _SLOTS * (_ITEM + _GRH)


def _check(wc: v.WC) -> None:
    if wc.status != v.IBV_WC_SUCCESS:
        raise InternalError(f"litmus: {wc}")
