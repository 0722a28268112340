"""Work requests and completions: what a program posts and what it polls.

Names and argument order are those of pyverbs. One difference: a work request may have no scatter/gather
element at all (a message of zero bytes), as libibverbs allows it.

Source: pyverbs/wr.pyx, pyverbs/cq.pyx; ibv_post_send(3), ibv_poll_cq(3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from memsem.verbs.ah import AH
from memsem.verbs.enums import (
    IBV_SEND_SIGNALED,
    IBV_WC_COMP_SWAP,
    IBV_WC_FETCH_ADD,
    IBV_WC_RDMA_READ,
    IBV_WC_RDMA_WRITE,
    IBV_WC_SEND,
    IBV_WC_SUCCESS,
    IBV_WR_ATOMIC_CMP_AND_SWP,
    IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM,
    IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM,
    ibv_wc_opcode,
    ibv_wc_status,
    ibv_wr_opcode,
)
from memsem.verbs.verbs_error import PyverbsUserError

SENDS = frozenset({IBV_WR_SEND, IBV_WR_SEND_WITH_IMM})
WRITES = frozenset({IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM})
ATOMICS = frozenset({IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD})
FETCHES = ATOMICS | {IBV_WR_RDMA_READ}
"""What max_rd_atomic counts and IBV_SEND_FENCE waits for."""
WITH_IMM = frozenset({IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM})

WC_OPCODE: dict[int, ibv_wc_opcode] = {
    IBV_WR_RDMA_WRITE: IBV_WC_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM: IBV_WC_RDMA_WRITE,
    IBV_WR_SEND: IBV_WC_SEND,
    IBV_WR_SEND_WITH_IMM: IBV_WC_SEND,
    IBV_WR_RDMA_READ: IBV_WC_RDMA_READ,
    IBV_WR_ATOMIC_CMP_AND_SWP: IBV_WC_COMP_SWAP,
    IBV_WR_ATOMIC_FETCH_AND_ADD: IBV_WC_FETCH_ADD,
}


@dataclass
class SGE:
    """A piece of registered memory: `length` bytes at address `addr`, under `lkey`."""

    addr: int
    length: int
    lkey: int


def total_bytes(sg: Sequence[SGE]) -> int:
    """Return the bytes of a scatter/gather list."""
    return sum(sge.length for sge in sg)


def _opcode(opcode: int) -> ibv_wr_opcode:
    try:
        return ibv_wr_opcode(opcode)
    except ValueError:
        names = ", ".join(ibv_wr_opcode.__members__)
        raise PyverbsUserError(f"work request: opcode {opcode!r} is none of {names}", value=opcode) from None


def _elements(num_sge: int, sg: Sequence[SGE] | None) -> list[SGE]:
    elements = list(sg or ())
    if not isinstance(num_sge, int | np.integer) or not 0 <= num_sge <= len(elements):
        raise PyverbsUserError(f"work request: num_sge {num_sge} does not fit {len(elements)} elements")
    return elements[:num_sge]


class RecvWR:
    """A receive: where one message may land.

    Args:
        wr_id: returned in the completion.
        num_sge, sg: the scatter list.
        next_wr: the next of a list posted at once.
    """

    def __init__(
        self,
        wr_id: int = 0,
        num_sge: int = 0,
        sg: Sequence[SGE] | None = None,
        next_wr: RecvWR | None = None,
    ) -> None:
        self.wr_id, self.sg, self.next_wr = wr_id, _elements(num_sge, sg), next_wr

    @property
    def num_sge(self) -> int:
        """Scatter/gather elements."""
        return len(self.sg)

    def __iter__(self) -> Iterator[RecvWR]:
        wr: RecvWR | None = self
        while wr is not None:
            yield wr
            wr = wr.next_wr


@dataclass
class _Remote:
    """The opcode's own part of a send: `wr.rdma`, `wr.atomic` and `wr.ud` of the C structure."""

    rkey: int = 0
    addr: int = 0
    compare_add: int = 0
    swap: int = 0
    ah: AH | None = None
    qpn: int = 0
    qkey: int = 0


class SendWR:
    """A send, write, read or atomic.

    Args:
        wr_id: returned in the completion.
        opcode: `ibv_wr_opcode`.
        num_sge, sg: where the bytes come from; for reads and atomics where they go to.
        imm_data: 32 bits, handed to the receiver's completion as they are.
        send_flags: `ibv_send_flags`.
        next_wr: the next of a list posted with one doorbell.
    """

    def __init__(
        self,
        wr_id: int = 0,
        opcode: int = IBV_WR_SEND,
        num_sge: int = 0,
        imm_data: int = 0,
        sg: Sequence[SGE] | None = None,
        send_flags: int = IBV_SEND_SIGNALED,
        next_wr: SendWR | None = None,
    ) -> None:
        self.wr_id, self.opcode, self.sg = wr_id, _opcode(opcode), _elements(num_sge, sg)
        self.imm_data, self.send_flags, self.next_wr = imm_data, send_flags, next_wr
        self.remote = _Remote()

    @property
    def num_sge(self) -> int:
        """Scatter/gather elements."""
        return len(self.sg)

    def set_wr_rdma(self, rkey: int, addr: int) -> None:
        """Name the remote memory of a write or read."""
        self.remote.rkey, self.remote.addr = rkey, addr

    def set_wr_atomic(self, rkey: int, addr: int, compare_add: int, swap: int = 0) -> None:
        """Name the remote 8 bytes of an atomic, and its operands (64 bit)."""
        self.remote.rkey, self.remote.addr = rkey, addr
        self.remote.compare_add, self.remote.swap = compare_add, swap

    def set_wr_ud(self, ah: AH, rqpn: int, rqkey: int) -> None:
        """Name the destination of a datagram."""
        self.remote.ah, self.remote.qpn, self.remote.qkey = ah, rqpn, rqkey

    def __iter__(self) -> Iterator[SendWR]:
        wr: SendWR | None = self
        while wr is not None:
            yield wr
            wr = wr.next_wr


@dataclass(frozen=True)
class WC:
    """A work completion. After a failure only wr_id, status, qp_num and vendor_err mean anything.

    Attributes:
        status: `ibv_wc_status`. opcode: `ibv_wc_opcode`. wc_flags: `ibv_wc_flags`.
        byte_len: bytes received or fetched; of a datagram with its 40-byte header.
        qp_num, src_qp: the queue pair it belongs to; the sender's (UD).
        slid: the sender's LID, rank + 1.
        imm_data: with IBV_WC_WITH_IMM.
        vendor_err: 0, or the engine's status code.
        time_ps: virtual time the completion was written at, picoseconds.
    """

    wr_id: int = 0
    status: ibv_wc_status = IBV_WC_SUCCESS
    opcode: int = 0
    vendor_err: int = 0
    byte_len: int = 0
    qp_num: int = 0
    src_qp: int = 0
    imm_data: int = 0
    wc_flags: int = 0
    slid: int = 0
    time_ps: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return f"WR {self.wr_id} of QP {self.qp_num:#x}: {self.status.name} at {self.time_ps} ps"
