"""Bad flows beside the good ones: each says what the completions are, on both sides, and nothing hangs."""

# ruff: noqa: F403, F405 -- programs read as pyverbs ones do

import dataclasses
import os

import numpy as np
from rig import *


def _refused(call, *args):
    """Error class, errno and whether rank and time are in the text of a call that must be refused."""
    try:
        call(*args)
    except PyverbsError as error:
        code = getattr(error, "error_code", None)
        return type(error).__name__, code, f"rank {emulator.rank()}" in str(error) and "ps)" in str(error)
    return None


def _fail(rig, opcode, recv=False, make=None, **wr):
    """Side 0 posts a good write, the bad request, and two more; side 1 may have posted receives."""
    s = rig.pair(**(make or {}))
    if rig.side == 0:
        rig.barrier()
        s.send(IBV_WR_RDMA_WRITE, wr_id=1, flags=0, **wr.pop("first", {}))
        s.send(opcode, wr_id=2, flags=0, **wr)
        s.send(IBV_WR_RDMA_WRITE, wr_id=3, flags=0)
        s.send(wr_id=4)
        wcs = s.scq.wait(3)
        state = s.qp.query()[0].qp_state
        rig.barrier()
        return {"status": names(wcs), "ids": ids(wcs), "state": state.name, "left": len(s.scq)}
    for i in range(2 * recv):
        s.recv(wr_id=10 + i)
    before = s.bytes(4096)
    rig.barrier()
    rig.barrier()
    state = s.qp.query()[0].qp_state
    return {"status": names(s.rcq.poll(9)[1]), "state": state.name, "same": s.bytes(4096) == before}


def send_bad_lkey(rig):
    return _fail(rig, IBV_WR_SEND, lkey=0xDEAD000)


def write_bad_lkey(rig):
    return _fail(rig, IBV_WR_RDMA_WRITE, lkey=0)


def read_bad_lkey(rig):
    return _fail(rig, IBV_WR_RDMA_READ, lkey=0x1FFF)


def read_without_local_write(rig):
    return _fail(rig, IBV_WR_RDMA_READ, make={"mr_access": IBV_ACCESS_REMOTE_READ}, first={"length": 0})


def write_bad_rkey(rig):
    return _fail(rig, IBV_WR_RDMA_WRITE, rkey=0xDEAD000)


def write_imm_bad_rkey(rig):
    return _fail(rig, IBV_WR_RDMA_WRITE_WITH_IMM, recv=True, rkey=0x1FFF)


def read_bad_rkey(rig):
    return _fail(rig, IBV_WR_RDMA_READ, rkey=0)


def atomic_bad_rkey(rig):
    return _fail(rig, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey=0xFFFFFFFF)


def write_beyond_the_region(rig):
    return _fail(rig, IBV_WR_RDMA_WRITE, remote=4089)


def write_far_away(rig):
    return _fail(rig, IBV_WR_RDMA_WRITE, remote=(1 << 64) - 4096)


def read_before_the_region(rig):
    return _fail(rig, IBV_WR_RDMA_READ, remote=-1)


def mr_without_remote_write(rig):
    local = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ
    return _fail(rig, IBV_WR_RDMA_WRITE, make={"mr_access": local}, first={"length": 0})


def mr_without_remote_atomic(rig):
    access = ALL_ACCESS & ~IBV_ACCESS_REMOTE_ATOMIC
    return _fail(rig, IBV_WR_ATOMIC_CMP_AND_SWP, make={"mr_access": access})


def qp_without_remote_read(rig):
    return _fail(rig, IBV_WR_RDMA_READ, make={"access": REMOTE & ~IBV_ACCESS_REMOTE_READ})


def qp_without_remote_atomic(rig):
    return _fail(rig, IBV_WR_ATOMIC_FETCH_AND_ADD, make={"access": REMOTE & ~IBV_ACCESS_REMOTE_ATOMIC})


def misaligned_atomic(rig):
    return _fail(rig, IBV_WR_ATOMIC_FETCH_AND_ADD, remote=12)


def atomic_of_four_bytes(rig):
    return _fail(rig, IBV_WR_ATOMIC_FETCH_AND_ADD, length=4)


