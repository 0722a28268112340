"""Verbs of a benchmark: one RC queue pair between the two ranks, as perftest uses it.

write   the receiver polls the last byte of its buffer (here: sleeps until something has arrived, and looks)
send    the receiver polls its completion queue
read, atomics   one whole operation until its completion
batch   one doorbell a request; every request is signalled, all completions are taken
sliding as batch, but the next request goes out when a completion is taken; the receiver of sends posts a
        receive for each it has taken, and has twice the window posted
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from emulator import Device
from emulator.errors import InternalError
from memsem import verbs as v
from memsem.bench.shapes import BenchSpec
from memsem.bench.sliding import POLL_BATCH, slide

ACCESS = (
    v.IBV_ACCESS_LOCAL_WRITE
    | v.IBV_ACCESS_REMOTE_WRITE
    | v.IBV_ACCESS_REMOTE_READ
    | v.IBV_ACCESS_REMOTE_ATOMIC
)
_OPCODES = {
    "send": v.IBV_WR_SEND,
    "write": v.IBV_WR_RDMA_WRITE,
    "read": v.IBV_WR_RDMA_READ,
    "cas": v.IBV_WR_ATOMIC_CMP_AND_SWP,
}
_READS = 16
_FOR_EVER = 7


class VerbsPath:
    """Verbs between me and `partner`; ranks outside the pair only take part in making the context."""

    def __init__(self, device: Device, spec: BenchSpec, partner: int) -> None:
        self._device, self._spec, self._partner = device, spec, partner
        room = max(spec.sizes) + 64
        context = v.Context(device, max_qp=4, memory_bytes=2 * room + 4096, watch_writes=True)
        self._context, pd = context, v.PD(context)
        self._source = v.MR(pd, room, ACCESS)
        self._target = v.MR(pd, room, ACCESS)
        self._ahead = spec.warmup + spec.iterations if spec.kind == "lat" else spec.batch
        """Receives posted before a size begins: those of a ping-pong at once, so that none is on its path."""
        depth = 2 * max(spec.batch, _READS, self._ahead)
        self._scq, self._rcq = v.CQ(context, depth), v.CQ(context, depth)
        cap = v.QPCap(depth, depth, max_inline_data=context.max_inline)
        self._qp = v.QP(pd, v.QPInitAttr(v.IBV_QPT_RC, scq=self._scq, rcq=self._rcq, cap=cap))
        told = v.Exchange(context, 3).all_gather(self._qp.qp_num, self._target.buf, self._target.rkey)
        dest, self._remote, self._rkey = (int(number) for number in told[partner])
        attr = v.QPAttr(dest_qp_num=dest, ah_attr=v.AHAttr(dlid=partner + 1), qp_access_flags=ACCESS)
        attr.max_rd_atomic, attr.rnr_retry, attr.retry_cnt, attr.timeout = _READS, _FOR_EVER, 7, 14
        self._qp.to_rts(attr)
        self._turn = self._posted = self._sent = 0

    def prepare(self, size: int) -> None:
        """Clear the byte that a receiver of writes looks at; post the receives of the first batch."""
        self._turn = 0
        self._target.view[:] = 0
        if self._spec.op == "send":
            self._provide(self._ahead)

    # --- ping-pong --------------------------------------------------------------------------------------

    def send_leg(self, size: int) -> None:
        if self._spec.op == "write":
            self._source.view[size - 1] = self._next()
        self._post(size)
        self._sent += 1

    def receive_leg(self, size: int) -> None:
        if self._spec.op == "send":
            self._receive(1)
        else:
            self._poll_memory(size)
        if self._sent:
            _check(self._scq.wait(self._sent))
            self._sent = 0

    def _next(self) -> int:
        self._turn = self._turn % 255 + 1
        return self._turn

    def _poll_memory(self, size: int) -> None:
        """Until the last byte of my buffer has changed; asleep between two arrivals."""
        turn = self._next()
        self._context.observe()
        while self._target.view[size - 1] != turn:
            self._context.sleep()

    # --- whole operations and batches -------------------------------------------------------------------

    def operation(self, size: int) -> None:
        self._post(size)
        _check(self._scq.wait(1))

    def batch(self, size: int, count: int) -> None:
        for _ in range(count):
            self._post(size)
        _check(self._scq.wait(count))

    def serve_batch(self, size: int, count: int) -> None:
        """Take the sends; receives for the next batch are posted first, so no sender finds none."""
        if self._spec.op == "send":
            self._provide(2 * count)
            self._receive(count)

    def slide(self, size: int, depth: int, batches: int) -> tuple[list[float], list[float]]:
        """`batches * depth` operations, `depth` in flight all the time; returns as `sliding.slide`."""
        now = partial(getattr, self._device, "now_ps")
        return slide(partial(self._post, size), partial(_take, self._scq), now, depth, batches)

    def serve_slide(self, depth: int, batches: int) -> None:
        """What the partner does for `slide`: take the sends."""
        left = depth * batches if self._spec.op == "send" else 0
        while left:
            self._provide(2 * depth)
            taken = _take(self._rcq, min(POLL_BATCH, left))
            self._posted -= taken
            left -= taken

    def _post(self, size: int) -> None:
        fetches = self._spec.op in ("read", "cas")
        inline = v.IBV_SEND_INLINE if size <= self._context.max_inline and not fetches else 0
        wr = v.SendWR(
            opcode=_OPCODES[self._spec.op],
            num_sge=1,
            sg=[v.SGE(self._source.buf, size, self._source.lkey)],
            send_flags=v.IBV_SEND_SIGNALED | inline,
        )
        if self._spec.op == "cas":
            wr.set_wr_atomic(self._rkey, self._remote, 0, 0)
        elif self._spec.op != "send":
            wr.set_wr_rdma(self._rkey, self._remote)
        self._qp.post_send(wr)

    def _receive(self, count: int) -> None:
        _check(self._rcq.wait(count))
        self._posted -= count

    def _provide(self, count: int) -> None:
        """Have at least `count` receives posted, each for the largest message."""
        sg = [v.SGE(self._target.buf, self._target.length, self._target.lkey)]
        while self._posted < count:
            self._qp.post_recv(v.RecvWR(num_sge=1, sg=sg))
            self._posted += 1


def _take(cq: v.CQ, most: int) -> int:
    """Sleep until there is a completion, take what is there, at most so many; returns how many."""
    completions = cq.wait(max(1, min(most, len(cq))))
    _check(completions)
    return len(completions)


def _check(completions: Sequence[v.WC]) -> None:
    failed = [wc for wc in completions if wc.status != v.IBV_WC_SUCCESS]
    if failed:
        raise InternalError(f"bench: completion with error: {failed[0]}")
