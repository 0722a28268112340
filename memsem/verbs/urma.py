"""URMA on the same machinery: jetties, JFCs, segments and tokens of the UB fabric, where not as verbs.

    verbs   PD, MR + rkey      CQ    QP one to one          send queue fails, queue pair in ERR
    URMA    segment + token    JFC   jetty, RM: one to many suspended or in error; drains, then says so

A jetty in RM mode (reliable message) reaches every jetty it has imported, keeps no order unless a request
asks for it (`place_order`, `comp_order`, `fence`), and needs no connection. RC is bound to one target and
ordered. UM (unreliable) is a datagram. Addresses are byte offsets in a heap, as in `memsem.verbs`. Left out:
jetty groups, JFS and JFR without a jetty, WRITE_NOTIFY (windows have it), token policies but a plain token.

Source: openeuler umdk, `urma_types.h`, `urma_opcode.h`, URMA User Guide 2.1 and 5.2 to 5.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING, Any

from emulator.engine.api import ATOMIC_ADD, ATOMIC_AND, ATOMIC_OR, ATOMIC_XOR, CAS, SWAP
from emulator.fabric import Shape
from emulator.posting import OWNER_URMA
from memsem.verbs.context import Context as VerbsContext
from memsem.verbs.cq import CQ
from memsem.verbs.enums import (
    IBV_ACCESS_LOCAL_WRITE,
    IBV_ACCESS_REMOTE_ATOMIC,
    IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE,
    IBV_WC_LOC_LEN_ERR,
    IBV_WC_LOC_PROT_ERR,
    IBV_WC_REM_ACCESS_ERR,
    IBV_WC_REM_INV_REQ_ERR,
    IBV_WC_REM_OP_ERR,
    IBV_WC_RETRY_EXC_ERR,
    IBV_WC_RNR_RETRY_EXC_ERR,
    IBV_WC_SUCCESS,
    IBV_WC_WITH_IMM,
    IBV_WC_WR_FLUSH_ERR,
    IBV_WR_ATOMIC_CMP_AND_SWP,
    IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM,
    IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM,
    ibv_wr_opcode,
)
from memsem.verbs.mr import MR
from memsem.verbs.pd import PD
from memsem.verbs.wr import WC

if TYPE_CHECKING:
    import numpy.typing as npt

    from emulator import Device


class CrStatus(IntEnum):
    """Completion statuses, `urma_cr_status_t`."""

    SUCCESS = 0
    UNSUPPORTED_OPCODE_ERR = 1
    LOC_LEN_ERR = 2
    LOC_OPERATION_ERR = 3
    LOC_ACCESS_ERR = 4
    REM_RESP_LEN_ERR = 5
    REM_UNSUPPORTED_REQ_ERR = 6
    REM_OPERATION_ERR = 7
    REM_ACCESS_ABORT_ERR = 8
    ACK_TIMEOUT_ERR = 9
    RNR_RETRY_CNT_EXC_ERR = 10
    WR_FLUSH_ERR = 11
    WR_SUSPEND_DONE = 12
    WR_FLUSH_ERR_DONE = 13


class Opcode(IntEnum):
    """What a request does, `urma_opcode_t`."""

    WRITE = 0x00
    WRITE_IMM = 0x01
    READ = 0x10
    CAS = 0x20
    SWAP = 0x21
    FADD = 0x22
    FSUB = 0x23
    FAND = 0x24
    FOR = 0x25
    FXOR = 0x26
    SEND = 0x40
    SEND_IMM = 0x41


class Access(IntFlag):
    """What a segment is open for. LOCAL_ONLY excludes the others; WRITE needs READ, ATOMIC needs both."""

    LOCAL_ONLY = 1
    READ = 2
    WRITE = 4
    ATOMIC = 8


class TransMode(IntEnum):
    """`urma_transport_mode_t`: reliable message, reliable connection, unreliable message."""

    RM = 1
    RC = 2
    UM = 4


class JettyState(IntEnum):
    """`urma_jetty_state_t`."""

    RESET = 0
    READY = 1
    SUSPENDED = 2
    ERROR = 3


STATUS: dict[int, CrStatus] = {
    IBV_WC_SUCCESS: CrStatus.SUCCESS,
    IBV_WC_LOC_LEN_ERR: CrStatus.LOC_LEN_ERR,
    IBV_WC_LOC_PROT_ERR: CrStatus.LOC_ACCESS_ERR,
    IBV_WC_REM_INV_REQ_ERR: CrStatus.REM_UNSUPPORTED_REQ_ERR,
    IBV_WC_REM_OP_ERR: CrStatus.REM_OPERATION_ERR,
    IBV_WC_REM_ACCESS_ERR: CrStatus.REM_ACCESS_ABORT_ERR,
    IBV_WC_RETRY_EXC_ERR: CrStatus.ACK_TIMEOUT_ERR,
    IBV_WC_RNR_RETRY_EXC_ERR: CrStatus.RNR_RETRY_CNT_EXC_ERR,
    IBV_WC_WR_FLUSH_ERR: CrStatus.WR_FLUSH_ERR,
}
"""What the verbs call a status, and what URMA calls it."""

VERBS_OPCODE: dict[int, ibv_wr_opcode] = {
    Opcode.WRITE: IBV_WR_RDMA_WRITE,
    Opcode.WRITE_IMM: IBV_WR_RDMA_WRITE_WITH_IMM,
    Opcode.READ: IBV_WR_RDMA_READ,
    Opcode.CAS: IBV_WR_ATOMIC_CMP_AND_SWP,
    **{op: IBV_WR_ATOMIC_FETCH_AND_ADD for op in Opcode if Opcode.SWAP <= op <= Opcode.FXOR},
    Opcode.SEND: IBV_WR_SEND,
    Opcode.SEND_IMM: IBV_WR_SEND_WITH_IMM,
}
ATOMIC_OPERATION: dict[int, int] = {
    Opcode.CAS: CAS,
    Opcode.SWAP: SWAP,
    Opcode.FADD: ATOMIC_ADD,
    Opcode.FSUB: ATOMIC_ADD,
    Opcode.FAND: ATOMIC_AND,
    Opcode.FOR: ATOMIC_OR,
    Opcode.FXOR: ATOMIC_XOR,
}
"""What the engine does for an atomic; FSUB adds the negative."""
_VERBS_ACCESS = {
    Access.READ: IBV_ACCESS_REMOTE_READ,
    Access.WRITE: IBV_ACCESS_REMOTE_WRITE,
    Access.ATOMIC: IBV_ACCESS_REMOTE_ATOMIC,
}


@dataclass(frozen=True)
class Cr:
    """A completion record, `urma_cr_t`.

    Attributes:
        status: `CrStatus`; WR_SUSPEND_DONE and WR_FLUSH_ERR_DONE belong to no request.
        user_ctx: of the request. completion_len: bytes. local_id: the jetty.
        remote_id: (rank, jetty) of the sender, of a receive. imm_data: or None.
        time_ps: virtual time, picoseconds.
    """

    status: CrStatus
    user_ctx: int
    completion_len: int
    local_id: int
    remote_id: tuple[int, int] | None
    imm_data: int | None
    time_ps: int = field(default=0, compare=False)


class Context(VerbsContext):
    """This rank's URMA device: the UB fabric. Collective, as the verbs context; domains are implicit.

    Args: as `memsem.verbs.Context`; `max_qp` jetties and `max_mr` segments.
    """

    OWNER, PATH = OWNER_URMA, "urma"

    def __init__(self, device: Device | None = None, **sizes: Any) -> None:
        super().__init__(device, **sizes)
        self.domain = PD(self)

    def shape(self, opcode: str, nbytes: int, inline: bool, peer: int) -> Shape:
        fabric = self.device.fabric
        return fabric.urma(opcode, nbytes, int(fabric.link_class(self.rank, peer)))

    def charge(self, call: str) -> None:
        """Let the time of a control-plane call pass."""
        self.called()
        self.device.compute(self.device.fabric.control_ps(call), publish=False)


class Jfc(CQ):
    """A completion queue of `depth` records."""

    def __init__(self, context: Context, depth: int = 64) -> None:
        context.charge("create_jfc")
        super().__init__(context, depth)

    def poll_jfc(self, count: int = 1) -> list[Cr]:
        """Take up to `count` records; see `CQ.poll`."""
        return [_cr(wc) for wc in self.poll(count)[1]]

    def wait_jfc(self, count: int = 1) -> list[Cr]:
        """Sleep until `count` records are there; see `CQ.wait`."""
        return [_cr(wc) for wc in self.wait(count)]


def _cr(wc: WC) -> Cr:
    if wc.status == IBV_WC_SUCCESS and wc.vendor_err:
        return Cr(CrStatus(wc.vendor_err), wc.wr_id, 0, wc.qp_num, None, None, wc.time_ps)
    received = (wc.slid - 1, wc.src_qp) if wc.slid else None
    imm = wc.imm_data if wc.wc_flags & IBV_WC_WITH_IMM else None
    return Cr(STATUS[wc.status], wc.wr_id, wc.byte_len, wc.qp_num, received, imm, wc.time_ps)


class Segment(MR):
    """A piece of this rank's heap that jetties may use (`register_seg`).

    Args:
        context: the device. buffer: a view of the heap, or bytes to allocate. access: `Access`.
        token: 31 bits that whoever imports the segment must know.

    Raises:
        PyverbsRDMAError: an impossible mixture of access flags, a token out of range.
    """

    def __init__(self, context: Context, buffer: npt.NDArray[Any] | int, access: int, token: int = 0) -> None:
        wanted = Access(access)
        alone = bool(wanted & Access.LOCAL_ONLY) and wanted != Access.LOCAL_ONLY
        writes = bool(wanted & Access.WRITE) and not wanted & Access.READ
        atomics = bool(wanted & Access.ATOMIC) and not wanted & Access.WRITE
        if not wanted or alone or writes or atomics or not 0 <= token < 1 << 31:
            raise context.refusal(
                f"register_seg: access {wanted!r} with token {token:#x} is not possible", access
            )
        self.token = token
        remote = sum(flag for mine, flag in _VERBS_ACCESS.items() if wanted & mine)
        super().__init__(context.domain, buffer, IBV_ACCESS_LOCAL_WRITE | remote)

    @property
    def tag(self) -> int:
        """Token and key in one 64-bit word."""
        return self.token << 32 | self.rkey

    @property
    def price(self) -> str:
        """Name of what registering one costs in the profile."""
        return "register"

    @property
    def ubva(self) -> tuple[int, int, int, int]:
        """What another rank needs to import the segment, beside its token: rank, key, address, bytes."""
        return self.context.rank, self.rkey, self.buf, self.length


@dataclass(frozen=True)
class TargetSegment:
    """An imported segment: of `rank`, `length` bytes from `addr`."""

    rank: int
    key: int
    addr: int
    length: int
    token: int


def import_seg(context: Context, ubva: Sequence[int], token: int = 0) -> TargetSegment:
    """Return a segment of another rank. Whether the token is right shows when it is used."""
    context.charge("import_seg")
    rank, key, addr, length = (int(x) for x in ubva)
    return TargetSegment(rank, key, addr, length, token)