def message_too_long(rig):
    """Longer than the receive: both sides have an error."""
    s = rig.pair()
    if rig.side == 0:
        rig.barrier()
        s.send(wr_id=1, length=65)
        s.send(wr_id=2)
        return names(s.scq.wait(2))
    s.recv(wr_id=1, length=64)
    s.recv(wr_id=2)
    rig.barrier()
    return names(s.rcq.wait(2))


def receive_bad_lkey(rig):
    s = rig.pair()
    if rig.side == 0:
        rig.barrier()
        s.send(wr_id=1)
        return len(names(s.scq.wait()))
    s.recv(wr_id=1, lkey=0xBAD000)
    s.recv(wr_id=2)
    rig.barrier()
    return names(s.rcq.wait(2))


def rnr_exhausted(rig):
    """Nobody has posted a receive: 1 + rnr_retry attempts, each min_rnr_timer of the receiver apart."""
    s = rig.pair(attrs={"rnr_retry": 2, "min_rnr_timer": 5})
    if rig.side:
        return None
    start = rig.device.now_ps
    s.send(wr_id=1)
    s.send(IBV_WR_RDMA_WRITE, wr_id=2)
    wcs = s.scq.wait(2)
    return {"status": names(wcs), "took_ps": wcs[0].time_ps - start}


def rnr_then_a_receive(rig):
    """The receive comes during the second wait: the send succeeds, and what follows it keeps its order."""
    s = rig.pair(attrs={"rnr_retry": 7, "min_rnr_timer": 5})
    if rig.side == 0:
        s.send(wr_id=1)
        s.send(IBV_WR_RDMA_WRITE, wr_id=2)
        wcs = s.scq.wait(2)
        return {"status": names(wcs), "ids": ids(wcs)}
    rig.device.compute(90_000_000)
    s.recv()
    return names(s.rcq.wait())


def retry_exhausted(rig):
    """The peer's queue pair is not there: 1 + retry_cnt time-outs."""
    s = rig.pair(state="rtr", attrs={"timeout": 3, "retry_cnt": 2})
    if rig.side == 0:
        rig.connect_rts(s)
        rig.barrier()
        start = rig.device.now_ps
        s.send(IBV_WR_RDMA_WRITE, wr_id=1)
        s.send(IBV_WR_RDMA_READ, wr_id=2)
        wcs = s.scq.wait(2)
        return {"status": names(wcs), "took_ps": wcs[0].time_ps - start}
    s.qp.modify(QPAttr(qp_state=IBV_QPS_RESET), IBV_QP_STATE)
    rig.barrier()
    return None


def destroyed_peer(rig):
    s = rig.pair()
    if rig.side == 0:
        rig.barrier()
        s.send(wr_id=1)
        return names(s.scq.wait())
    s.qp.close()
    rig.barrier()
    return None


def deregistered_in_flight(rig):
    """The region is closed while a write is on its way: posted before, refused on arrival."""
    s = rig.pair()
    if rig.side == 0:
        rig.barrier()
        s.send(IBV_WR_RDMA_WRITE, wr_id=1, length=2048)
        s.send(IBV_WR_RDMA_WRITE, wr_id=2)
        return names(s.scq.wait(2))
    before = s.bytes(64)
    rig.barrier()
    s.mr.close()
    rig.device.compute(100_000_000)
    rig.ctx.observe()
    return list(rig.device.heap[s.mr.buf : s.mr.buf + 64]) == before


def reregistered(rig):
    """The old key of a region whose slot was given out again leads nowhere."""
    s = rig.pair()
    if rig.side:
        pd, slot = s.mr.pd, s.mr.rkey >> 12
        s.mr.close()
        again = MR(pd, 4096, ALL_ACCESS)
        rig.barrier()
        rig.barrier()
        return {"same slot": again.rkey >> 12 == slot, "same key": again.rkey == s.mr.rkey}
    rig.barrier()
    s.send(IBV_WR_RDMA_WRITE)
    status = names(s.scq.wait())
    rig.barrier()
    return status


def closed_lkey(rig):
    s = rig.pair()
    if rig.side:
        return None
    s.mr.close()
    s.send()
    return names(s.scq.wait())


