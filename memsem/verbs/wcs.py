"""From records to work completions. Pure.

After a failure only wr_id, status, qp_num and vendor_err say anything (ibv_poll_cq(3)); nothing else is set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memsem.verbs.completion import SendEntry
from memsem.verbs.enums import (
    IBV_WC_GRH,
    IBV_WC_RECV,
    IBV_WC_RECV_RDMA_WITH_IMM,
    IBV_WC_SUCCESS,
    IBV_WC_WITH_IMM,
    ibv_wc_flags,
    ibv_wc_status,
)
from memsem.verbs.users import decode_message, tag_imm
from memsem.verbs.wr import WC, WC_OPCODE

if TYPE_CHECKING:
    from emulator.posting import InboxRecord


def failed_wc(wr_id: int, status: ibv_wc_status, qp_num: int, record: InboxRecord) -> WC:
    """Return the completion of a request that failed or was flushed."""
    return WC(wr_id, status, vendor_err=record.status, qp_num=qp_num, time_ps=record.time_ps)


def send_wc(entry: SendEntry, status: ibv_wc_status, qp_num: int, record: InboxRecord) -> WC:
    """Return the completion of a send, write, read or atomic."""
    if status != IBV_WC_SUCCESS:
        return failed_wc(entry.wr_id, status, qp_num, record)
    return WC(
        entry.wr_id,
        status,
        WC_OPCODE[entry.opcode],
        byte_len=entry.nbytes,
        qp_num=qp_num,
        time_ps=record.time_ps,
    )


def receive_wc(wr_id: int, qp_num: int, record: InboxRecord, header: int) -> WC:
    """Return the completion of a receive that took a message, with `header` bytes in front of the payload."""
    message = decode_message(record.value)
    flags = ibv_wc_flags(0)
    if message.has_imm:
        flags |= IBV_WC_WITH_IMM
    if header:
        flags |= IBV_WC_GRH
    return WC(
        wr_id,
        IBV_WC_SUCCESS,
        IBV_WC_RECV_RDMA_WITH_IMM if message.is_write else IBV_WC_RECV,
        byte_len=record.nbytes + header,
        qp_num=qp_num,
        src_qp=message.src_qp,
        imm_data=tag_imm(record.tag) if message.has_imm else 0,
        wc_flags=flags,
        slid=record.rank + 1,
        time_ps=record.time_ps,
    )
