"""Attribute records of queue pairs and addresses: plain data, with the names and defaults of pyverbs.

A destination is a LID: rank + 1 (0 is reserved). GIDs, partitions and alternate paths are accepted where a
transition asks for them and mean nothing here.

Source: pyverbs/qp.pyx, pyverbs/addr.pyx.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from memsem.verbs.enums import (
    IBV_MTU_1024,
    IBV_QPS_INIT,
    IBV_QPS_RESET,
    IBV_QPT_UD,
    ibv_access_flags,
)

if TYPE_CHECKING:
    from memsem.verbs.cq import CQ
    from memsem.verbs.srq import SRQ


@dataclass
class QPCap:
    """Sizes of a queue pair.

    Args:
        max_send_wr, max_recv_wr: most work requests outstanding in the send and the receive queue.
        max_send_sge, max_recv_sge: most scatter/gather elements of one.
        max_inline_data: most bytes sent inline.
    """

    max_send_wr: int = 1
    max_recv_wr: int = 10
    max_send_sge: int = 1
    max_recv_sge: int = 1
    max_inline_data: int = 0


@dataclass
class QPInitAttr:
    """What a queue pair is made with.

    Args:
        qp_type: IBV_QPT_RC or IBV_QPT_UD.
        qp_context: anything of the caller's.
        scq, rcq: completion queues of sends and receives.
        srq: shared receive queue, or None for one of its own.
        cap: sizes.
        sq_sig_all: every send is signalled.
    """

    qp_type: int = IBV_QPT_UD
    qp_context: Any = None
    scq: CQ | None = None
    rcq: CQ | None = None
    srq: SRQ | None = None
    cap: QPCap = field(default_factory=QPCap)
    sq_sig_all: int = 1


@dataclass
class AHAttr:
    """Where an address handle or a connected queue pair sends.

    Args:
        dlid: rank + 1 of the destination.
        sl, src_path_bits, is_global, port_num: carried, without effect.
    """

    dlid: int = 0
    sl: int = 0
    src_path_bits: int = 0
    is_global: int = 0
    port_num: int = 1


@dataclass
class QPAttr:
    """Attributes of a transition; which of them count says the mask (or `to_init`, `to_rtr`, `to_rts`).

    Args:
        qp_state, cur_qp_state: the state to go to, and the one the caller believes in.
        path_mtu: `ibv_mtu`; the most bytes of a UD message.
        qkey: of a UD queue pair; datagrams with another are dropped.
        dest_qp_num: the peer's number (RC).
        qp_access_flags: what the peer may do (RC): IBV_ACCESS_REMOTE_WRITE, READ, ATOMIC.
        ah_attr: the peer's address (RC).
        max_rd_atomic: most reads and atomics of mine outstanding.
        max_dest_rd_atomic: most of the peer's; carried, without effect.
        min_rnr_timer: code 0 to 31 of the time a sender waits after my "receiver not ready".
        timeout: code 0 to 31, 4.096 us * 2^timeout before an unanswered message is sent again; 0: for ever.
        retry_cnt: 0 to 7 times.
        rnr_retry: 0 to 6 times after "receiver not ready", 7: for ever.
        en_sqd_async_notify: an event when the send queue is drained.
    """

    qp_state: int = IBV_QPS_INIT
    cur_qp_state: int = IBV_QPS_RESET
    port_num: int = 1
    path_mtu: int = IBV_MTU_1024
    path_mig_state: int = 0
    qkey: int = 0
    rq_psn: int = 0
    sq_psn: int = 0
    dest_qp_num: int = 0
    qp_access_flags: int = ibv_access_flags(0)
    cap: QPCap | None = None
    ah_attr: AHAttr = field(default_factory=AHAttr)
    alt_ah_attr: AHAttr = field(default_factory=AHAttr)
    pkey_index: int = 0
    max_rd_atomic: int = 1
    max_dest_rd_atomic: int = 1
    min_rnr_timer: int = 0
    timeout: int = 0
    retry_cnt: int = 0
    rnr_retry: int = 0
    en_sqd_async_notify: int = 0
    sq_draining: int = 0