def destroyed_with_work(rig):
    """Destroyed with sends and receives outstanding: none completes (spdk/spdk #298, #2122)."""
    s = rig.pair(attrs={"rnr_retry": 7})
    if rig.side:
        rig.barrier()
        return len(s.rcq)
    for i in range(4):
        s.send(wr_id=i)  # nobody will receive them
        s.send(IBV_WR_RDMA_READ, wr_id=10 + i, offset=1024)
        s.recv(wr_id=20 + i)
    s.qp.close()
    rig.device.compute(1_000_000_000)
    rig.barrier()
    return s.scq.poll(99)[0] + s.rcq.poll(99)[0]


def destroyed_with_completions(rig):
    """Completions nobody polled go with the queue pair."""
    s = rig.pair()
    if rig.side:
        return None
    s.send(IBV_WR_RDMA_WRITE)
    rig.device.compute(50_000_000)
    rig.ctx.observe()
    before = len(s.scq)
    s.qp.close()
    return before, s.scq.poll(9)[0]


def err_flushes_everything(rig):
    """To ERR in mid-life: sends that wait for a receive, reads behind them, receives (libfabric PR 4756)."""
    s = rig.pair(attrs={"rnr_retry": 7})
    if rig.side:
        rig.barrier()
        return names(s.rcq.poll(99)[1])
    for i in range(3):
        s.send(wr_id=i, flags=0)
        s.send(IBV_WR_RDMA_READ, wr_id=10 + i, offset=1024, flags=0)
        s.recv(wr_id=20 + i)
    s.qp.modify(QPAttr(qp_state=IBV_QPS_ERR), IBV_QP_STATE)
    sends, recvs = s.scq.wait(6), s.rcq.wait(3)
    rig.barrier()
    return {"sends": names(sends), "send ids": ids(sends), "recvs": names(recvs), "recv ids": ids(recvs)}


def post_in_err(rig):
    """What is posted in ERR is accepted and flushed, unsignalled too (rdma-core PR 1218)."""
    s = rig.pair()
    s.qp.modify(QPAttr(qp_state=IBV_QPS_ERR), IBV_QP_STATE)
    for i in range(3):
        s.send(IBV_WR_RDMA_WRITE, wr_id=i, flags=0)
        s.recv(wr_id=10 + i)
    sends, recvs = s.scq.wait(3), s.rcq.wait(3)
    return {"sends": names(sends), "ids": ids(sends) + ids(recvs), "recvs": names(recvs)}


def post_in_reset(rig):
    s = rig.pair(state="reset")
    seen = [_refused(s.send), _refused(s.recv)]
    s.qp.to_init(rig.attr(s))
    seen += [_refused(s.send), _refused(s.recv)]
    s.qp.to_rtr(rig.attr(s))
    return [*seen, _refused(s.send)]


def refused_at_the_call(rig):
    """Each counts nowhere; of a list what comes before the bad one is posted, and `bad_wr` names it."""
    s = rig.pair(cap=QPCap(2, 2, 1, 1, 16))
    if rig.side:
        return None
    two = SendWR(1, IBV_WR_RDMA_WRITE, 2, 0, [s.sge(), s.sge()])
    long = s.wr(IBV_WR_RDMA_WRITE, length=17, flags=IBV_SEND_INLINE)
    read = s.wr(IBV_WR_RDMA_READ, flags=IBV_SEND_INLINE)
    seen = [_refused(s.qp.post_send, wr) for wr in (two, long, read)]
    seen.append(_refused(s.qp.post_recv, RecvWR(1, 2, [s.sge(), s.sge()])))
    bad = SendWR()
    good = s.wr(IBV_WR_RDMA_WRITE, wr_id=5, next_wr=s.wr(IBV_WR_RDMA_WRITE, wr_id=6, next_wr=two))
    seen.append(_refused(s.qp.post_send, good, bad))
    posted = dataclasses.astuple(rig.ctx.tally)[0]
    for i in range(2):
        s.recv(wr_id=i)
    seen.append(_refused(s.recv, 9))
    return {"seen": seen, "bad": bad.wr_id, "done": ids(s.scq.wait(2)), "posted": posted > 0}


