"""Queue pairs: reliable connections (RC) and datagrams (UD).

    post_send -> ... carried out in order ... -> send CQ        errors -> ERR (UD: SQE), everything flushed
    post_recv -> ... consumed by messages ... -> receive CQ

Every posted request ends exactly once; see `completion`. A queue pair that fails by itself does so when this
rank looks (`context`). `close` ends it without completions, and takes back those nobody polled.

Source: ibv_create_qp(3), ibv_modify_qp(3), ibv_destroy_qp(3); pyverbs/qp.pyx.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from emulator.engine.posts import IN_MATCH, ST_LENGTH, ST_REGION
from memsem.verbs.completion import RecvEntry, RecvQueue, SendEntry
from memsem.verbs.enums import (
    IBV_EVENT_QP_ACCESS_ERR,
    IBV_EVENT_QP_FATAL,
    IBV_QPS_ERR,
    IBV_QPS_RESET,
    IBV_QPS_SQD,
    IBV_QPS_SQE,
    IBV_QPT_RC,
    IBV_QPT_UD,
    IBV_WC_LOC_LEN_ERR,
    IBV_WC_LOC_PROT_ERR,
    IBV_WC_SUCCESS,
    IBV_WC_WR_FLUSH_ERR,
    ibv_wc_status,
)
from memsem.verbs.qp_life import QueuePair
from memsem.verbs.qp_state import is_receiving, may_post_recv
from memsem.verbs.qpcap import QPAttr as QPAttr
from memsem.verbs.qpcap import QPCap as QPCap
from memsem.verbs.qpcap import QPInitAttr as QPInitAttr
from memsem.verbs.receiving import allowed, gather, post_receives, scatter
from memsem.verbs.users import decode_message
from memsem.verbs.verbs_error import QPStateError
from memsem.verbs.wcs import failed_wc, receive_wc, send_wc
from memsem.verbs.wr import FETCHES, RecvWR, SendWR, total_bytes

if TYPE_CHECKING:
    from emulator.posting import InboxRecord
    from emulator.transport import Bytes

GRH_BYTES = 40
"""Header in front of a datagram's payload in the receive buffer."""


