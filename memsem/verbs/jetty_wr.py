"""Requests of a jetty, and how they are written as work requests of verbs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from memsem.verbs.context import Context as Nic
from memsem.verbs.enums import (
    IBV_SEND_FENCE,
    IBV_SEND_INLINE,
    IBV_SEND_SIGNALED,
    IBV_SEND_SOLICITED,
)
from memsem.verbs.numbers import check_whole, member, wrong
from memsem.verbs.urma import VERBS_OPCODE, Context, Opcode, Segment, TargetSegment
from memsem.verbs.wr import SGE, SendWR


@dataclass(frozen=True)
class TargetJetty:
    """An imported jetty: number `jetty_id` of `rank`."""

    rank: int
    jetty_id: int


def import_jetty(context: Context, jetty: Sequence[int]) -> TargetJetty:
    """Return a jetty of another rank, from its `Jetty.id`."""
    target = TargetJetty(*jetty)
    check_target(context, target)
    context.charge("import_jetty")
    return target


def check_target(context: Nic, target: TargetJetty) -> None:
    """Refuse a jetty that no rank has. Raises: PyverbsUserError."""
    check_whole(context, "jetty: rank or number", (target.rank, target.jetty_id))
    if not 0 <= target.rank < context.num_ranks or not 0 <= target.jetty_id < 1 << 24:
        ranks = f"ranks are 0 to {context.num_ranks - 1}, numbers have 24 bits"
        raise wrong(context, f"jetty: no {target}; {ranks}", target.rank)


def check_request(context: Nic, wr: JfsWr) -> None:
    """Refuse a request that no structure could hold. Raises: PyverbsUserError."""
    member(context, "jetty: opcode", Opcode, wr.opcode)
    check_whole(
        context, "jetty: operand, compare or place_order", (wr.operand, wr.compare, wr.flag.place_order)
    )
    if not 0 <= wr.flag.place_order <= 2:
        what = f"place_order {wr.flag.place_order}; 0 none, 1 relaxed, 2 strong"
        raise wrong(context, f"jetty: {what}", wr.flag.place_order)
    check_local(context, wr.local)
    if wr.tjetty is not None:
        check_target(context, wr.tjetty)


def check_local(context: Nic, local: Sequence[Sge]) -> None:
    """Refuse elements that are not of a segment of mine. Raises: PyverbsUserError."""
    for sge in local:
        if not isinstance(sge, Sge) or not isinstance(sge.seg, Segment):
            raise wrong(context, f"jetty: a local element names a segment of mine, not {sge!r}", sge)
        check_whole(context, "jetty: offset or length", (sge.offset, sge.length))


@dataclass(frozen=True)
class Sge:
    """`length` bytes at `offset` of a segment, mine or imported."""

    seg: Segment | TargetSegment
    length: int
    offset: int = 0


@dataclass(frozen=True)
class WrFlag:
    """`urma_jfs_wr_flag_t`: place_order 0 none, 1 relaxed, 2 strong."""

    place_order: int = 0
    comp_order: bool = False
    fence: bool = False
    solicited_enable: bool = False
    complete_enable: bool = True
    inline_flag: bool = False


@dataclass(frozen=True)
class JfsWr:
    """A request.

    Args:
        opcode: `Opcode`. tjetty: where to (RM, UM). user_ctx: returned in the record.
        local: my memory: source of a send or write, destination of a read or atomic.
        remote: the one remote element of a write, read or atomic.
        imm_data: 32 bits. operand, compare: of an atomic.
    """

    opcode: Opcode
    tjetty: TargetJetty | None = None
    user_ctx: int = 0
    local: Sequence[Sge] = ()
    remote: Sge | None = None
    imm_data: int = 0
    operand: int = 0
    compare: int = 0
    flag: WrFlag = field(default_factory=WrFlag)


class JettyWR(SendWR):
    """A request as verbs know it, with what they do not know."""

    def __init__(self, wr: JfsWr) -> None:
        flag, verbs = wr.flag, VERBS_OPCODE[wr.opcode]
        bits = (
            IBV_SEND_SIGNALED * flag.complete_enable
            | IBV_SEND_FENCE * flag.fence
            | IBV_SEND_SOLICITED * flag.solicited_enable
            | IBV_SEND_INLINE * flag.inline_flag
        )
        elements = [local_sge(sge) for sge in wr.local]
        super().__init__(wr.user_ctx, verbs, len(elements), wr.imm_data, elements, bits)
        self.urma = wr
        if wr.remote is not None and isinstance(wr.remote.seg, TargetSegment):
            self.set_wr_rdma(wr.remote.seg.key, wr.remote.seg.addr + wr.remote.offset)
        self.remote.compare_add = wr.compare if wr.opcode == Opcode.CAS else _operand(wr)
        self.remote.swap = wr.operand


def _operand(wr: JfsWr) -> int:
    return -wr.operand if wr.opcode == Opcode.FSUB else wr.operand


def local_sge(sge: Sge) -> SGE:
    assert isinstance(sge.seg, Segment), "a local element names a segment of mine"
    return SGE(sge.seg.buf + sge.offset, sge.length, sge.seg.lkey)
