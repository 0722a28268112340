"""Broken builds: each case is run once as it is and once with one rule of the library replaced. What it sees
is returned for both; a test that cannot tell them apart is worth nothing. No case waits: a mutant must not
hang.
"""

# ruff: noqa: F403, F405 -- programs read as pyverbs ones do

from unittest import mock

from rig import *

from memsem.verbs import cq, keys, qp, receiving, rows, sending, wcs


def _later(rig, ps=100_000_000):
    rig.device.compute(ps)
    rig.ctx.observe()


def flush(rig):
    s = rig.pair(attrs={"rnr_retry": 7})
    if rig.side == 0:
        s.send(wr_id=1)
        s.recv(wr_id=2)
        s.qp.modify(QPAttr(qp_state=IBV_QPS_ERR), IBV_QP_STATE)
        _later(rig)
    return len(s.scq), len(s.rcq)


def in_err(rig):
    s = rig.pair()
    s.qp.modify(QPAttr(qp_state=IBV_QPS_ERR), IBV_QP_STATE)
    s.send(wr_id=1)
    _later(rig)
    return len(s.scq)


def immediate(rig):
    s = rig.pair()
    if rig.side == 0:
        s.send(IBV_WR_SEND_WITH_IMM, imm=5)
    else:
        s.recv(wr_id=9)
    _later(rig)
    return [(wc.wr_id, wc.imm_data) for wc in s.rcq.poll(9)[1]] if len(s.rcq) else []


def overrun(rig):
    s = rig.pair(cqe=1)
    if rig.side == 0:
        s.send(IBV_WR_RDMA_WRITE, wr_id=1)
        s.send(IBV_WR_RDMA_WRITE, wr_id=2)
    _later(rig)
    return s.scq.overrun, len(s.scq)


def stale_number(rig):
    pd = rig.pd()
    mr = MR(pd, 256, ALL_ACCESS)
    cq = rig.own(CQ(rig.ctx, 8))
    first = QP(pd, QPInitAttr(IBV_QPT_RC, None, cq, cq, None, QPCap(4, 4)))
    old = int(rig.exchange.all_gather(first.qp_num)[rig.other][0])
    first.close()
    qp = QP(pd, QPInitAttr(IBV_QPT_RC, None, cq, cq, None, QPCap(4, 4)))
    told = [int(x) for x in rig.exchange.all_gather(mr.rkey, mr.buf)[rig.other][:2]]
    qp.to_rts(QPAttr(dest_qp_num=old, ah_attr=AHAttr(rig.other + 1), qp_access_flags=REMOTE, timeout=1))
    rig.barrier()
    if rig.side == 0:
        wr = SendWR(1, IBV_WR_RDMA_WRITE, 1, 0, [SGE(mr.buf, 8, mr.lkey)])
        wr.set_wr_rdma(*told)
        qp.post_send(wr)
    _later(rig)
    rig.barrier()
    return names(cq.poll(9)[1]) if len(cq) else []


def size(rig):
    s = rig.pair()
    if rig.side == 0:
        s.fill([1] * 2048)
        s.send(IBV_WR_RDMA_WRITE, length=2048, remote=2048)
    _later(rig)
    rig.barrier()
    return int(s.mr.view[2048:].sum()) if rig.side else None


def zero(rig):
    s = rig.pair()
    if rig.side == 0:
        s.send(length=0)
    else:
        s.recv()
    _later(rig)
    return len(s.rcq) + len(s.scq)


def open_region(rig):
    s = rig.pair()
    if rig.side == 0:
        s.send(IBV_WR_RDMA_WRITE, rkey=0x1FFF)
    _later(rig)
    return names(s.scq.poll(1)[1]) if len(s.scq) else []


def _lost_flush(self, number, record, original=qp.QP.on_sent):
    if record.status != 4:
        original(self, number, record)


def _dropped_in_err(self, accepted, original=sending.Sender._ring):
    if self._qp.state != IBV_QPS_ERR:
        original(self, accepted)


def _swapped(wr_id, qp_num, record, header, original=wcs.receive_wc):
    wc = original(wr_id, qp_num, record, header)
    return WC(**{**vars(wc), "wr_id": wc.imm_data, "imm_data": wc.wr_id})


def _one_more(self, wc, on_poll, solicited=False, counted=True, original=cq.CQ.push):
    with mock.patch.object(self, "cqe", self.cqe + 1):
        original(self, wc, on_poll, solicited, counted)


def _any_generation(generation, need, original=keys.state_masks):
    return ((1 << 63) - 1) & ~sum(1 << 9 * g for g in range(7)), 0


def _cut(context, sg, original=receiving.gather):
    data = original(context, sg)
    data[1024:] = 0
    return data


def _skips_empty(self, accepted, original=sending.Sender._ring):
    original(self, [one for one in accepted if one[1].nbytes])


def _unguarded(wr, nbytes, region):
    return {}


MUTANTS = {
    "FLUSH_LOST": (flush, qp.QP, "on_sent", _lost_flush),
    "ERR_DROPS": (in_err, sending.Sender, "_ring", _dropped_in_err),
    "IMM_SWAPPED": (immediate, qp, "receive_wc", _swapped),
    "DEPTH_PLUS_ONE": (overrun, cq.CQ, "push", _one_more),
    "STALE_WORD": (stale_number, rows, "state_masks", _any_generation),
    "CUT_AT_MTU": (size, sending, "gather", _cut),
    "EMPTY_SKIPPED": (zero, sending.Sender, "_ring", _skips_empty),
    "GUARD_OPEN": (open_region, rows, "_guard", _unguarded),
}


def run(report):
    rig, results = Rig(), {}
    rig.ctx.check = lambda: None  # mutants break the rule; what they leave is reported instead
    for name, (case, where, what, broken) in MUTANTS.items():
        good = case(rig)
        rig.barrier()
        rig.clean()
        with mock.patch.object(where, what, broken):
            bad = case(rig)
            rig.barrier()
            open_sends = sum(q.outstanding_sends for q in rig.ctx.qps)
            rig.clean()
        rig.barrier()
        results[name] = {"seen": [good, bad, open_sends], "violations": []}
    report(cases=results)
