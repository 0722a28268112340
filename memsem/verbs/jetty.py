"""Jetties: send and receive sides of URMA. See `urma` for what differs from a queue pair.

    RM   each request names its target; no order but what its flags ask for; completions as they come
    RC   bound to one target; everything in order
    UM   a datagram to any target

A request that fails suspends the jetty (nobody answered) or puts it in error (somebody refused): what is
posted after that is flushed, what is under way drains, then one record without a request says so, and
`modify_jetty` to READY starts anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from emulator.engine.posts import DONE_ALWAYS, ORD_STRONG, ORD_TRACK
from emulator.rmw import log_kind
from memsem.verbs import rows
from memsem.verbs.ah import AH
from memsem.verbs.completion import SendEntry, SendQueue
from memsem.verbs.enums import (
    IBV_EVENT_QP_FATAL,
    IBV_QPS_RTS,
    IBV_QPT_RC,
    IBV_QPT_UD,
    IBV_WC_REM_INV_REQ_ERR,
    IBV_WC_RETRY_EXC_ERR,
    IBV_WC_RNR_RETRY_EXC_ERR,
    IBV_WC_SUCCESS,
    IBV_WC_WR_FLUSH_ERR,
    ibv_wc_status,
)
from memsem.verbs.jetty_wr import (
    JettyWR,
    JfsWr,
    Sge,
    TargetJetty,
    WrFlag,
    check_local,
    check_request,
    check_target,
    import_jetty,
    local_sge,
)
from memsem.verbs.qp import QP
from memsem.verbs.qpcap import AHAttr, QPAttr, QPCap, QPInitAttr
from memsem.verbs.rows import Path
from memsem.verbs.sending import Sender
from memsem.verbs.urma import (
    ATOMIC_OPERATION,
    Context,
    CrStatus,
    JettyState,
    Jfc,
    TargetSegment,
    TransMode,
)
from memsem.verbs.wr import WC, RecvWR, SendWR

if TYPE_CHECKING:
    from emulator.posting import InboxRecord
    from emulator.transport import Bytes

__all__ = ["Jetty", "JfsWr", "Sge", "TargetJetty", "WrFlag", "import_jetty"]
_ORDERS = (0, ORD_TRACK, ORD_TRACK | ORD_STRONG)
_ALL_REMOTE = 14
_QKEY = 0


class _Unordered(SendQueue):
    """Requests that end in any order; each gives its slot back by itself."""

    def finish(self, entry: SendEntry, status: ibv_wc_status) -> bool:
        del self._open[entry.number]
        if status != IBV_WC_SUCCESS:
            self._tally.failed_sends += 1
            return True
        if entry.signalled:
            self._tally.signalled += 1
        else:
            self._tally.silent += 1
            self._taken.pop(entry.number, None)
        return entry.signalled

    def retire(self, number: int) -> None:
        self._taken.pop(number, None)


class _JettySender(Sender):
    """Rows with a token, a target of their own, and URMA's order flags."""

    def __init__(self, jetty: Jetty) -> None:
        super().__init__(jetty)
        self._jetty = jetty

    def _row(self, wr: SendWR, entry: SendEntry) -> tuple[rows.Row, Bytes | None]:
        assert isinstance(wr, JettyWR)
        jetty, request = self._jetty, wr.urma
        if jetty.mode == TransMode.RM:
            jetty.note_order(entry.number, request.flag.comp_order)
            if jetty.jetty_state != JettyState.READY:
                entry.verdict = IBV_WC_WR_FLUSH_ERR
            if entry.verdict is not None and entry.verdict is not IBV_WC_REM_INV_REQ_ERR:
                return rows.local(), None
        row, data = super()._row(wr, entry)
        if (
            request.remote is not None
            and isinstance(request.remote.seg, TargetSegment)
            and "region_tag" in row
        ):
            row["region_tag"] |= request.remote.seg.token << 32
        if request.opcode in ATOMIC_OPERATION and "log_kind" in row:
            operation = ATOMIC_OPERATION[request.opcode]
            row["log_kind"] = log_kind(operation, 8)
        if jetty.mode == TransMode.RM:
            row["order"] = _ORDERS[request.flag.place_order]
            row["rd_below"] = int(request.flag.fence)
            row["done"] = DONE_ALWAYS
        return row, data

    def _path(self, wr: SendWR) -> Path:
        assert isinstance(wr, JettyWR)
        target = wr.urma.tjetty
        if self._jetty.mode == TransMode.RC or target is None:
            return self._jetty.path()
        return self._jetty.path(target.rank, target.jetty_id)


