"""Tokens on their way to the front end: each is one RDMA send, kept until it has been acknowledged.

    rank --- reliable connection ---> ring of receives of the front end (the lowest living rank)

A rank posts a token when it comes out, and looks after its completions once a step, before the status
exchange; the front end empties its ring there. What goes wrong on the way (a queue pair in error, a NIC that
is down, a full ring, a completion that is lost, doubled or late) ends here: connections are reset and made
anew, what was not acknowledged is sent again, in order, and the front end takes each token once.

    a completion says that its token and all before it have arrived (one queue pair, in order)
    one that is not waited for is dropped
    a token not acknowledged for `ask_again_ps` is sent again
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from emulator import Device
from memsem.verbs import (
    CQ,
    IBV_ACCESS_LOCAL_WRITE,
    IBV_QP_STATE,
    IBV_QPS_ERR,
    IBV_QPS_RESET,
    IBV_QPS_RTS,
    IBV_QPT_RC,
    IBV_SEND_INLINE,
    IBV_SEND_SIGNALED,
    IBV_WC_SUCCESS,
    MR,
    PD,
    QP,
    SGE,
    SRQ,
    AHAttr,
    Context,
    QPAttr,
    QPCap,
    QPInitAttr,
    RecvWR,
    SendWR,
    SrqAttr,
    SrqInitAttr,
)
from memsem.verbs.keys import QPNumber

MESSAGE = np.dtype([("request", "<i8"), ("position", "<i8"), ("token", "<i8"), ("rank", "<i8")])
"""What is sent of a token."""
RING = 64
"""Receives the front end keeps posted."""
DEPTH = 64
"""Most tokens of a rank on their way; others wait for their turn."""
_TIMEOUT, _RETRIES = 8, 7
"""1.05 ms before an unanswered message is sent again by the NIC, so many times."""
_RNR_TIMER, _RNR_RETRIES = 16, 6
"""2.56 ms before the NIC asks a full ring again, so many times; after that the connection is made anew."""


@dataclass
class Delivery:
    """What has become of this rank's tokens, and (front end) of those it was sent.

    posted: tokens handed over. sent: messages, with those sent again. acknowledged: tokens known to have
    arrived. dropped: completions nobody waited for. reconnected: connections made anew. received: tokens
    taken; received_again: messages of tokens that were there. ring_lost: receives missing at the end.
    """

    posted: int = 0
    sent: int = 0
    acknowledged: int = 0
    dropped: int = 0
    reconnected: int = 0
    received: int = 0
    received_again: int = 0
    pending: int = 0
    ring_lost: int = 0


@dataclass
class _Token:
    message: tuple[int, ...]
    sent_ps: int


class Outbox:
    """This rank's connection to the front end, and the front end's to all, where it is this rank.

    Args:
        device: this rank's. ask_again_ps: see the module.
    """

    def __init__(self, device: Device, ask_again_ps: int) -> None:
        n, size = device.num_ranks, MESSAGE.itemsize
        self._device, self._ask_again_ps = device, ask_again_ps
        self._context = Context(device, max_qp=n + 1, max_mr=1, memory_bytes=(RING + 2) * size)
        self._pd = PD(self._context)
        self._memory = MR(self._pd, RING * size + size, IBV_ACCESS_LOCAL_WRITE)
        self._scq, self._rcq = CQ(self._context, 2 * DEPTH + 64), CQ(self._context, 2 * RING + 64)
        cap = QPCap(max_send_wr=DEPTH, max_recv_wr=1, max_inline_data=size)
        self._qp = QP(self._pd, QPInitAttr(IBV_QPT_RC, scq=self._scq, rcq=self._rcq, cap=cap))
        self._pending: dict[int, _Token] = {}
        self._waiting: deque[tuple[int, ...]] = deque()
        self._next = 0
        self._front = -1
        self._stale = True
        self._ends: list[QP] = []
        self._srq: SRQ | None = None
        self._turn = [0] * RING
        self._silent_ps: dict[int, int] = {}
        self._had: set[tuple[int, int]] = set()
        self.facts = Delivery()
        self.regroup(range(n))

    # --- a token ----------------------------------------------------------------------------------------

    def post(self, request: int, position: int, token: int) -> None:
        """Hand a token over; never blocks."""
        self.facts.posted += 1
        message = (request, position, token, self._device.rank)
        if self._front == self._device.rank:
            self.facts.acknowledged += 1
            self._take(message)
        elif not (self._stale or self._waiting) and self._qp.state == IBV_QPS_RTS and self._has_room:
            self._send(message)
        else:
            self._waiting.append(message)

    def _send(self, message: tuple[int, ...]) -> None:
        number, self._next = self._next, self._next + 1
        address = self._memory.buf + RING * MESSAGE.itemsize
        self._device.heap[address : address + MESSAGE.itemsize] = np.array([message], MESSAGE).view(np.uint8)
        elements = [SGE(address, MESSAGE.itemsize, self._memory.lkey)]
        flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED
        self._pending[number] = _Token(message, self._device.now_ps)
        self._qp.post_send(SendWR(number, num_sge=1, sg=elements, send_flags=flags))
        self.facts.sent += 1

    # --- once a step ------------------------------------------------------------------------------------

    def look(self) -> None:
        """See to what has come: acknowledgements, messages, and what went wrong. An observation."""
        mine = self._front == self._device.rank
        if not (mine or self._stale or self._pending or self._waiting):
            return
        self._context.observe()
        if self._stale:
            (self._open_ring if mine else self._connect)()
            self._stale = False
        if mine:
            self._receive()
            return
        self._acknowledge()
        now_ps = self._device.now_ps
        late = [t for t in self._pending.values() if now_ps - t.sent_ps > self._ask_again_ps]
        if self._qp.state == IBV_QPS_ERR:
            self.facts.reconnected += 1
            self._connect()
        elif late:
            self._again()
        while self._waiting and self._has_room:
            self._send(self._waiting.popleft())

    @property
    def _has_room(self) -> bool:
        return len(self._pending) < DEPTH and self._qp.sends.room > 0

    @property
    def unsettled(self) -> int:
        """Tokens of mine that are not known to have arrived, and places of my ring nobody has seen to."""
        missing = 0 if self._front != self._device.rank or self._srq is None else RING - self._srq.outstanding
        return len(self._pending) + len(self._waiting) + missing

    def end(self) -> Delivery:
        """Account for everything: called when nothing is unsettled any more anywhere."""
        self.facts.pending = self.unsettled
        if self._srq is not None:
            self.facts.ring_lost = RING - self._srq.outstanding
        return self.facts

    def as_dict(self) -> dict[str, int]:
        """`end`, as JSON values."""
        return asdict(self.end())

    def _acknowledge(self) -> None:
        while len(self._scq):
            for wc in self._scq.poll(DEPTH)[1]:
                if wc.status != IBV_WC_SUCCESS:
                    continue
                arrived = [number for number in self._pending if number <= wc.wr_id]
                self.facts.dropped += wc.wr_id not in self._pending
                self.facts.acknowledged += len(arrived)
                for number in arrived:
                    del self._pending[number]

    def _again(self) -> None:
        """Send everything unacknowledged once more, in order."""
        old, self._pending = self._pending, {}
        self._waiting.extendleft(token.message for token in reversed(old.values()))

    def _receive(self) -> None:
        """Take what is in the ring. A receive that was consumed long ago and has no completion is seen to by
        what lies in its memory."""
        assert self._srq is not None
        for rank, qp in enumerate(self._ends):
            if qp.state == IBV_QPS_ERR:
                self.facts.reconnected += 1
                self._open_end(qp, rank)
        while len(self._rcq):
            for wc in self._rcq.poll(RING)[1]:
                turn, slot = divmod(wc.wr_id, RING)
                if turn == self._turn[slot]:
                    self._empty(slot, wc.status == IBV_WC_SUCCESS)
                else:
                    self.facts.dropped += 1
        now_ps, waiting = self._device.now_ps, self._srq.receives.waiting()
        missing = [slot for slot in range(RING) if self._turn[slot] * RING + slot not in waiting]
        self._silent_ps = {slot: self._silent_ps.get(slot, now_ps) for slot in missing}
        for slot, since_ps in self._silent_ps.items():
            if now_ps - since_ps > self._ask_again_ps:
                self._empty(slot, True)

    def _empty(self, slot: int, is_whole: bool) -> None:
        """Take a message out of the ring, and post its receive anew."""
        if is_whole:
            address = self._memory.buf + slot * MESSAGE.itemsize
            request, *others = self._device.heap[address : address + MESSAGE.itemsize].view(np.int64).tolist()
            self._take((request, *others))
        self._turn[slot] += 1
        self._post_receive(slot)

    def _take(self, message: tuple[int, ...]) -> None:
        key = message[0], message[1]
        self.facts.received_again += key in self._had
        self.facts.received += key not in self._had
        self._had.add(key)

    # --- connections ------------------------------------------------------------------------------------

    def regroup(self, living: Sequence[int]) -> None:
        """Send to the lowest of these from the next look on; what was not acknowledged goes there."""
        front = min(living)
        if front == self._front:
            return
        self._front, self._stale = front, True
        self._again()
        if front == self._device.rank:
            self.facts.acknowledged += len(self._waiting)
            for message in self._waiting:
                self._take(message)
            self._waiting.clear()

    def _connect(self) -> None:
        self._again()
        self._reset(self._qp)
        number = QPNumber(1 + self._device.rank, 0, 0).encode()
        self._qp.to_rts(_attributes(self._front, number))

    def _open_ring(self) -> None:
        """Be the front end. May be interrupted at each observation, and begun again."""
        if self._srq is None:
            self._srq = SRQ(self._pd, SrqInitAttr(SrqAttr(max_wr=2 * RING, max_sge=1)))
            init = QPInitAttr(
                IBV_QPT_RC, scq=self._scq, rcq=self._rcq, srq=self._srq, cap=QPCap(max_recv_wr=0)
            )
            self._ends = [QP(self._pd, init) for _ in range(self._device.num_ranks)]
            for slot in range(RING):
                self._post_receive(slot)
        for rank, qp in enumerate(self._ends):
            if qp.state != IBV_QPS_RTS:
                self._open_end(qp, rank)

    def _open_end(self, qp: QP, rank: int) -> None:
        self._reset(qp)
        qp.to_rts(_attributes(rank, QPNumber(0, -1, 0).encode()))

    def _reset(self, qp: QP) -> None:
        if qp.state != IBV_QPS_RESET:
            qp.modify(QPAttr(qp_state=IBV_QPS_RESET), IBV_QP_STATE)

    def _post_receive(self, slot: int) -> None:
        assert self._srq is not None
        address = self._memory.buf + slot * MESSAGE.itemsize
        number = self._turn[slot] * RING + slot
        self._srq.post_recv(RecvWR(number, num_sge=1, sg=[SGE(address, MESSAGE.itemsize, self._memory.lkey)]))


def _attributes(rank: int, number: int) -> QPAttr:
    """Of a connection to a rank's queue pair."""
    return QPAttr(
        ah_attr=AHAttr(dlid=rank + 1),
        dest_qp_num=number,
        timeout=_TIMEOUT,
        retry_cnt=_RETRIES,
        min_rnr_timer=_RNR_TIMER,
        rnr_retry=_RNR_RETRIES,
    )