def bad_objects(rig):
    pd = rig.pd()
    cq = rig.own(CQ(rig.ctx, 4))
    qp = QP(pd, QPInitAttr(IBV_QPT_RC, None, cq, cq))
    heap = np.zeros(64, np.uint8)
    bad = QPAttr(qp_state=IBV_QPS_INIT, qp_access_flags=99)
    init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS
    return {
        "remote write without local": _refused(MR, pd, 64, IBV_ACCESS_REMOTE_WRITE),
        "remote atomic without local": _refused(MR, pd, 64, IBV_ACCESS_REMOTE_ATOMIC),
        "not in the heap": _refused(MR, pd, heap, IBV_ACCESS_LOCAL_WRITE),
        "too much memory": _refused(MR, pd, 1 << 30, 0),
        "beyond the heap": _refused(lambda: MR(pd, 64, 0, address=1 << 40)),
        "no cq entries": _refused(CQ, rig.ctx, 0),
        "no cq": _refused(QP, pd, QPInitAttr(IBV_QPT_RC)),
        "no lid": _refused(AH, pd, AHAttr(dlid=99)),
        "lid 0": _refused(AH, pd, AHAttr()),
        "no port": _refused(rig.ctx.query_port, 2),
        "access flags": _refused(qp.modify, bad, init),
        "missing attribute": _refused(qp.modify, bad, IBV_QP_STATE),
        "no transition": _refused(qp.modify, QPAttr(qp_state=IBV_QPS_RTS), IBV_QP_STATE),
    }


def cq_overrun(rig):
    """A queue of one entry: the second completion is one too many (rdma-core PR 1361)."""
    s = rig.pair(cqe=1)
    if rig.side:
        return None
    s.send(IBV_WR_RDMA_WRITE, wr_id=1)
    one = names(s.scq.wait())
    s.send(IBV_WR_RDMA_WRITE, wr_id=2)
    s.send(IBV_WR_RDMA_WRITE, wr_id=3)
    rig.device.compute(50_000_000)
    overrun = _refused(s.scq.poll), _refused(s.scq.wait)
    events = [rig.ctx.get_async_event().event_type.name for _ in range(2)]
    state = s.qp.query()[0].qp_state.name
    return {"one": one, "overrun": overrun, "events": events, "state": state}


def cq_not_overrun(rig):
    """Two completions, one polled between them: no overrun."""
    s = rig.pair(cqe=1)
    if rig.side:
        return None
    seen = []
    for i in range(5):
        s.send(IBV_WR_RDMA_WRITE, wr_id=i)
        seen += names(s.scq.wait())
    return seen


def reset_and_again(rig):
    """RESET forgets everything; the same queue pair works again after it."""
    s = rig.pair(attrs={"rnr_retry": 7})
    if rig.side == 0:
        s.send(wr_id=1)
        s.recv(wr_id=2)
    s.qp.modify(QPAttr(qp_state=IBV_QPS_RESET), IBV_QP_STATE)
    rig.barrier()
    rig.connect(s)
    rig.barrier()
    if rig.side == 0:
        s.send(wr_id=3)
        return ids(s.scq.wait()), len(s.rcq)
    s.recv(wr_id=4)
    return ids(s.rcq.wait()), len(s.scq)


def many_connections(rig):
    """Connect, use, fail or not, disconnect: the slot comes again, its number does not (spdk #622)."""
    pd = rig.pd()
    mr = MR(pd, 256, ALL_ACCESS)
    cq = rig.own(CQ(rig.ctx, 64))
    rounds, numbers, wrong, last = ROUNDS, set(), 0, 0
    for i in range(rounds):
        qp = QP(pd, QPInitAttr(IBV_QPT_RC, None, cq, cq, None, QPCap(4, 4)))
        told = [int(x) for x in rig.exchange.all_gather(qp.qp_num, mr.rkey, mr.buf)[rig.other]]
        stale = rig.side == 0 and i % 3 == 2
        dest = last if stale else told[0]
        last = told[0]
        qp.to_rts(QPAttr(dest_qp_num=dest, ah_attr=AHAttr(rig.other + 1), qp_access_flags=REMOTE, timeout=1))
        rig.barrier()
        numbers.add(qp.qp_num)
        if rig.side == 0:
            wr = SendWR(i, IBV_WR_RDMA_WRITE, 1, 0, [SGE(mr.buf, 8, mr.lkey)])
            wr.set_wr_rdma(told[1], told[2])
            qp.post_send(wr)
            want = "RETRY_EXC_ERR" if stale else "SUCCESS"
            wrong += names(cq.wait()) != [want]
            wrong += qp.qp_state.name != ("IBV_QPS_ERR" if stale else "IBV_QPS_RTS")
        rig.barrier()
        qp.close()
    return {"wrong": wrong, "numbers": len(numbers)}


