"""The send side of a queue pair: what is refused at the call, what fails in its turn, what goes out.

A request that could never be carried out (state, opcode, counts, no room) is refused at the call and counts
nowhere. One that is found wrong by the NIC (a key, a length) is accepted, takes its turn, ends with an error
completion and takes the queue pair with it.

Source: ibv_post_send(3); InfiniBand specification 1.5, 10.10 (local errors).
"""

from __future__ import annotations

import copy
import errno
from typing import TYPE_CHECKING

import numpy as np

from emulator.engine.posts import new_posts
from emulator.fabric import Transaction
from memsem.verbs import rows
from memsem.verbs.completion import SendEntry
from memsem.verbs.enums import (
    IBV_QPS_ERR,
    IBV_QPS_SQD,
    IBV_QPS_SQE,
    IBV_QPT_UD,
    IBV_SEND_INLINE,
    IBV_SEND_SIGNALED,
    IBV_WC_LOC_LEN_ERR,
    IBV_WC_LOC_PROT_ERR,
    IBV_WC_REM_INV_REQ_ERR,
    IBV_WC_WR_FLUSH_ERR,
    ibv_qp_state,
    ibv_wc_status,
    mtu_bytes,
)
from memsem.verbs.numbers import check_send, wrong
from memsem.verbs.qp_state import may_post_send
from memsem.verbs.receiving import allowed, gather
from memsem.verbs.rows import Path
from memsem.verbs.verbs_error import PyverbsRDMAError, QPStateError
from memsem.verbs.wr import ATOMICS, FETCHES, SENDS, SendWR, total_bytes

if TYPE_CHECKING:
    from emulator.transport import Bytes
    from memsem.verbs.qp_life import QueuePair

MAX_MESSAGE = 1 << 31
"""Most bytes of an RC message."""


