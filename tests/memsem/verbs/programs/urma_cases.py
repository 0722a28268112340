"""URMA: one jetty to many, order by flags, tokens, suspension and draining."""

import emulator
from memsem.verbs.connect import Exchange
from memsem.verbs.jetty import Jetty, JfsWr, Sge, WrFlag, import_jetty
from memsem.verbs.urma import Access, Context, JettyState, Jfc, Opcode, Segment, TransMode, import_seg
from memsem.verbs.verbs_error import PyverbsRDMAError

OPEN = Access.READ | Access.WRITE | Access.ATOMIC


class Rig:
    def __init__(self):
        self.device = emulator.device()
        self.rank, self.n = self.device.rank, self.device.num_ranks
        self.ctx = Context(self.device)
        self.exchange = Exchange(self.ctx)
        self.made = []

    def setup(self, mode, token=7, claimed=None, access=OPEN, **kwargs):
        """A jetty and a segment on every rank; everybody imports everybody's."""
        jfc, recv_jfc = Jfc(self.ctx), Jfc(self.ctx)
        jetty = Jetty(self.ctx, mode, jfc, recv_jfc, **kwargs)
        seg = Segment(self.ctx, 4096, access, token)
        seg.write(bytes(4096), 4096)
        told = self.exchange.all_gather(*jetty.id, *seg.ubva)
        jetties = [import_jetty(self.ctx, row[:2]) for row in told]
        segs = [import_seg(self.ctx, row[2:6], token if claimed is None else claimed) for row in told]
        self.made = [seg, jetty, jfc, recv_jfc]
        self.device.barrier()
        return jfc, recv_jfc, jetty, seg, jetties, segs

    def clean(self):
        self.device.barrier()
        for resource in self.made[1:] + self.made[:1]:
            resource.close()
        self.ctx.check()
        self.device.barrier()


def named(crs):
    return [cr.status.name for cr in crs]


def one_to_many(rig):
    """One jetty writes to, sends to and reads from everybody."""
    jfc, recv_jfc, jetty, seg, jetties, segs = rig.setup(TransMode.RM)
    for i in range(rig.n):
        jetty.post_jetty_recv_wr(i, Sge(seg, 64, 1024 + 64 * i))
    rig.device.barrier()
    seg.write(bytes([rig.rank + 1] * 8), 8, 0)
    for peer in range(rig.n):
        jetty.post_jetty_send_wr(
            JfsWr(Opcode.WRITE, jetties[peer], 1, [Sge(seg, 8)], Sge(segs[peer], 8, 512 + 8 * rig.rank)),
            JfsWr(Opcode.SEND_IMM, jetties[peer], 2, [Sge(seg, 4)], imm_data=100 + rig.rank),
        )
    done = jfc.wait_jfc(2 * rig.n)
    got = recv_jfc.wait_jfc(rig.n)
    rig.device.barrier()
    jetty.post_jetty_send_wr(
        *(
            JfsWr(Opcode.READ, jetties[p], 3, [Sge(seg, 8, 2048 + 8 * p)], Sge(segs[p], 8))
            for p in range(rig.n)
        )
    )
    read = jfc.wait_jfc(rig.n)
    return {
        "status": sorted({*named(done), *named(got), *named(read)}),
        "from": sorted((cr.remote_id[0], cr.imm_data, cr.completion_len) for cr in got),
        "written": [int(x) for x in seg.read(8 * rig.n, 512)[::8]],
        "read": [int(x) for x in seg.read(8 * rig.n, 2048)[::8]],
    }


def atomics(rig):
    jfc, _, jetty, seg, jetties, segs = rig.setup(TransMode.RM)
    if rig.rank:
        rig.device.barrier()
        return int.from_bytes(seg.read(8, 256), "little")
    ops = [
        (Opcode.FADD, 5, 0), (Opcode.FSUB, 2, 0), (Opcode.FOR, 8, 0), (Opcode.FAND, 10, 0),
        (Opcode.FXOR, 1, 0), (Opcode.SWAP, 77, 0), (Opcode.CAS, 88, 77), (Opcode.CAS, 99, 77),
    ]  # fmt: skip
    old = []
    for operation, operand, compare in ops:
        jetty.post_jetty_send_wr(
            JfsWr(operation, jetties[1], 0, [Sge(seg, 8)], Sge(segs[1], 8, 256), 0, operand, compare)
        )
        assert named(jfc.wait_jfc()) == ["SUCCESS"]
        old.append(int.from_bytes(seg.read(8), "little"))
    rig.device.barrier()
    return old


def wrong_token(rig):
    """Refused by the segment's owner; the jetty is in error, flushes, drains, and starts anew."""
    jfc, _, jetty, seg, jetties, segs = rig.setup(TransMode.RM, token=7, claimed=8)
    if rig.rank:
        rig.device.barrier()
        return [int(x) for x in seg.read(8, 512)], jetty.jetty_state.name
    write = JfsWr(Opcode.WRITE, jetties[1], 1, [Sge(seg, 8)], Sge(segs[1], 8, 512))
    jetty.post_jetty_send_wr(write)
    first = jfc.wait_jfc(2)
    jetty.post_jetty_send_wr(write)
    flushed = jfc.wait_jfc()
    state = jetty.jetty_state.name
    jetty.modify_jetty(JettyState.READY)
    jetty.post_jetty_send_wr(JfsWr(Opcode.WRITE, jetties[1], 5, [], Sge(segs[1], 0)))
    again = jfc.wait_jfc()
    rig.device.barrier()
    return named(first), named(flushed), state, named(again)


