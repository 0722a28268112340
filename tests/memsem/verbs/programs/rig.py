"""What the rank programs of these tests share: two ranks, a NIC each, and a way to make connected pairs.

Every case runs on both ranks (side 0 is rank 0) and returns what its rank saw. After it everything it made is
closed and the completion rule is held against the counts; a case cannot leave work to the next one.
"""

# ruff: noqa: F403, F405 -- programs read as pyverbs ones do

import traceback

import emulator
from memsem.verbs import *

ALL_ACCESS = (
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC
)
REMOTE = ALL_ACCESS & ~IBV_ACCESS_LOCAL_WRITE


def names(wcs):
    """The statuses of completions, in order, without the prefix."""
    return [wc.status.name.removeprefix("IBV_WC_") for wc in wcs]


def ids(wcs):
    return [wc.wr_id for wc in wcs]


class Side:
    """One end of a pair: queue pair, completion queues, a region, and what the other end told."""

    def __init__(self, rig, qp, mr, scq, rcq, told):
        self.rig, self.qp, self.mr, self.scq, self.rcq, self.attrs = rig, qp, mr, scq, rcq, {}
        self.peer_qp, self.peer_rkey, self.peer_addr = (int(x) for x in told[:3])

    def sge(self, length=8, offset=0, lkey=None):
        return SGE(self.mr.buf + offset, length, self.mr.lkey if lkey is None else lkey)

    def wr(self, opcode=IBV_WR_SEND, wr_id=1, length=8, offset=0, remote=0, rkey=None, imm=0, lkey=None,
           flags=IBV_SEND_SIGNALED, compare_add=0, swap=0, next_wr=None):  # fmt: skip
        sg = [self.sge(length, offset, lkey)] if length is not None else []
        wr = SendWR(wr_id, opcode, len(sg), imm, sg, flags, next_wr)
        rkey = self.peer_rkey if rkey is None else rkey
        if opcode in (IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD):
            wr.set_wr_atomic(rkey, self.peer_addr + remote, compare_add, swap)
        else:
            wr.set_wr_rdma(rkey, self.peer_addr + remote)
        return wr

    def send(self, *args, **kwargs):
        self.qp.post_send(self.wr(*args, **kwargs))

    def recv(self, wr_id=1, length=64, offset=512, lkey=None):
        self.qp.post_recv(RecvWR(wr_id, 1, [self.sge(length, offset, lkey)]))

    def fill(self, data, offset=0):
        self.mr.write(bytes(data), len(data), offset)

    def bytes(self, length, offset=0):
        return list(self.mr.read(length, offset))


class Rig:
    def __init__(self, **context):
        self.device = emulator.device()
        self.side = self.device.rank
        self.other = 1 - self.side
        self.ctx = Context(**context)
        self.exchange = Exchange(self.ctx)
        self._made = []

    def own(self, resource):
        self._made.append(resource)
        return resource

    def pd(self):
        return self.own(PD(self.ctx))

    def barrier(self):
        self.device.barrier()

    def pair(self, kind=IBV_QPT_RC, state="rts", access=REMOTE, mr_access=ALL_ACCESS, nbytes=4096, cqe=100,
             cap=None, sq_sig_all=0, srq=None, pd=None, attrs=None, channel=None):  # fmt: skip
        """A queue pair on each rank, connected to the other's; `state`: how far it is brought."""
        pd = pd or self.pd()
        mr = MR(pd, nbytes, mr_access)
        scq = self.own(CQ(self.ctx, cqe, None, channel))
        rcq = self.own(CQ(self.ctx, cqe))
        cap = cap or QPCap(16, 16, 4, 4, 128)
        qp = QP(pd, QPInitAttr(kind, None, scq, rcq, srq, cap, sq_sig_all))
        told = self.exchange.all_gather(qp.qp_num, mr.rkey, mr.buf)[self.other]
        side = Side(self, qp, mr, scq, rcq, told)
        side.attrs = attrs or {}
        self.connect(side, state, access)
        self.barrier()
        return side

    def attr(self, side, access=REMOTE):
        values = {
            "dest_qp_num": side.peer_qp, "ah_attr": AHAttr(self.other + 1), "qp_access_flags": access,
            "max_rd_atomic": 4, "max_dest_rd_atomic": 4, "min_rnr_timer": 1, "timeout": 1, "retry_cnt": 2,
            "rnr_retry": 2, "path_mtu": IBV_MTU_1024, "qkey": 0x1111,
        }  # fmt: skip
        return QPAttr(**{**values, **side.attrs})

    def connect(self, side, state="rts", access=REMOTE):
        attr = self.attr(side, access)
        if state != "reset":
            getattr(side.qp, f"to_{state}")(attr)

    def connect_rts(self, side):
        """From RTR to RTS."""
        side.qp.to_rts(self.attr(side))

    def clean(self):
        """Close what the case made."""
        for resource in reversed(self._made):
            resource.close()
        self._made.clear()
        self.ctx.check()


def run_cases(cases, report, **context):
    rig, results = Rig(**context), {}
    for name, case in cases.items():
        rig.barrier()
        before = rig.ctx.tally + type(rig.ctx.tally)()
        try:
            seen = case(rig)
        except Exception as error:
            traceback.print_exc()
            raise SystemExit(f"case {name}, side {rig.side}: {error}") from error
        rig.barrier()
        rig.clean()
        rig.barrier()
        tally = {k: getattr(rig.ctx.tally, k) - getattr(before, k) for k in vars(before)}
        results[name] = {"seen": seen, "tally": tally, "violations": rig.ctx.tally.violations()}
    rig.ctx.close()
    report(cases=results, now_ps=rig.device.now_ps)
