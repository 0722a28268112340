"""Verbs under the names of pyverbs: rank 0 writes 4 KB into rank 1, with immediate data (2 to 16 ranks)."""

import emulator
from memsem import verbs as v

ACCESS = v.IBV_ACCESS_LOCAL_WRITE | v.IBV_ACCESS_REMOTE_WRITE
emulator.init()
me = emulator.rank()
context = v.Context()  # the NIC: every rank makes one
pd, cq = v.PD(context), v.CQ(context, 16)
mr = v.MR(pd, 4096, ACCESS)
qp = v.QP(pd, v.QPInitAttr(v.IBV_QPT_RC, scq=cq, rcq=cq, cap=v.QPCap(8, 8)))
told = v.Exchange(context, 3).all_gather(qp.qp_num, mr.buf, mr.rkey)  # every rank
if me < 2:  # the other's LID is its rank + 1
    number, address, rkey = (int(value) for value in told[1 - me])
    qp.to_rts(v.QPAttr(dest_qp_num=number, ah_attr=v.AHAttr(dlid=2 - me), qp_access_flags=ACCESS))
if me == 1:
    qp.post_recv(v.RecvWR(wr_id=7))  # immediate data takes a receive
emulator.barrier()
if me == 0:
    mr.write(b"superpod" * 512, 4096)
    wr = v.SendWR(3, v.IBV_WR_RDMA_WRITE_WITH_IMM, 1, imm_data=42, sg=[v.SGE(mr.buf, 4096, mr.lkey)])
    wr.set_wr_rdma(rkey, address)
    qp.post_send(wr)
if me < 2:
    (wc,) = cq.wait()  # or `cq.poll()` in a loop
    assert wc.status == v.IBV_WC_SUCCESS and mr.read(8, 4088) == b"superpod"
    print(f"rank {me}: {wc.opcode.name} of request {wc.wr_id}, immediate {wc.imm_data}", flush=True)