def suspended(rig):
    """Nobody receives: the retry count is exceeded; what is under way to others drains first."""
    jfc, _, jetty, seg, jetties, segs = rig.setup(TransMode.RM, rnr_retry=1)
    if rig.rank:
        rig.device.barrier()
        return None
    jetty.post_jetty_send_wr(
        JfsWr(Opcode.SEND, jetties[1], 1, [Sge(seg, 8)]),
        JfsWr(Opcode.READ, jetties[1], 2, [Sge(seg, 2048)], Sge(segs[1], 2048)),
    )
    crs = jfc.wait_jfc(3)
    rig.device.barrier()
    return named(crs), [cr.user_ctx for cr in crs], jetty.jetty_state.name


def bound(rig):
    """RC: bound to one target, completions in order, a wrong token flushes what follows."""
    jfc, recv_jfc, jetty, seg, jetties, segs = rig.setup(TransMode.RC, claimed=9)
    refused = None
    try:
        jetty.post_jetty_send_wr(JfsWr(Opcode.SEND, None, 1, [Sge(seg, 8)]))
    except PyverbsRDMAError as error:
        refused = error.error_code
    jetty.bind_jetty(jetties[1 - rig.rank] if rig.rank < 2 else jetties[rig.rank])
    jetty.post_jetty_recv_wr(1, Sge(seg, 64, 1024))
    rig.device.barrier()
    if rig.rank > 1:
        rig.device.barrier()
        rig.device.barrier()
        return None
    if rig.rank == 0:
        jetty.post_jetty_send_wr(
            JfsWr(Opcode.SEND, None, 1, [Sge(seg, 8)]),
            JfsWr(Opcode.WRITE, None, 2, [Sge(seg, 8)], Sge(segs[1], 8)),
            JfsWr(Opcode.SEND, None, 3, [Sge(seg, 8)]),
        )
    first = named(jfc.wait_jfc(1 if rig.rank else 4)), named(recv_jfc.wait_jfc(1))
    rig.device.barrier()
    jetty.modify_jetty(JettyState.READY)  # both ends start anew, bound as before
    jetty.post_jetty_recv_wr(9, Sge(seg, 64, 1024))
    rig.device.barrier()
    jetty.post_jetty_send_wr(JfsWr(Opcode.SEND, None, 7, [Sge(seg, 8)]))
    return *first, named(jfc.wait_jfc()) + named(recv_jfc.wait_jfc()), refused


def order_flags(rig):
    """comp_order: a read's record is not overtaken by a later send's; without, it may be."""
    jfc, recv_jfc, jetty, seg, jetties, segs = rig.setup(TransMode.RM)
    for i in range(4):
        jetty.post_jetty_recv_wr(i, Sge(seg, 64, 3000))
    rig.device.barrier()
    if rig.rank:
        rig.device.barrier()
        return None
    seen = []
    for ordered in (False, True):
        flag = WrFlag(comp_order=ordered)
        jetty.post_jetty_send_wr(
            JfsWr(Opcode.READ, jetties[1], 1, [Sge(seg, 2048)], Sge(segs[1], 2048)),
            JfsWr(Opcode.WRITE, jetties[1], 2, [Sge(seg, 2)], Sge(segs[1], 2), flag=flag),
        )
        seen.append([cr.user_ctx for cr in jfc.wait_jfc(2)])
    rig.device.barrier()
    return seen


def datagram(rig):
    """One too long first: the jetty is in error, drains, and starts anew."""
    jfc, recv_jfc, jetty, seg, jetties, _ = rig.setup(TransMode.UM)
    jetty.post_jetty_recv_wr(1, Sge(seg, 128, 1024))
    rig.device.barrier()
    if rig.rank == 0:
        jetty.post_jetty_send_wr(JfsWr(Opcode.SEND, jetties[1], 3, [Sge(seg, 4096), Sge(seg, 8)]))
        failed = named(jfc.wait_jfc(2))
        jetty.modify_jetty(JettyState.READY)
        jetty.post_jetty_send_wr(JfsWr(Opcode.SEND_IMM, jetties[1], 4, [Sge(seg, 8)], imm_data=6))
        return failed + named(jfc.wait_jfc())
    return [(cr.status.name, cr.imm_data) for cr in recv_jfc.wait_jfc()] if rig.rank == 1 else None


def error_flushes(rig):
    """To ERROR: receives are flushed; a record says that all is done."""
    jfc, recv_jfc, jetty, seg, jetties, _ = rig.setup(TransMode.RM)
    jetty.post_jetty_recv_wr(1, Sge(seg, 64, 1024))
    jetty.post_jetty_recv_wr(2, Sge(seg, 64, 1024))
    jetty.modify_jetty(JettyState.ERROR)
    return named(recv_jfc.wait_jfc(2)), named(jfc.wait_jfc())


def bad_segments(rig):
    seen = []
    for access in (0, Access.LOCAL_ONLY | Access.READ, Access.WRITE, Access.READ | Access.ATOMIC):
        try:
            Segment(rig.ctx, 64, access)
            seen.append("accepted")
        except PyverbsRDMAError as error:
            seen.append(error.error_code)
    return seen


CASES = [
    one_to_many, atomics, wrong_token, suspended, bound, order_flags, datagram, error_flushes, bad_segments,
]  # fmt: skip


def run_cases(report, skip=()):
    rig, results = Rig(), {}
    for case in CASES:
        if case.__name__ not in skip:
            results[case.__name__] = {"seen": case(rig), "violations": []}
            rig.clean()
            rig.made = []
    rig.ctx.close()
    report(cases=results, now_ps=rig.device.now_ps)
