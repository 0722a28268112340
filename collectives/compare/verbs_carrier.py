"""Messages of a comparison by verbs: one RC queue pair per peer, writes with immediate, completions for both.

sender     copies the message into registered memory, posts a write with immediate (the lane), one doorbell
receiver   has two receives posted per lane; takes the completion, whose byte count is the length, and
           posts the receive again
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from collectives.compare.carriers import Bytes, Lanes
from collectives.compare.workloads import Lane, Send, Workload
from emulator import Device
from memsem import verbs as v

ACCESS = v.IBV_ACCESS_LOCAL_WRITE | v.IBV_ACCESS_REMOTE_WRITE
FOR_EVER = 7
_PAGE = 4096


class VerbsCarrier:
    """Queue pairs between all ranks that exchange messages, made and connected together."""

    def __init__(self, device: Device, workload: Workload) -> None:
        self._rank, self._device = device.rank, device
        self._lanes = lanes = Lanes(workload, device.num_ranks)
        self._mine = lanes.of[device.rank]
        self._outgoing = [
            Lane(target, lane.slot)
            for target, inbound in enumerate(lanes.of)
            for lane in inbound
            if lane.source == device.rank
        ]
        self._peers = sorted({lane.source for lane in (*self._mine, *self._outgoing)})
        self._ready: list[deque[int]] = [deque() for _ in self._mine]
        self._taken = np.zeros(lanes.most, np.int64)
        self._sent = np.zeros(max(1, len(self._outgoing)), np.int64)
        self._open(device)
        self._connect()

    # --- set-up -----------------------------------------------------------------------------------------

    def _open(self, device: Device) -> None:
        """Make memory, completion queues and queue pairs. Sizes are alike on all ranks."""
        most = max(
            sum(lane.source == rank for lanes in self._lanes.of for lane in lanes)
            for rank in range(device.num_ranks)
        )
        room = (-(-(self._lanes.nbytes + most * self._lanes.capacity) // _PAGE) + 4) * _PAGE
        self._context = context = v.Context(device, max_qp=device.num_ranks, memory_bytes=room)
        self._pd = v.PD(context)
        self._source = v.MR(self._pd, max(1, len(self._outgoing)) * self._lanes.capacity, ACCESS)
        self._target = v.MR(self._pd, self._lanes.nbytes, ACCESS)
        self._scq = v.CQ(context, 2 * len(self._outgoing) + 1)
        self._rcq = v.CQ(context, 2 * len(self._mine) + 1)
        self._qps = {peer: self._queue_pair(peer) for peer in self._peers}

    def _queue_pair(self, peer: int) -> v.QP:
        sends = sum(lane.source == peer for lane in self._outgoing)
        receives = sum(lane.source == peer for lane in self._mine)
        cap = v.QPCap(max_send_wr=sends + 1, max_recv_wr=2 * receives + 1)
        cap.max_inline_data = self._context.max_inline
        attr = v.QPInitAttr(qp_type=v.IBV_QPT_RC, scq=self._scq, rcq=self._rcq, cap=cap)
        return v.QP(self._pd, attr)

    def _connect(self) -> None:
        numbers = [
            [self._qps[rank].qp_num if rank in self._qps else 0, self._target.buf, self._target.rkey]
            for rank in range(self._device.num_ranks)
        ]
        self._remote: npt.NDArray[np.int64] = v.Exchange(self._context, 3).all_to_all(numbers)
        for peer, qp in self._qps.items():
            attr = v.QPAttr(dest_qp_num=int(self._remote[peer, 0]), ah_attr=v.AHAttr(dlid=peer + 1))
            attr.qp_access_flags, attr.rnr_retry, attr.retry_cnt, attr.timeout = ACCESS, FOR_EVER, 7, 14
            qp.to_rts(attr)
        for lane in self._mine:
            for _ in range(2):
                self._qps[lane.source].post_recv(v.RecvWR())
        self._device.barrier()

    # --- rounds -----------------------------------------------------------------------------------------

    def round(self, sends: Sequence[Send], expected: Sequence[Lane]) -> list[Bytes]:
        for send in sends:
            self._post(send)
        lanes = [self._lanes.index[self._rank][lane] for lane in expected]
        while not all(self._ready[lane] for lane in lanes):
            self._sort(self._rcq.wait(1))
        received = [self._take(lane) for lane in lanes]
        if sends:
            _check(self._scq.wait(len(sends)))
        return received

    def _post(self, send: Send) -> None:
        """Write with immediate. The source's place is free: the last write from it has been completed."""
        target, slot, data = send
        number = self._outgoing.index(Lane(target, slot))
        lane = self._lanes.index[target][Lane(self._rank, slot)]
        at = self._source.buf + number * self._lanes.capacity
        self._device.heap[at : at + data.size] = data
        inline = v.IBV_SEND_INLINE if data.size <= self._context.max_inline else 0
        wr = v.SendWR(
            opcode=v.IBV_WR_RDMA_WRITE_WITH_IMM,
            num_sge=1 if data.size else 0,
            sg=[v.SGE(at, data.size, self._source.lkey)],
            imm_data=lane,
            send_flags=v.IBV_SEND_SIGNALED | inline,
        )
        place = int(self._remote[target, 1]) + self._lanes.offset(lane, int(self._sent[number]))
        wr.set_wr_rdma(int(self._remote[target, 2]), place)
        self._sent[number] += 1
        self._qps[target].post_send(wr)

    def _sort(self, completions: Sequence[v.WC]) -> None:
        _check(completions)
        for wc in completions:
            self._ready[wc.imm_data].append(wc.byte_len)

    def _take(self, lane: int) -> Bytes:
        length = self._ready[lane].popleft()
        at = self._target.buf + self._lanes.offset(lane, int(self._taken[lane]))
        self._taken[lane] += 1
        data = self._device.heap[at : at + length].copy()
        self._qps[self._mine[lane].source].post_recv(v.RecvWR())
        return data

    def settle(self) -> None:
        """Nothing is left: every send has been completed in its round."""


def _check(completions: Sequence[v.WC]) -> None:
    failed = [wc for wc in completions if wc.status != v.IBV_WC_SUCCESS]
    assert not failed, f"completion with error: {failed[0]}"
