"""The life of a queue pair: what it is made with, its states, how it fails and how it ends.

Every change of state is seen by the peers in virtual time: the state word is written, queues are closed. ERR
flushes every outstanding request; RESET and `close` end them without completions and take back those nobody
polled.

Source: ibv_create_qp(3), ibv_modify_qp(3), ibv_destroy_qp(3); pyverbs/qp.pyx.
"""

from __future__ import annotations

import dataclasses
import errno
from typing import TYPE_CHECKING, cast

from emulator.engine.posts import DONE_ALWAYS, DONE_NEVER, K_CLOSE, new_posts
from memsem.verbs.completion import RecvQueue, SendQueue
from memsem.verbs.enums import (
    IBV_EVENT_QP_FATAL,
    IBV_EVENT_QP_LAST_WQE_REACHED,
    IBV_EVENT_SQ_DRAINED,
    IBV_QP_CUR_STATE,
    IBV_QP_STATE,
    IBV_QPS_ERR,
    IBV_QPS_INIT,
    IBV_QPS_RESET,
    IBV_QPS_RTR,
    IBV_QPS_RTS,
    IBV_QPS_SQD,
    IBV_QPS_SQE,
    IBV_QPT_RC,
    IBV_QPT_UD,
    ibv_qp_state,
    ibv_qp_type,
)
from memsem.verbs.keys import RNR_TIMER_PS, QPNumber, decode_qp, state_value
from memsem.verbs.numbers import check_whole, member
from memsem.verbs.pd import PD
from memsem.verbs.qp_attr import apply_attributes, check_values
from memsem.verbs.qp_state import check, is_receiving, required_mask
from memsem.verbs.qpcap import QPAttr, QPInitAttr
from memsem.verbs.resource import Resource
from memsem.verbs.rows import Path
from memsem.verbs.sending import Sender
from memsem.verbs.verbs_error import QPStateError
from memsem.verbs.wr import FETCHES

if TYPE_CHECKING:
    from emulator.posting import InboxRecord
    from memsem.verbs.cq import CQ
    from memsem.verbs.qp import QP

GRH_BYTES = 40
"""Header in front of a datagram's payload in the receive buffer."""