ROUNDS = int(os.environ.get("ROUNDS", "30"))


def sq_drain(rig):
    """In SQD what was posted before goes out, what is posted waits, until RTS."""
    s = rig.pair()
    if rig.side:
        return None
    s.send(IBV_WR_RDMA_WRITE, wr_id=1, length=4096)
    s.qp.modify(
        QPAttr(qp_state=IBV_QPS_SQD, en_sqd_async_notify=1), IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY
    )
    draining = s.qp.query()[0].sq_draining
    s.send(IBV_WR_RDMA_WRITE, wr_id=2)
    event = rig.ctx.get_async_event().event_type.name
    drained = s.qp.query()[0].sq_draining
    rig.device.compute(100_000_000)
    first = ids(s.scq.poll(9)[1])
    s.qp.modify(QPAttr(qp_state=IBV_QPS_RTS), IBV_QP_STATE)
    return {"draining": [draining, drained], "event": event, "first": first, "second": ids(s.scq.wait())}


def sqd_to_err(rig):
    s = rig.pair()
    s.qp.modify(QPAttr(qp_state=IBV_QPS_SQD), IBV_QP_STATE)
    s.send(IBV_WR_RDMA_WRITE, wr_id=2, flags=0)
    s.qp.modify(QPAttr(qp_state=IBV_QPS_ERR), IBV_QP_STATE)
    return names(s.scq.wait())


def teardown_is_no_error(rig):
    """Closing a queue pair after ERR: its flushes were polled, the rest says nothing."""
    s = rig.pair()
    s.recv(wr_id=1)
    s.qp.modify(QPAttr(qp_state=IBV_QPS_ERR), IBV_QP_STATE)
    flushed = names(s.rcq.wait())
    s.qp.close()
    return flushed, s.rcq.poll(9)[0]


def reuse_before_completion(rig):
    """Memory that still belongs to the NIC is changed; found when the request ends (not so inline data)."""
    s = rig.pair()
    if rig.side:
        return None
    rig.ctx.canary = True
    seen = []
    for flags, early in ((0, False), (IBV_SEND_INLINE, True), (0, True)):
        s.fill([1] * 8)
        s.send(IBV_WR_RDMA_WRITE, wr_id=4, flags=flags)
        s.send(IBV_WR_RDMA_WRITE, wr_id=5, offset=64)
        if early:
            s.fill([2] * 8)
        try:
            seen.append(ids(s.scq.wait()))
        except Exception as error:
            seen += [type(error).__name__, "WR 4" in str(error), ids(s.scq.wait())]
    rig.ctx.canary = False
    return seen


CASES = [
    send_bad_lkey, write_bad_lkey, read_bad_lkey, read_without_local_write, write_bad_rkey,
    write_imm_bad_rkey, read_bad_rkey, atomic_bad_rkey, write_beyond_the_region, write_far_away,
    read_before_the_region, mr_without_remote_write, mr_without_remote_atomic, qp_without_remote_read,
    qp_without_remote_atomic, misaligned_atomic, atomic_of_four_bytes, message_too_long, receive_bad_lkey,
    rnr_exhausted, rnr_then_a_receive, retry_exhausted, destroyed_peer, deregistered_in_flight,
    reregistered, closed_lkey, destroyed_with_work, destroyed_with_completions, err_flushes_everything,
    post_in_err, post_in_reset, refused_at_the_call, bad_objects, cq_overrun, cq_not_overrun,
    reset_and_again, many_connections, sq_drain, sqd_to_err, teardown_is_no_error, reuse_before_completion,
]  # fmt: skip
