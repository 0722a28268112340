"""Good paths: every opcode between two ranks, what the completions say, where the bytes are."""

# ruff: noqa: F403, F405 -- programs read as pyverbs ones do

from rig import *


def _sent(s, count=1):
    wcs = s.scq.wait(count)
    return {"status": names(wcs), "ids": ids(wcs), "opcodes": [int(wc.opcode) for wc in wcs]}


def _got(wcs):
    return {
        "status": names(wcs), "ids": ids(wcs), "opcodes": [int(wc.opcode) for wc in wcs],
        "bytes": [wc.byte_len for wc in wcs], "imm": [wc.imm_data for wc in wcs],
        "flags": [int(wc.wc_flags) for wc in wcs], "src": [wc.src_qp for wc in wcs],
    }  # fmt: skip


def send(rig):
    s = rig.pair()
    if rig.side == 0:
        s.fill(range(8))
        s.send(wr_id=7)
        return _sent(s)
    s.recv(wr_id=9)
    got = _got(s.rcq.wait())
    return {**got, "data": s.bytes(8, 512)}


def send_imm(rig):
    """Two queue pairs, two immediates: each arrives on its own (ofiwg/libfabric #6392)."""
    a, b = rig.pair(), rig.pair()
    if rig.side == 0:
        a.send(IBV_WR_SEND_WITH_IMM, wr_id=1, imm=0xDEADBEEF)
        b.send(IBV_WR_SEND_WITH_IMM, wr_id=2, imm=7)
        return [_sent(a), _sent(b)]
    b.recv(wr_id=22)
    a.recv(wr_id=11)
    return [_got(a.rcq.wait()), _got(b.rcq.wait())]


def zero_bytes(rig):
    """Nothing to carry still arrives: a message without elements, and one of length 0, and a write."""
    s = rig.pair()
    if rig.side == 0:
        s.send(wr_id=1, length=None)
        s.send(wr_id=2, length=0)
        s.send(IBV_WR_RDMA_WRITE, wr_id=3, length=0, rkey=12345)  # no byte, no key
        s.send(IBV_WR_RDMA_WRITE_WITH_IMM, wr_id=4, length=0, imm=5, rkey=12345)
        s.send(IBV_WR_RDMA_READ, wr_id=5, length=0, rkey=12345)
        return _sent(s, 5)
    for i in range(3):
        s.recv(wr_id=i, length=0)
    return _got(s.rcq.wait(3))


def write(rig):
    s = rig.pair()
    if rig.side == 0:
        s.fill(range(100, 132))
        s.send(IBV_WR_RDMA_WRITE, length=32, remote=64)
        done = _sent(s)
        rig.barrier()
        return done
    rig.barrier()
    return {"data": s.bytes(32, 64), "before": s.bytes(1, 63), "after": s.bytes(1, 96), "cqes": len(s.rcq)}


def write_imm(rig):
    s = rig.pair()
    if rig.side == 0:
        s.fill(range(1, 33))
        s.send(IBV_WR_RDMA_WRITE_WITH_IMM, length=32, remote=64, imm=77)
        return _sent(s)
    s.recv(wr_id=5, length=4)  # shorter than the write: its elements are not touched
    got = _got(s.rcq.wait())
    return {**got, "data": s.bytes(32, 64), "receive": s.bytes(4, 512)}


def read(rig):
    s = rig.pair()
    s.fill([rig.side * 100 + i for i in range(16)])
    rig.barrier()
    s.send(IBV_WR_RDMA_READ, length=16, offset=256)
    return {**_sent(s), "data": s.bytes(16, 256)}


