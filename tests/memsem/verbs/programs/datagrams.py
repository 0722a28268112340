"""Datagrams: good paths and bad flows of UD, beside each other."""

# ruff: noqa: F403, F405 -- programs read as pyverbs ones do

from rig import *


def _pair(rig, **kwargs):
    s = rig.pair(kind=IBV_QPT_UD, **kwargs)
    s.ah = AH(s.qp.pd, AHAttr(rig.other + 1))
    return s


def _send(s, wr_id=1, length=8, qkey=0x1111, opcode=IBV_WR_SEND, imm=0, flags=IBV_SEND_SIGNALED, lkey=None):
    wr = SendWR(wr_id, opcode, 1, imm, [s.sge(length, 0, lkey)], flags)
    wr.set_wr_ud(s.ah, s.peer_qp, qkey)
    s.qp.post_send(wr)


def ud_send(rig):
    s = _pair(rig)
    if rig.side == 0:
        rig.barrier()
        s.fill(range(8))
        _send(s, wr_id=3, opcode=IBV_WR_SEND_WITH_IMM, imm=99)
        return names(s.scq.wait())
    s.recv(wr_id=1, length=48)
    rig.barrier()
    wc = s.rcq.wait()[0]
    return {
        "bytes": wc.byte_len, "imm": wc.imm_data, "flags": int(wc.wc_flags), "src": wc.src_qp == s.peer_qp,
        "slid": wc.slid, "data": s.bytes(8, 512 + 40),
    }  # fmt: skip


def ud_many(rig):
    """Everything arrives at most once; the sender hears of nothing but that it was sent."""
    s = _pair(rig, cap=QPCap(16, 16, 1, 1, 0))
    if rig.side == 0:
        rig.barrier()
        for i in range(8):
            _send(s, wr_id=i, length=100 * i)
        wcs = s.scq.wait(8)
        rig.barrier()
        return names(wcs), ids(wcs)
    for i in range(10):
        s.recv(wr_id=i, length=1000)
    rig.barrier()
    rig.barrier()
    wcs = s.rcq.wait(8)
    return sorted(wc.byte_len for wc in wcs), len(wcs)


def _lost(rig, send, recv_length=48, receives=1):
    """A datagram that is dropped, then one that is not."""
    s = _pair(rig)
    if rig.side == 0:
        rig.barrier()
        send(s)
        wcs = s.scq.wait()
        rig.device.compute(50_000_000)  # it was sent; by now it has arrived, too
        rig.barrier()
        rig.barrier()
        _send(s, wr_id=2, length=2)
        return names(wcs) + names(s.scq.wait())
    for i in range(receives):
        s.recv(wr_id=i, length=recv_length)
    rig.barrier()
    rig.barrier()
    if not receives:
        s.recv(wr_id=0, length=recv_length)
    rig.barrier()
    wcs = s.rcq.wait()
    return names(wcs), [wc.byte_len for wc in wcs]


def ud_wrong_qkey(rig):
    return _lost(rig, lambda s: _send(s, qkey=0x2222))


def ud_no_receive(rig):
    return _lost(rig, _send, receives=0)


def ud_nobody(rig):
    """To a queue pair that does not exist."""

    def send(s):
        peer, s.peer_qp = s.peer_qp, s.peer_qp ^ 0xFF0000
        _send(s)
        s.peer_qp = peer

    return _lost(rig, send)


def ud_sqe(rig):
    """A bad key stops the send queue: it fails, those behind it are flushed, receives go on, RTS recovers."""
    s = _pair(rig)
    s.recv(wr_id=50, length=48)
    s.recv(wr_id=51, length=48)
    if rig.side == 0:
        rig.barrier()
        _send(s, wr_id=1)
        _send(s, wr_id=2, lkey=0xBAD000, flags=0)
        _send(s, wr_id=3, flags=0)
        wcs = s.scq.wait(3)
        state = s.qp.query()[0].qp_state.name
        _send(s, wr_id=4)  # accepted in SQE, and flushed
        fourth = s.scq.wait()
        rig.barrier()
        received = names(s.rcq.wait())
        s.qp.modify(QPAttr(qp_state=IBV_QPS_RTS), IBV_QP_STATE)
        _send(s, wr_id=5)
        wcs += fourth + s.scq.wait()
        return {"status": names(wcs), "ids": ids(wcs), "state": state, "received": received}
    rig.barrier()
    got = s.rcq.wait()
    rig.barrier()
    _send(s, wr_id=9)
    s.scq.wait()
    return ids(got) + ids(s.rcq.wait())


def ud_longer_than_the_mtu(rig):
    s = _pair(rig, nbytes=16384)
    if rig.side:
        return None
    _send(s, length=4096)
    good = names(s.scq.wait())
    _send(s, length=4097)
    return good + names(s.scq.wait()), s.qp.query()[0].qp_state.name


def ud_short_receive(rig):
    """Longer than the receive: the receiver's queue pair fails; the sender does not hear of it."""
    s = _pair(rig)
    if rig.side == 0:
        rig.barrier()
        _send(s, length=9)
        return names(s.scq.wait())
    s.recv(wr_id=1, length=48)
    s.recv(wr_id=2, length=48)
    rig.barrier()
    return names(s.rcq.wait(2)), s.qp.query()[0].qp_state.name


def ud_post_in_reset(rig):
    s = _pair(rig, state="reset")
    seen = []
    for call in (lambda: _send(s), s.recv):
        try:
            call()
            seen.append("accepted")
        except QPStateError as error:
            seen.append(error.error_code)
    return seen


def ud_wrong_opcode(rig):
    s = _pair(rig)
    seen = []
    for opcode in (IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD):
        try:
            _send(s, opcode=opcode)
        except PyverbsRDMAError as error:
            seen.append(error.error_code)
    try:
        s.send()  # without an address handle
    except PyverbsRDMAError as error:
        seen.append(error.error_code)
    return seen


def ud_err_flush(rig):
    """ERR: receives are flushed, what is posted after is flushed, too."""
    s = _pair(rig)
    for i in range(3):
        s.recv(wr_id=i, length=48)
    s.qp.modify(QPAttr(qp_state=IBV_QPS_ERR), IBV_QP_STATE)
    _send(s, wr_id=7, flags=0)
    s.recv(wr_id=8, length=48)
    return names(s.rcq.wait(4)), ids(s.rcq.poll(1)[1]), names(s.scq.wait())


def ud_one_to_itself(rig):
    s = _pair(rig)
    s.ah = AH(s.qp.pd, AHAttr(rig.side + 1))
    s.peer_qp = s.qp.qp_num
    s.recv(length=48)
    s.fill([4] * 8)
    _send(s)
    return names(s.scq.wait()) + names(s.rcq.wait()), s.bytes(8, 552)


def ud_outstanding_at_destroy(rig):
    s = _pair(rig)
    for i in range(4):
        s.recv(wr_id=i, length=48)
        _send(s, wr_id=i, length=4000)
    s.qp.close()
    rig.device.compute(100_000_000)
    return s.scq.poll(9)[0] + s.rcq.poll(9)[0]


CASES = [
    ud_send, ud_many, ud_wrong_qkey, ud_no_receive, ud_nobody, ud_sqe, ud_longer_than_the_mtu,
    ud_short_receive, ud_post_in_reset, ud_wrong_opcode, ud_err_flush, ud_one_to_itself,
    ud_outstanding_at_destroy,
]  # fmt: skip
