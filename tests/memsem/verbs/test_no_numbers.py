"""Numbers and types that no verbs call takes: a named error, and the queue pair goes on as before."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from emulator.errors import UsageError
from emulator.solo import solo_device
from memsem import verbs as v
from memsem.verbs import urma
from memsem.verbs.jetty import Jetty, JfsWr, Sge, TargetJetty, WrFlag, import_jetty
from memsem.verbs.urma import Opcode, Segment, TransMode, import_seg

WRONG = (1.5, "x", None)


@pytest.fixture
def nic() -> Iterator[SimpleNamespace]:
    """Two connected queue pairs of one rank."""
    context = v.Context(solo_device())
    pd, cq = v.PD(context), v.CQ(context, 64)
    cap = v.QPCap(max_send_wr=8, max_recv_wr=8)
    init = v.QPInitAttr(qp_type=v.IBV_QPT_RC, scq=cq, rcq=cq, cap=cap)
    qps = [v.QP(pd, init), v.QP(pd, init)]
    for qp, other in zip(qps, qps[::-1], strict=True):
        qp.to_rts(attributes(other.qp_num))
    mr = v.MR(pd, 64, v.IBV_ACCESS_LOCAL_WRITE | v.IBV_ACCESS_REMOTE_WRITE)
    sge = v.SGE(mr.buf, 8, mr.lkey)
    yield SimpleNamespace(context=context, pd=pd, cq=cq, init=init, qp=qps[0], peer=qps[1], mr=mr, sge=sge)
    context.close()


def attributes(dest: int, **changed: Any) -> v.QPAttr:
    """A connection to a queue pair of rank 0."""
    access = v.IBV_ACCESS_REMOTE_WRITE
    values = {"dest_qp_num": dest, "ah_attr": v.AHAttr(dlid=1), "qp_access_flags": access, "timeout": 4}
    return v.QPAttr(**{**values, **changed})


def write(nic: SimpleNamespace, sge: v.SGE | None = None, **changed: Any) -> v.SendWR:
    """A write to my own region, with some of its numbers changed."""
    remote = {"rkey": nic.mr.rkey, "addr": nic.mr.buf}
    fields = {"wr_id": 7, "opcode": v.IBV_WR_RDMA_WRITE, "num_sge": 1, "sg": [sge or nic.sge]}
    for name, value in changed.items():
        (remote if name in remote else fields)[name] = value
    wr = v.SendWR(**fields)
    wr.set_wr_rdma(**remote)
    return wr


CALLS: dict[str, Callable[[SimpleNamespace, Any], Any]] = {
    "rkey": lambda n, x: n.qp.post_send(write(n, rkey=x)),
    "addr": lambda n, x: n.qp.post_send(write(n, addr=x)),
    "wr_id": lambda n, x: n.qp.post_send(write(n, wr_id=x)),
    "flags": lambda n, x: n.qp.post_send(write(n, send_flags=x)),
    "imm": lambda n, x: n.qp.post_send(write(n, imm_data=x)),
    "opcode": lambda n, x: write(n, opcode=x),
    "num_sge": lambda n, x: write(n, num_sge=x),
    "sge addr": lambda n, x: n.qp.post_send(write(n, v.SGE(x, 8, n.mr.lkey))),
    "sge length": lambda n, x: n.qp.post_send(write(n, v.SGE(n.mr.buf, x, n.mr.lkey))),
    "sge lkey": lambda n, x: n.qp.post_send(write(n, v.SGE(n.mr.buf, 8, x))),
    "element": lambda n, x: n.qp.post_send(write(n, x) if x else x),
    "receive": lambda n, x: n.qp.post_recv(v.RecvWR(1, 1, [v.SGE(n.mr.buf, x, n.mr.lkey)])),
    "no request": lambda n, x: n.qp.post_send(x),
    "no receive": lambda n, x: n.qp.post_recv(x),
    "other request": lambda n, x: n.qp.post_recv(v.SendWR(1)),
    "access": lambda n, x: v.MR(n.pd, 8, x),
    "length": lambda n, x: v.MR(n.pd, x, 1),
    "cqe": lambda n, x: v.CQ(n.context, x),
    "poll": lambda n, x: n.cq.poll(x),
    "wait": lambda n, x: n.cq.wait(x),
    "cap": lambda n, x: v.QP(n.pd, v.QPInitAttr(v.IBV_QPT_RC, scq=n.cq, rcq=n.cq, cap=v.QPCap(x))),
    "type": lambda n, x: v.QP(n.pd, v.QPInitAttr(x, scq=n.cq, rcq=n.cq)),
    "state": lambda n, x: n.qp.modify(v.QPAttr(qp_state=x), v.IBV_QP_STATE),
    "mask": lambda n, x: n.qp.modify(v.QPAttr(), x),
    "dest": lambda n, x: v.QP(n.pd, n.init).to_rts(attributes(x)),
    "timeout": lambda n, x: v.QP(n.pd, n.init).to_rts(attributes(2, timeout=x)),
    "address": lambda n, x: v.QP(n.pd, n.init).to_rts(attributes(2, ah_attr=x)),
    "lid": lambda n, x: v.AH(n.pd, v.AHAttr(dlid=x)),
    "srq": lambda n, x: v.SRQ(n.pd, v.SrqInitAttr(v.SrqAttr(x))),
    "read": lambda n, x: n.mr.read(x),
    "max_qp": lambda n, x: v.Context(n.context.device, max_qp=x),
    "memory": lambda n, x: v.Context(n.context.device, memory_bytes=x),
}


@pytest.mark.parametrize("call", CALLS)
def test_what_is_no_number_is_refused_and_leaves_no_trace(nic: SimpleNamespace, call: str) -> None:
    for value in WRONG:
        with pytest.raises(UsageError):
            CALLS[call](nic, value)
    nic.qp.post_send(write(nic))
    assert [wc.status for wc in nic.cq.wait(1)] == [v.IBV_WC_SUCCESS]
    nic.context.check()


def test_numbers_of_numpy_are_numbers(nic: SimpleNamespace) -> None:
    """As they come out of an exchange of addresses and keys."""
    at, key, two = np.int64(nic.mr.buf), np.int64(nic.mr.rkey), np.int64(1)
    nic.qp.post_send(write(nic, v.SGE(at, np.int64(8), key), rkey=key, addr=at, num_sge=two))
    assert nic.cq.wait(two)[0].status == v.IBV_WC_SUCCESS
    qp = v.QP(nic.pd, nic.init)
    qp.to_rts(attributes(np.int64(2), ah_attr=v.AHAttr(dlid=two)))
    assert v.AH(nic.pd, v.AHAttr(dlid=two)).peer == 0 and v.MR(nic.pd, np.int64(8), 1).length == 8
    qp.close()


def test_negative_lengths_are_refused(nic: SimpleNamespace) -> None:
    """One hid behind a longer element: their sum was taken for the message's length."""
    pair = [v.SGE(nic.mr.buf, 16, nic.mr.lkey), v.SGE(nic.mr.buf, -8, nic.mr.lkey)]
    for sg in (pair, pair[1:]):
        with pytest.raises(v.PyverbsUserError, match="length from 0 on"):
            nic.qp.post_send(write(nic, num_sge=len(sg), sg=sg))
    nic.qp.post_send(write(nic))
    assert nic.cq.wait(1)[0].status == v.IBV_WC_SUCCESS