def atomics(rig):
    s = rig.pair()
    s.fill((42).to_bytes(8, "little"), 128)
    rig.barrier()
    if rig.side == 0:
        s.send(IBV_WR_ATOMIC_FETCH_AND_ADD, wr_id=1, offset=0, remote=128, compare_add=(1 << 64) - 1)
        s.send(IBV_WR_ATOMIC_CMP_AND_SWP, wr_id=2, offset=8, remote=128, compare_add=41, swap=1 << 63)
        s.send(IBV_WR_ATOMIC_CMP_AND_SWP, wr_id=3, offset=16, remote=128, compare_add=41, swap=5)
        done = _sent(s, 3)
        old = [int.from_bytes(bytes(s.bytes(8, 8 * i)), "little") for i in range(3)]
        rig.barrier()
        return {**done, "old": old}
    rig.barrier()
    return {"value": int.from_bytes(bytes(s.bytes(8, 128)), "little")}


def gather_scatter(rig):
    s = rig.pair()
    if rig.side == 0:
        s.fill(range(30))
        wr = SendWR(1, IBV_WR_SEND, 3, 0, [s.sge(5, 0), s.sge(0, 9), s.sge(7, 20)])
        s.qp.post_send(wr)
        return _sent(s)
    s.qp.post_recv(RecvWR(1, 2, [s.sge(3, 1000), s.sge(20, 2000)]))
    got = _got(s.rcq.wait())
    return {**got, "data": s.bytes(3, 1000) + s.bytes(10, 2000)}


def inline(rig):
    """An inline send needs no key, and its memory may be changed at once."""
    s = rig.pair()
    if rig.side == 0:
        s.fill([5] * 8)
        s.send(flags=IBV_SEND_INLINE | IBV_SEND_SIGNALED, lkey=0)
        s.fill([6] * 8)
        return _sent(s)
    s.recv()
    s.rcq.wait()
    return {"data": s.bytes(8, 512)}


def unsignalled(rig):
    """Of five sends two are signalled; the queue holds two at a time, and a poll frees what is before."""
    s = rig.pair(cap=QPCap(3, 16, 1, 1, 0))
    if rig.side == 0:
        for i in range(3):
            s.send(IBV_WR_RDMA_WRITE, wr_id=i, flags=IBV_SEND_SIGNALED if i == 2 else 0)
        full = None
        try:
            s.send(IBV_WR_RDMA_WRITE, wr_id=9)
        except PyverbsRDMAError as error:
            full = error.error_code
        first = _sent(s)
        for i in range(3, 6):
            s.send(IBV_WR_RDMA_WRITE, wr_id=i, flags=IBV_SEND_SIGNALED if i == 5 else 0)
        return {"full": full, "wcs": [first, _sent(s)]}
    return None


def sig_all(rig):
    s = rig.pair(sq_sig_all=1)
    if rig.side == 0:
        s.send(IBV_WR_RDMA_WRITE, flags=0)
        return _sent(s)
    return None


def doorbells(rig):
    """Ten writes with one doorbell, then ten with one each: what the caller pays and the ledger counts."""
    s = rig.pair()
    if rig.side:
        return None

    def ledger():
        return rig.device.ledger.as_dict()["verbs"]["doorbell"]["count"]

    s.send(IBV_WR_RDMA_WRITE)
    s.scq.wait()
    rings, start = ledger(), rig.device.now_ps
    chain = None
    for i in reversed(range(10)):
        chain = s.wr(IBV_WR_RDMA_WRITE, wr_id=i, next_wr=chain)
    s.qp.post_send(chain)
    one, middle = ledger() - rings, rig.device.now_ps
    order = ids(s.scq.wait(10))
    again = rig.device.now_ps
    for i in range(10):
        s.send(IBV_WR_RDMA_WRITE, wr_id=i)
    return {
        "rings": [one, ledger() - rings - one], "order": order, "statuses": len(s.scq.wait(10)),
        "caller_ps": [middle - start, rig.device.now_ps - again],
    }  # fmt: skip


def max_rd_atomic(rig):
    """Sixteen reads of 4 KB: with one at a time they take sixteen round trips, with four a quarter."""
    times = {}
    for most in (1, 4, 16):
        s = rig.pair(attrs={"max_rd_atomic": most}, cap=QPCap(16, 1, 1, 1, 0))
        if rig.side == 0:
            start = rig.device.now_ps
            for i in range(16):
                s.send(IBV_WR_RDMA_READ, wr_id=i, length=64, offset=64 * i)
            order = ids(s.scq.wait(16))
            times[most] = rig.device.now_ps - start
            assert order == list(range(16))
        rig.barrier()
    return times