class QP(QueuePair):
    """A queue pair; see `QueuePair` for what it is made with and its states."""

    # --- work requests ----------------------------------------------------------------------------------

    def post_send(self, wr: SendWR, bad_wr: SendWR | None = None) -> None:
        """Post a request, or a list of them with one doorbell.

        Args:
            wr: the first of a list linked by `next_wr`.
            bad_wr: filled with the one that was refused; those before it are posted.

        Completion: the memory of a request belongs to the NIC until its completion, or a later one of this
        queue pair, was polled; inline data may be reused on return.

        Raises:
            QPStateError: RESET, INIT or RTR. PyverbsRDMAError: opcode, counts (EINVAL), queue full (ENOMEM).
        """
        self.context.called()
        self._sender.post(wr, bad_wr)

    def post_recv(self, wr: RecvWR, bad_wr: RecvWR | None = None) -> None:
        """Post a receive, or a list of them.

        Args: as `post_send`.

        Raises:
            QPStateError: RESET. PyverbsRDMAError: it has an SRQ, counts (EINVAL), queue full (ENOMEM).
        """
        context = self.context
        context.called()
        if self.srq is not None:
            raise context.refusal(f"post_recv: QP {self.qp_num:#x} receives from its SRQ", wr.wr_id)
        if not may_post_recv(self.state):
            where = f"post_recv: QP {self.qp_num:#x} is in {self.state.name}"
            raise context.refusal(where, self.state, kind=QPStateError)
        post_receives(
            context,
            self.pd,
            wr,
            bad_wr,
            self.receives,
            self.qp_num,
            self.cap.max_recv_sge,
            qkey=self.attr.qkey if self.qp_type == IBV_QPT_UD else None,
            header=self._header,
            flush=self.state == IBV_QPS_ERR,
        )

    @property
    def _header(self) -> int:
        return GRH_BYTES if self.qp_type == IBV_QPT_UD else 0

    # --- records ----------------------------------------------------------------------------------------

    def on_sent(self, number: int, record: InboxRecord) -> None:
        """A send has ended. Records of a stream come in post order; others wait here for their turn."""
        if self._stream:
            self._end_send(number, record)
            return
        self._early[number] = record
        while (first := self.sends.first()) is not None and first.number in self._early:
            self._end_send(first.number, self._early.pop(first.number))

    def _end_send(self, number: int, record: InboxRecord) -> None:
        entry = self.sends.find(number)
        if entry is None:
            return
        status = entry.status(record.status)
        if self.state == IBV_QPS_ERR and not entry.reliable:
            status = IBV_WC_WR_FLUSH_ERR
        if entry.opcode in FETCHES and self.context.device.memory.is_expected(record.seq):
            status = self._land_fetch(entry, record, status)
        if self.context.canary:
            self._watch_reuse(entry)
        if self.sends.finish(entry, status):
            wc = send_wc(entry, status, self.qp_num, record)
            self.scq.push(wc, lambda: self.sends.retire(number))
        if status != IBV_WC_SUCCESS:
            self._send_failed(status)
        if self.state == IBV_QPS_SQD:
            self._report_drained()

    def _watch_reuse(self, entry: SendEntry) -> None:
        """Has the memory of what ends now been changed by the program?"""
        for ended in self.sends.ended_with(entry):
            if ended.canary is None:
                continue
            now = self.context.device.rows.checksum(gather(self.context, ended.source))
            if now != ended.canary:
                self.context.later(partial(self.context.flag_reuse, self.qp_num, ended.wr_id))

    def _land_fetch(self, entry: SendEntry, record: InboxRecord, status: ibv_wc_status) -> ibv_wc_status:
        """What a read or atomic brought goes to the caller's memory, if that is still registered."""
        data = self.context.device.take(record)
        if status != IBV_WC_SUCCESS:
            return status
        if not allowed(self.context, self.pd, entry.landing, write=True):
            return IBV_WC_LOC_PROT_ERR
        scatter(self.context, entry.landing, data)
        return status

    def _send_failed(self, status: ibv_wc_status) -> None:
        """RC: the queue pair fails. UD: only its send queue, until `modify` to RTS."""
        if self.state in (IBV_QPS_ERR, IBV_QPS_RESET):
            return
        if self.qp_type == IBV_QPT_RC:
            self._fail_later()
        elif status != IBV_WC_WR_FLUSH_ERR:
            self.state = IBV_QPS_SQE

    def break_down(self) -> None:
        """The NIC has found it broken: in ERR from now on, with an event."""
        self.context.report(IBV_EVENT_QP_FATAL, self)
        self._fail_later()

    def _fail_later(self) -> None:
        """In ERR from now on; what has to be posted for it waits until the records are sorted."""
        if self.state not in (IBV_QPS_ERR, IBV_QPS_RESET):
            self.state = IBV_QPS_ERR
            self.context.later(self._fail)

    def on_received(self, queue: RecvQueue, number: int, record: InboxRecord, payload: Bytes | None) -> None:
        """A receive of mine was consumed or flushed."""
        entry = queue.pop(number)
        if entry is None:
            return
        status = self._receive_status(entry, record)
        if status == IBV_WC_SUCCESS:
            wc = receive_wc(entry.wr_id, self.qp_num, record, self._header)
            if payload is not None or self._header:
                body = np.empty(0, np.uint8) if payload is None else payload
                scatter(self.context, entry.sg, np.concatenate([np.zeros(self._header, np.uint8), body]))
        else:
            wc = failed_wc(entry.wr_id, status, self.qp_num, record)
        queue.count(status)
        self.rcq.push(
            wc, queue.retire, solicited=record.kind == IN_MATCH and decode_message(record.value).solicited
        )
        if status not in (IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR):
            self._fail_later()

    def _receive_status(self, entry: RecvEntry, record: InboxRecord) -> ibv_wc_status:
        if record.kind != IN_MATCH:
            return IBV_WC_WR_FLUSH_ERR
        if record.status == ST_LENGTH:
            return entry.verdict or IBV_WC_LOC_LEN_ERR
        lands = record.real_bytes > 0 or self._header > 0
        if lands and total_bytes(entry.sg) < record.real_bytes + self._header:
            return IBV_WC_LOC_LEN_ERR
        if lands and not allowed(self.context, self.pd, entry.sg, write=True):
            return IBV_WC_LOC_PROT_ERR
        return IBV_WC_SUCCESS

    def on_refused(self, record: InboxRecord) -> None:
        """I refused something of the peer's: an error of this queue pair, too."""
        if self.qp_type == IBV_QPT_RC and record.status == ST_REGION and is_receiving(self.state):
            self.context.report(IBV_EVENT_QP_ACCESS_ERR, self)
            self._fail_later()