def test_a_region_that_cannot_be_takes_no_memory(nic: SimpleNamespace) -> None:
    """A negative length used to put a hole into the list of free memory."""
    free = nic.context._memory.free
    for length in (-1, -64, 1 << 40):
        with pytest.raises(v.PyverbsRDMAError):
            v.MR(nic.pd, length, 1)
    for access in (-1, 1 << 40):
        with pytest.raises(v.PyverbsRDMAError, match="access"):
            v.MR(nic.pd, 64, access)
    assert nic.context._memory.free == free
    with pytest.raises(v.PyverbsUserError, match="closed"):
        mr = v.MR(nic.pd, 64, 1)
        mr.close()
        mr.read(4)
    assert nic.context._memory.free == free


def test_datagrams_name_a_queue_pair_that_can_be(nic: SimpleNamespace) -> None:
    wr = v.SendWR(1)
    wr.set_wr_ud(None, 1 << 40, 0)
    with pytest.raises(v.PyverbsUserError, match="qpn"):
        nic.qp.post_send(wr)
    nic.qp.post_send(write(nic))
    assert nic.cq.wait(1)[0].status == v.IBV_WC_SUCCESS


URMA: dict[str, Callable[[Any, Any, Any], Any]] = {
    "rank": lambda c, j, s: j.post_jetty_send_wr(request(s, tjetty=TargetJetty(99, 2))),
    "number": lambda c, j, s: j.post_jetty_send_wr(request(s, tjetty=TargetJetty(0, 1 << 40))),
    "number text": lambda c, j, s: j.post_jetty_send_wr(request(s, tjetty=TargetJetty(0, "x"))),
    "import": lambda c, j, s: import_jetty(c, (-1, 2)),
    "import text": lambda c, j, s: import_jetty(c, ("x", 2)),
    "order": lambda c, j, s: j.post_jetty_send_wr(request(s, flag=WrFlag(place_order=3))),
    "opcode": lambda c, j, s: j.post_jetty_send_wr(request(s, opcode=99)),
    "operand": lambda c, j, s: j.post_jetty_send_wr(request(s, opcode=Opcode.FSUB, operand=None)),
    "user_ctx": lambda c, j, s: j.post_jetty_send_wr(request(s, user_ctx="x")),
    "local": lambda c, j, s: j.post_jetty_send_wr(request(s, local=[s])),
    "length": lambda c, j, s: j.post_jetty_send_wr(request(s, local=[Sge(s, -1)])),
    "offset": lambda c, j, s: j.post_jetty_send_wr(request(s, local=[Sge(s, 8, "x")])),
    "remote as local": lambda c, j, s: j.post_jetty_recv_wr(1, Sge(import_seg(c, s.ubva, 7), 8)),
}


def request(seg: Segment, **changed: Any) -> JfsWr:
    """A message to my own jetty, with some of its fields changed."""
    local = [Sge(seg, 8)]
    return JfsWr(**{"opcode": Opcode.SEND, "tjetty": TargetJetty(0, 2), "local": local, **changed})


@pytest.mark.parametrize("mode", [TransMode.RM, TransMode.UM])
def test_what_no_jetty_takes(mode: TransMode) -> None:
    context = urma.Context(solo_device())
    jfc = urma.Jfc(context)
    jetty = Jetty(context, mode, jfc)
    seg = Segment(context, 64, urma.Access.READ | urma.Access.WRITE, 7)
    for name, call in URMA.items():
        with pytest.raises(UsageError):
            print(name, call(context, jetty, seg))
    jetty.post_jetty_recv_wr(5, Sge(seg, 64))
    jetty.post_jetty_send_wr(request(seg, tjetty=TargetJetty(*jetty.id)))
    assert len(jfc.wait(2)) == 2
    context.check()
    context.close()