class QueuePair(Resource):
    """A queue pair.

    Args:
        pd: the protection domain. init_attr: type, completion queues, sizes.
        qp_attr: if given, go to INIT (RC) or RTS (UD) with these.

    Attributes:
        qp_num: its number, 24 bits. qp_type. state, qp_state: `ibv_qp_state`. cap: sizes.

    Raises:
        PyverbsRDMAError: no completion queue, sizes out of range (EINVAL), no slot (ENOMEM).
    """

    def __init__(self, pd: PD, init_attr: QPInitAttr, qp_attr: QPAttr | None = None) -> None:
        self.pd, self.context, self.init_attr = pd, pd.context, init_attr
        scq, rcq = init_attr.scq, init_attr.rcq
        if scq is None or rcq is None:
            raise pd.context.refusal("QP: a send and a receive completion queue are needed", None)
        self.scq: CQ = scq
        self.rcq: CQ = rcq
        self.qp_type = member(pd.context, "QP: type", ibv_qp_type, init_attr.qp_type)
        self.cap, self.srq, self.sq_sig_all = init_attr.cap, init_attr.srq, bool(init_attr.sq_sig_all)
        self._check_cap()
        taken = self.context.qps.take(cast("QP", self))
        if taken is None:
            raise self.context.refusal("QP: all are in use; raise max_qp of the Context", 0, errno.ENOMEM)
        self.qp_num = QPNumber(taken[0], self.srq.slot if self.srq else -1, taken[1]).encode()
        self._number = decode_qp(self.qp_num)  # the generation as senders know it
        self.state = IBV_QPS_RESET
        self.attr = QPAttr(qp_state=IBV_QPS_RESET)
        self.sends = SendQueue(self.cap.max_send_wr, self.context.tally)
        self.receives = RecvQueue(self.cap.max_recv_wr, self.context.tally)
        self._sender = Sender(self)
        self._early: dict[int, InboxRecord] = {}
        self._stream = self._word = 0
        self._fresh()
        for cq in dict.fromkeys((scq, rcq)):
            cq.on_overrun.append(self._on_overrun)
        super().__init__(pd, *dict.fromkeys((scq, rcq)), *([init_attr.srq] if init_attr.srq else []))
        if qp_attr is not None:
            (self.to_rts if self.qp_type == IBV_QPT_UD else self.to_init)(qp_attr)

    def _check_cap(self) -> None:
        cap, limits = self.cap, self.context.query_device()
        check_whole(self.context, "QP: a size of its cap", dataclasses.astuple(cap))
        least = min(dataclasses.astuple(cap))
        if (
            least < 0
            or max(cap.max_send_wr, cap.max_recv_wr) > limits.max_qp_wr
            or max(cap.max_send_sge, cap.max_recv_sge) > limits.max_sge
            or cap.max_inline_data > self.context.max_inline
        ):
            raise self.context.refusal(f"QP: {cap} is beyond {limits}, inline {self.context.max_inline}", cap)

    def _fresh(self) -> None:
        """A new stream: RC requests of it are carried out and fail together."""
        self._stream = self.context.new_stream() if self.qp_type == IBV_QPT_RC else 0

    @property
    def qp_state(self) -> ibv_qp_state:
        """The state as of the last look at records."""
        return self.state

    @property
    def outstanding_sends(self) -> int:
        """Send requests that were posted and whose completions have not come."""
        return self.sends.outstanding

    @property
    def outstanding_recvs(self) -> int:
        """Receive requests that were posted and whose completions have not come."""
        return self.receives.outstanding

    # --- states -----------------------------------------------------------------------------------------

    def to_init(self, qp_attr: QPAttr) -> None:
        """RESET → INIT. Raises: QPStateError."""
        self._to(qp_attr, IBV_QPS_RESET, IBV_QPS_INIT)

    def to_rtr(self, qp_attr: QPAttr) -> None:
        """INIT → RTR, by way of INIT from RESET. Raises: QPStateError."""
        if self.state != IBV_QPS_INIT:
            self.to_init(qp_attr)
        self._to(qp_attr, IBV_QPS_INIT, IBV_QPS_RTR)

    def to_rts(self, qp_attr: QPAttr) -> None:
        """RTR → RTS, by way of INIT and RTR from RESET. Raises: QPStateError."""
        if self.state != IBV_QPS_RTR:
            self.to_rtr(qp_attr)
        self._to(qp_attr, IBV_QPS_RTR, IBV_QPS_RTS)

    def _to(self, qp_attr: QPAttr, old: ibv_qp_state, new: ibv_qp_state) -> None:
        qp_attr.qp_state = new
        self.modify(qp_attr, required_mask(self.qp_type, old, new))

    def query(self, attr_mask: int = 0) -> tuple[QPAttr, QPInitAttr]:
        """Return the attributes as of now: an observation. All are returned, whatever the mask."""
        self.context.called()
        self.context.observe()
        attr = dataclasses.replace(self.attr, qp_state=self.state, cur_qp_state=self.state, cap=self.cap)
        attr.sq_draining = int(self.state == IBV_QPS_SQD and self._draining > 0)
        return attr, self.init_attr

    def modify(self, qp_attr: QPAttr, comp_mask: int) -> None:
        """Change the state, attributes, or both, now: an observation.

        Args:
            qp_attr, comp_mask: values, and which of them count (`ibv_qp_attr_mask`).

        Raises:
            QPStateError: no such transition, or not with these attributes. PyverbsRDMAError: bad values.
        """
        context = self.context
        check_whole(context, "modify: mask", [comp_mask])
        new = self.state
        if comp_mask & IBV_QP_STATE:
            new = member(context, "modify: state", ibv_qp_state, qp_attr.qp_state)
        context.called()
        context.observe()
        old, new = self.state, new if comp_mask & IBV_QP_STATE else self.state
        why = check(self.qp_type, old, new, comp_mask)
        if why is None and comp_mask & IBV_QP_CUR_STATE and qp_attr.cur_qp_state != old:
            why = f"it is in {old.name}, not in {ibv_qp_state(qp_attr.cur_qp_state).name}"
        if why is not None:
            raise context.refusal(f"modify: {why}; QP {self.qp_num:#x}", new, kind=QPStateError)
        check_values(context, qp_attr, comp_mask)
        apply_attributes(self.attr, qp_attr, comp_mask)
        self._enter(old, new)

    def _enter(self, old: ibv_qp_state, new: ibv_qp_state) -> None:
        if new == IBV_QPS_ERR:
            self._fail()
            return
        self.state = new
        if new == IBV_QPS_RESET:
            self._end()
            self.attr = QPAttr(qp_state=IBV_QPS_RESET)
            self._fresh()
            return
        self._publish()
        if new == IBV_QPS_RTS and self.context.nic_faults is not None:
            self.context.nic_faults.is_ready(cast("QP", self))
        if (old, new) == (IBV_QPS_SQD, IBV_QPS_RTS):
            self._sender.release()
        elif (old, new) == (IBV_QPS_SQE, IBV_QPS_RTS):
            self._sender.recover()
        elif (old, new) == (IBV_QPS_RTS, IBV_QPS_SQD):
            self._report_drained()

    def _publish(self) -> None:
        """Write the state word that senders find, if it has changed."""
        rc = self.qp_type == IBV_QPT_RC
        access = self.attr.qp_access_flags if rc else 0
        rnr_ps = RNR_TIMER_PS[self.attr.min_rnr_timer] if rc else 0
        value = state_value(self._number.generation, is_receiving(self.state), access, rnr_ps)
        if value != self._word:
            self._word = value
            self.context.post_local({self.context.layout.qp_word(self._number.slot): value})

    def _fail(self) -> None:
        """Go to ERR: nobody is answered, every outstanding request is flushed."""
        self.state = IBV_QPS_ERR
        self._publish()
        self._close_queues(DONE_ALWAYS)
        self._sender.release()
        if self.srq is not None:
            self.context.report(IBV_EVENT_QP_LAST_WQE_REACHED, self)

    def _close_queues(self, done: int) -> None:
        context = 0 if self.srq is not None else self.context.match_context(self.qp_num)
        if self._stream or context:
            self.context.post(
                new_posts(1, kind=K_CLOSE, stream=self._stream, context=context, done=done, user_b=0)
            )

    def _end(self) -> None:
        """RESET or destroy: nobody is answered, nothing completes any more, completions are taken back."""
        self._publish()
        self._close_queues(DONE_NEVER)
        if self._stream:
            self.context.device.engine.retire(self._stream)
        for entry in self.sends.discard():
            if entry.opcode in FETCHES and entry.seq >= 0:
                self._abandon(entry.seq)
        self.receives.discard()
        self._sender.discard()
        self._early.clear()
        for cq in dict.fromkeys((self.scq, self.rcq)):
            cq.forget(self.qp_num)

    def _abandon(self, seq: int) -> None:
        """A read or atomic nobody waits for any more: its bytes are not wanted."""
        memory = self.context.device.memory
        if memory.is_expected(seq):
            memory.finish_get(seq, wanted=False)

    def _close(self) -> None:
        self.context.called()
        self.state = IBV_QPS_RESET
        self._end()
        self.context.qps.give(self._number.slot)
        for cq in dict.fromkeys((self.scq, self.rcq)):
            cq.on_overrun.remove(self._on_overrun)

    # --- for the parts of a queue pair -------------------------------------------------------------------

    def path(self, peer: int | None = None, dest_qp: int = 0) -> Path:
        """Return where a request goes: to the connected peer, or to a datagram's destination."""
        if peer is None:
            connected = self.attr.ah_attr.dlid > 0
            peer = self.attr.ah_attr.dlid - 1 if connected else self.context.rank
            dest_qp = self.attr.dest_qp_num
        alive = not self.context.device.dead[peer]
        return Path(peer, dest_qp, self.qp_num, self._stream, self.attr, alive)

    def _on_overrun(self) -> None:
        if self.state not in (IBV_QPS_RESET, IBV_QPS_ERR):
            self.context.report(IBV_EVENT_QP_FATAL, self)
            self._fail()

    @property
    def _draining(self) -> int:
        return self.sends.outstanding - self._sender.waiting

    def _report_drained(self) -> None:
        if self.attr.en_sqd_async_notify and self._draining == 0:
            self.attr.en_sqd_async_notify = 0
            self.context.report(IBV_EVENT_SQ_DRAINED, self)