class Jetty(QP):
    """A jetty, ready when it is made.

    Args:
        context: the device. mode: `TransMode`. jfc: records of requests and, unless `recv_jfc`, of receives.
        depth, recv_depth: most requests and receives outstanding. max_sge: most local elements of one.
        rnr_retry: 0 to 7, 7 for ever. err_timeout: code as `QPAttr.timeout`. min_rnr_timer: code.

    Attributes:
        id: what another rank needs to import the jetty. jetty_state: `JettyState`.
    """

    def __init__(
        self,
        context: Context,
        mode: TransMode,
        jfc: Jfc,
        recv_jfc: Jfc | None = None,
        depth: int = 64,
        recv_depth: int = 64,
        max_sge: int = 4,
        rnr_retry: int = 7,
        err_timeout: int = 1,
        min_rnr_timer: int = 1,
    ) -> None:
        context.charge("create_jetty")
        self.mode, self._comp_ordered, self._told = TransMode(mode), set[int](), False
        cap = QPCap(depth, recv_depth, max_sge, max_sge, context.max_inline)
        kind = IBV_QPT_UD if mode == TransMode.UM else IBV_QPT_RC
        recv_jfc = jfc if recv_jfc is None else recv_jfc
        super().__init__(context.domain, QPInitAttr(kind, None, jfc, recv_jfc, None, cap, 0))
        self._sender = _JettySender(self)
        if mode == TransMode.RM:
            self.sends = _Unordered(depth, context.tally)
        self.attr = QPAttr(
            qp_access_flags=_ALL_REMOTE,
            timeout=err_timeout,
            retry_cnt=7,
            rnr_retry=rnr_retry,
            min_rnr_timer=min_rnr_timer,
            max_rd_atomic=16,
        )
        self._ready()

    def _fresh(self) -> None:
        self._stream = self.context.new_stream() if self.mode == TransMode.RC else 0

    def _ready(self) -> None:
        self.jetty_state, self._told, self.state = JettyState.READY, False, IBV_QPS_RTS
        self._publish()

    @property
    def id(self) -> tuple[int, int]:
        """What another rank needs to import the jetty: rank and queue pair number."""
        return self.context.rank, self.qp_num

    def bind_jetty(self, target: TargetJetty) -> None:
        """RC: send to this jetty. Raises: PyverbsRDMAError, another mode."""
        if self.mode != TransMode.RC:
            raise self.context.refusal(f"bind_jetty: a jetty in mode {self.mode.name} has no peer", target)
        check_target(self.context, target)
        self.context.called()
        self.attr.ah_attr, self.attr.dest_qp_num = AHAttr(target.rank + 1), target.jetty_id

    def post_jetty_send_wr(self, *wrs: JfsWr) -> None:
        """Post requests with one doorbell; see `QP.post_send`.

        Raises:
            PyverbsRDMAError: no target (RM, UM), not bound (RC), a one-sided datagram, queue full.
        """
        chain: SendWR | None = None
        for wr in reversed(wrs):
            check_request(self.context, wr)
            one = JettyWR(wr)
            if self.mode == TransMode.RC:
                missing = self.attr.ah_attr.dlid == 0
            else:
                missing = wr.tjetty is None
                if wr.tjetty is not None and self.mode == TransMode.UM:
                    one.set_wr_ud(AH(self.pd, AHAttr(wr.tjetty.rank + 1)), wr.tjetty.jetty_id, _QKEY)
            if missing:
                raise self.context.refusal("post_jetty_send_wr: no target jetty", wr.user_ctx)
            one.next_wr, chain = chain, one
        if chain is not None:
            self.post_send(chain)

    def post_jetty_recv_wr(self, user_ctx: int, *local: Sge) -> None:
        """Post a receive; see `QP.post_recv`."""
        check_local(self.context, local)
        self.post_recv(RecvWR(user_ctx, len(local), [local_sge(sge) for sge in local]))

    def modify_jetty(self, state: JettyState) -> None:
        """READY after everything has drained, or ERROR: receives are flushed, what is under way drains.

        Raises:
            PyverbsRDMAError: requests are outstanding, or another state is asked for.
        """
        self.context.called()
        self.context.observe()
        if state == JettyState.ERROR:
            self._stop(JettyState.ERROR)
            self._fail()
            self._tell_done(self.context.now_ps)
            return
        if state != JettyState.READY or self.sends.outstanding:
            raise self.context.refusal(
                f"modify_jetty: to {JettyState(state).name} with {self.sends.outstanding} outstanding",
                state,
            )
        if self.mode == TransMode.RC and self.jetty_state != JettyState.READY:
            self.context.device.engine.retire(self._stream)
            self._fresh()
        self._sender.recover()
        self._ready()

    # --- completions --------------------------------------------------------------------------------------

    def note_order(self, number: int, comp_order: bool) -> None:
        """A request goes out whose completion may have to wait for those before it."""
        if comp_order:
            self._comp_ordered.add(number)

    def on_sent(self, number: int, record: InboxRecord) -> None:
        if self.mode != TransMode.RM:
            super().on_sent(number, record)
            return
        self._early[number] = record
        for early in sorted(self._early, key=lambda n: self._early[n].key):
            if early not in self._comp_ordered:
                self._end_send(early, self._early.pop(early))
        while (first := self.sends.first()) is not None and first.number in self._early:
            self._comp_ordered.discard(first.number)
            self._end_send(first.number, self._early.pop(first.number))

    def _end_send(self, number: int, record: InboxRecord) -> None:
        super()._end_send(number, record)
        self._tell_done(record.time_ps)

    def _send_failed(self, status: ibv_wc_status) -> None:
        if status == IBV_WC_WR_FLUSH_ERR:
            return
        nobody = status in (IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR)
        self._stop(JettyState.SUSPENDED if nobody else JettyState.ERROR)
        if self.mode != TransMode.RM:
            super()._send_failed(status)

    def _stop(self, state: JettyState) -> None:
        if self.jetty_state == JettyState.READY:
            self.jetty_state = state

    def _tell_done(self, time_ps: int) -> None:
        """Everything has drained: say so once."""
        stopped = self.jetty_state in (JettyState.SUSPENDED, JettyState.ERROR)
        if stopped and not self._told and self.sends.outstanding == 0:
            self._told = True
            suspended = self.jetty_state == JettyState.SUSPENDED
            status = CrStatus.WR_SUSPEND_DONE if suspended else CrStatus.WR_FLUSH_ERR_DONE
            wc = WC(vendor_err=int(status), qp_num=self.qp_num, time_ps=time_ps)
            self.scq.push(wc, lambda: None, counted=False)

    def break_down(self) -> None:
        """See `QP.break_down`; of any mode."""
        self.context.report(IBV_EVENT_QP_FATAL, self)
        self._stop(JettyState.ERROR)
        super()._fail_later()

    def _fail_later(self) -> None:
        """A bad message fails its receive, not a jetty that many send to."""
        if self.mode != TransMode.RM:
            self._stop(JettyState.ERROR)
            super()._fail_later()

    def on_refused(self, record: InboxRecord) -> None:
        if self.mode == TransMode.RC:
            super().on_refused(record)
            self._tell_done(record.time_ps)