def fence(rig):
    """A read, then a write to what the read returns from here: with the fence flag it starts after it."""
    times = []
    for flags in (0, IBV_SEND_FENCE):
        s = rig.pair()
        if rig.side == 0:
            s.send(IBV_WR_RDMA_READ, wr_id=1, length=1024)
            s.send(IBV_WR_RDMA_WRITE, wr_id=2, flags=IBV_SEND_SIGNALED | flags)
            wcs = s.scq.wait(2)
            times.append(wcs[1].time_ps - wcs[0].time_ps)
        rig.barrier()
    return times


def solicited(rig):
    """Armed for solicited events only: the second message is."""
    channel = rig.own(CompChannel(rig.ctx))
    pd = rig.pd()
    mr = MR(pd, 4096, ALL_ACCESS)
    cq = rig.own(CQ(rig.ctx, 10, None, channel))
    qp = QP(pd, QPInitAttr(IBV_QPT_RC, None, cq, cq, None, QPCap(4, 4)))
    told = rig.exchange.all_gather(qp.qp_num, mr.rkey, mr.buf)[rig.other]
    s = Side(rig, qp, mr, cq, cq, told)
    rig.connect(s)
    if rig.side == 0:
        rig.barrier()
        s.send(wr_id=1)
        s.send(wr_id=2, flags=IBV_SEND_SIGNALED | IBV_SEND_SOLICITED)
        return ids(cq.wait(2))
    s.recv(wr_id=1)
    s.recv(wr_id=2)
    cq.req_notify(solicited_only=True)
    rig.barrier()
    assert channel.get_cq_event(cq) is cq
    return ids(cq.poll(9)[1])


def polling(rig):
    """A poll of an empty queue moves the clock; a poll loop finds the completion."""
    s = rig.pair()
    if rig.side == 0:
        rig.device.compute(50_000_000)
        s.send()
        s.scq.wait()
        return None
    s.recv()
    start, polls = rig.device.now_ps, 0
    while not s.rcq.poll()[0]:
        polls += 1
    return {"waited_ps": rig.device.now_ps - start, "polls": polls}


def sizes(rig):
    """One byte less, exactly, one more than the MTU, and twice: write, send, read (SoftRoCE/rxe-dev #76)."""
    s = rig.pair(nbytes=16384)
    seen = []
    for i, size in enumerate((1023, 1024, 1025, 2048)):
        if rig.side == 0:
            s.fill([(i + j) % 251 for j in range(size)])
            s.send(IBV_WR_RDMA_WRITE, length=size, remote=4096)
            s.send(IBV_WR_SEND, length=size)
            s.send(IBV_WR_RDMA_READ, length=size, offset=8192, remote=4096)
            s.scq.wait(3)
            seen.append(s.bytes(size, 8192) == s.bytes(size, 0))
        else:
            s.recv(length=2048, offset=12288)
            wc = s.rcq.wait()[0]
            want = [(i + j) % 251 for j in range(size)]
            seen.append((wc.byte_len, s.bytes(size, 4096) == want, s.bytes(size, 12288) == want))
        rig.barrier()
    return seen