class Sender:
    """What a queue pair posts to send.

    Args:
        qp: whose it is.
    """

    def __init__(self, qp: QueuePair) -> None:
        self._qp, self._context = qp, qp.context
        self._held: list[tuple[SendWR, SendEntry]] = []
        self._failing = False

    # --- the call ---------------------------------------------------------------------------------------

    def post(self, wrs: SendWR, bad_wr: SendWR | None) -> None:
        """Accept a list of requests up to the first that is refused; see `QP.post_send`."""
        if not isinstance(wrs, SendWR):
            raise wrong(self._context, f"post_send: {wrs!r} is no send work request", wrs)
        accepted: list[tuple[SendWR, SendEntry]] = []
        try:
            for wr in wrs:
                self._check(wr)
                accepted.append((copy.copy(wr), self._enter(wr)))
        except Exception:
            if bad_wr is not None:
                bad_wr.__dict__.update(wr.__dict__)
            raise
        finally:
            if self._qp.state == IBV_QPS_SQD:
                self._held += accepted
            else:
                self._ring(accepted)

    def _check(self, wr: SendWR) -> None:
        qp, cap = self._qp, self._qp.cap
        check_send(self._context, wr)
        inline = bool(wr.send_flags & IBV_SEND_INLINE)
        if not may_post_send(qp.state):
            self._refuse(f"the queue pair is in {ibv_qp_state(qp.state).name}", qp.state, QPStateError)
        if qp.qp_type == IBV_QPT_UD and (wr.opcode not in SENDS or wr.remote.ah is None):
            self._refuse(f"a datagram is a send with an address handle, not {wr.opcode.name}", wr.opcode)
        if wr.num_sge > cap.max_send_sge:
            self._refuse(f"{wr.num_sge} elements, at most {cap.max_send_sge}", wr.num_sge)
        if inline and (wr.opcode in FETCHES or total_bytes(wr.sg) > cap.max_inline_data):
            what = f"{wr.opcode.name} of {total_bytes(wr.sg)} bytes inline"
            self._refuse(f"{what}, at most {cap.max_inline_data}", total_bytes(wr.sg))
        if qp.sends.room == 0:
            self._refuse(f"{cap.max_send_wr} sends are outstanding", wr.wr_id, code=errno.ENOMEM)

    def _refuse(
        self,
        why: str,
        value: object,
        kind: type[PyverbsRDMAError] = PyverbsRDMAError,
        code: int = errno.EINVAL,
    ) -> None:
        raise self._context.refusal(f"post_send: {why}; QP {self._qp.qp_num:#x}", value, code, kind)

    # --- what each request becomes ----------------------------------------------------------------------

    def _enter(self, wr: SendWR) -> SendEntry:
        qp, nbytes = self._qp, total_bytes(wr.sg)
        signalled = bool(qp.sq_sig_all or wr.send_flags & IBV_SEND_SIGNALED)
        entry = SendEntry(qp.sends.take_number(), wr.wr_id, wr.opcode, signalled, nbytes)
        entry.landing = tuple(wr.sg) if wr.opcode in FETCHES else ()
        entry.reliable = qp.qp_type != IBV_QPT_UD
        entry.verdict = self._verdict(wr, nbytes)
        qp.sends.push(entry)
        return entry

    def _verdict(self, wr: SendWR, nbytes: int) -> ibv_wc_status | None:
        """What this side's NIC will find wrong, or what it knows the other side will."""
        inline, fetches = bool(wr.send_flags & IBV_SEND_INLINE), wr.opcode in FETCHES
        most = (
            mtu_bytes(self._context.query_port().active_mtu)
            if self._qp.qp_type == IBV_QPT_UD
            else MAX_MESSAGE
        )
        if nbytes > most or (wr.opcode in ATOMICS and nbytes != 8):
            return IBV_WC_LOC_LEN_ERR
        if not inline and not allowed(self._context, self._qp.pd, wr.sg, write=fetches):
            return IBV_WC_LOC_PROT_ERR
        return IBV_WC_REM_INV_REQ_ERR if wr.opcode in ATOMICS and wr.remote.addr % 8 else None

    def _row(self, wr: SendWR, entry: SendEntry) -> tuple[rows.Row, Bytes | None]:
        qp, layout = self._qp, self._context.layout
        inline = bool(wr.send_flags & IBV_SEND_INLINE)
        if qp.qp_type == IBV_QPT_UD:
            return self._datagram_row(wr, entry)
        path = self._path(wr)
        if qp.state == IBV_QPS_ERR or entry.verdict not in (None, IBV_WC_REM_INV_REQ_ERR):
            return rows.refused(path, layout), None
        shape = self._context.shape(rows.shape_opcode(wr.opcode), entry.nbytes, inline, path.peer)
        row = rows.build(
            wr,
            entry.nbytes,
            entry.signalled,
            path,
            layout,
            shape,
            closed=entry.verdict is not None,
            watched=self._context.watch_writes,
        )
        return row, None if wr.opcode in FETCHES else self._payload(wr, entry)

    def _path(self, wr: SendWR) -> Path:
        """Where a request of a reliable queue pair goes."""
        return self._qp.path()

    def _datagram_row(self, wr: SendWR, entry: SendEntry) -> tuple[rows.Row, Bytes | None]:
        """A datagram, or its ghost: one that fails here or stands behind one that did is never sent."""
        qp = self._qp
        if self._failing or qp.state in (IBV_QPS_ERR, IBV_QPS_SQE):
            entry.verdict = IBV_WC_WR_FLUSH_ERR
        if entry.verdict is not None:
            self._failing = True
            return rows.local(), None
        assert wr.remote.ah is not None
        path = qp.path(wr.remote.ah.peer, wr.remote.qpn)
        inline = bool(wr.send_flags & IBV_SEND_INLINE)
        shape = self._context.shape("send", entry.nbytes, inline, path.peer)
        row = rows.datagram(wr, entry.nbytes, path, self._context.layout, shape)
        return row, self._payload(wr, entry)

    def _payload(self, wr: SendWR, entry: SendEntry) -> Bytes | None:
        """What travels; and what the memory must still hold when the request ends, if somebody asks."""
        if not entry.nbytes:
            return None
        data = gather(self._context, wr.sg)
        if self._context.canary and not wr.send_flags & IBV_SEND_INLINE:
            entry.source, entry.canary = tuple(wr.sg), self._context.device.rows.checksum(data)
        return data

    # --- out --------------------------------------------------------------------------------------------

    def _ring(self, accepted: list[tuple[SendWR, SendEntry]]) -> None:
        """Hand a list over. The NIC sees it when the doorbell rings, after the last was written."""
        if not accepted:
            return
        context, fabric = self._context, self._context.device.fabric
        made = [self._row(wr, entry) for wr, entry in accepted]
        posts, count = new_posts(len(made)), len(made)
        for i, (row, _) in enumerate(made):
            for name, value in row.items():
                posts[name][i] = value
        step = fabric.post_ps + context.device.engine.config.call_price_ps
        posts["start_ps"] += np.arange(count - 1, -1, -1) * step + fabric.doorbell_ps
        posts["user_b"] = [context.user_b(self._qp.qp_num, e.number, False) for _, e in accepted]
        first = context.post(posts, [data for _, data in made], fabric.post_ps)
        for i, (_, entry) in enumerate(accepted):
            entry.seq = first + i
        context.count(Transaction.DESCRIPTOR, count)
        inline = sum(bool(wr.send_flags & IBV_SEND_INLINE) for wr, _ in accepted)
        context.count(Transaction.WQE_FETCH, count - inline)
        context.count(Transaction.DOORBELL)
        context.device.compute(fabric.doorbell_ps, publish=False)

    def release(self) -> None:
        """Out of SQD: what waited goes out, with one doorbell."""
        held, self._held = self._held, []
        self._ring(held)

    def recover(self) -> None:
        """Out of SQE."""
        self._failing = False

    def discard(self) -> None:
        """RESET or destroy."""
        self._held, self._failing = [], False

    @property
    def waiting(self) -> int:
        """Requests accepted in SQD that have not gone out."""
        return len(self._held)