def srq(rig):
    """Two queue pairs, one shared receive queue; the limit event comes once."""
    pd = rig.pd()
    shared = rig.own(SRQ(pd, SrqInitAttr(SrqAttr(8, 1))))
    a, b = (rig.pair(pd=pd, srq=shared if rig.side else None) for _ in range(2))
    if rig.side == 0:
        rig.barrier()
        a.send(wr_id=1)
        a.scq.wait()
        b.send(wr_id=2)
        return _sent(b)
    shared.modify(SrqAttr(srq_limit=2), IBV_SRQ_LIMIT)
    for i in range(3):
        shared.post_recv(RecvWR(10 + i, 1, [a.sge(64, 512 + 64 * i)]))
    rig.barrier()
    first, second = a.rcq.wait()[0], b.rcq.wait()[0]
    event = rig.ctx.get_async_event()
    try:
        a.qp.post_recv(RecvWR(1, 1, [a.sge()]))
        refused = False
    except PyverbsRDMAError:
        refused = True
    return {
        "ids": [first.wr_id, second.wr_id],
        "own": [first.qp_num == a.qp.qp_num, second.qp_num == b.qp.qp_num],
        "event": event.event_type.name, "limit": shared.query().srq_limit, "refused": refused,
        "left": rig.ctx.num_async_events,
    }  # fmt: skip


def loopback(rig):
    """A queue pair connected to another of the same rank."""
    pd = rig.pd()
    mr = MR(pd, 256, ALL_ACCESS)
    cq = rig.own(CQ(rig.ctx, 10))
    qps = [QP(pd, QPInitAttr(IBV_QPT_RC, None, cq, cq, None, QPCap(4, 4))) for _ in range(2)]
    for qp, peer in zip(qps, reversed(qps), strict=True):
        qp.to_rts(QPAttr(dest_qp_num=peer.qp_num, ah_attr=AHAttr(rig.side + 1), timeout=1, rnr_retry=7))
    qps[1].post_recv(RecvWR(2, 1, [SGE(mr.buf + 128, 64, mr.lkey)]))
    mr.write(b"loopback", 8)
    qps[0].post_send(SendWR(1, IBV_WR_SEND, 1, 0, [SGE(mr.buf, 8, mr.lkey)]))
    wcs = cq.wait(2)
    return sorted(ids(wcs)), mr.read(8, 128).decode()


def both_ways(rig):
    """Both sides send at once, twenty rounds."""
    s = rig.pair()
    seen = 0
    for i in range(20):
        s.recv(wr_id=i, offset=512)
        if i == 0:
            rig.barrier()
        s.fill([i] * 8)
        s.send(wr_id=i)
        s.rcq.wait()
        s.scq.wait()
        seen += s.bytes(8, 512) == [i] * 8
    return seen


def timing(rig):
    """From the call to the completion, by the formula: (measured, expected) of four requests, ps."""
    s = rig.pair()
    if rig.side:
        return None
    config, fabric = rig.device.engine.config, rig.device.fabric
    plane, cls = config.planes[0], rig.device.engine.link_class(1)
    pairs = []
    for opcode, size, flags in (
        (IBV_WR_RDMA_WRITE, 8, IBV_SEND_INLINE), (IBV_WR_RDMA_WRITE, 4096, 0), (IBV_WR_RDMA_READ, 2048, 0),
        (IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 0),
    ):  # fmt: skip
        kind = {IBV_WR_RDMA_WRITE: "write", IBV_WR_RDMA_READ: "read"}.get(opcode, "atomic")
        shape = fabric.verbs(kind, size, bool(flags))
        rate = (plane.write_bytes_per_s if kind == "write" else plane.read_bytes_per_s)[cls]
        there = plane.put_latency_ps[cls] if kind == "write" else plane.request_latency_ps[cls]
        back = (plane.ack_latency_ps if kind == "write" else plane.response_latency_ps)[cls]
        leaves = config.call_price_ps + fabric.post_ps + fabric.doorbell_ps + shape.start_ps
        moved = there + -(-size * 10**12 // rate) + back + shape.tail_ps + shape.done_ps
        start = rig.device.now_ps
        s.send(opcode, length=size, flags=IBV_SEND_SIGNALED | flags)
        pairs.append((s.scq.wait()[0].time_ps - start, leaves + moved))
    return pairs


CASES = [
    send, send_imm, zero_bytes, write, write_imm, read, atomics, gather_scatter, inline, unsignalled, sig_all,
    doorbells, max_rd_atomic, fence, solicited, polling, sizes, srq, loopback, both_ways, timing,
]  # fmt: skip
