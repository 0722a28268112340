"""Shared receive queues: receives that several queue pairs consume.

Source: ibv_create_srq(3), ibv_modify_srq(3); pyverbs/srq.pyx.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emulator.engine.posts import DONE_NEVER, K_CLOSE, new_posts
from memsem.verbs.completion import RecvQueue
from memsem.verbs.enums import IBV_EVENT_SRQ_LIMIT_REACHED, IBV_SRQ_LIMIT, IBV_SRQ_MAX_WR
from memsem.verbs.numbers import check_whole
from memsem.verbs.pd import PD
from memsem.verbs.receiving import post_receives
from memsem.verbs.resource import Resource
from memsem.verbs.users import SRQ_QUEUE, decode_message
from memsem.verbs.wr import RecvWR

if TYPE_CHECKING:
    from emulator.posting import InboxRecord
    from emulator.transport import Bytes


@dataclass
class SrqAttr:
    """Sizes: most receives, most elements of one, and the number of receives below which an event comes."""

    max_wr: int = 100
    max_sge: int = 1
    srq_limit: int = 0


@dataclass
class SrqInitAttr:
    """What a shared receive queue is made with."""

    attr: SrqAttr


class SRQ(Resource):
    """A shared receive queue.

    Args:
        pd: the protection domain. attr: sizes; the limit is armed with `modify`.

    Raises:
        PyverbsRDMAError: no slot (ENOMEM), bad sizes (EINVAL).
    """

    def __init__(self, pd: PD, attr: SrqInitAttr) -> None:
        self.pd, self.context = pd, pd.context
        self.attr = SrqAttr(attr.attr.max_wr, attr.attr.max_sge)
        limits = self.context.query_device()
        check_whole(self.context, "SRQ: max_wr or max_sge", (self.attr.max_wr, self.attr.max_sge))
        if not (1 <= self.attr.max_wr <= limits.max_qp_wr and 0 <= self.attr.max_sge <= limits.max_sge):
            raise self.context.refusal(f"SRQ: {self.attr} is beyond {limits}", self.attr)
        taken = self.context.srqs.take(self)
        if taken is None:
            raise self.context.refusal("SRQ: all are in use", self.context.srqs.size, errno.ENOMEM)
        self.slot = taken[0]
        self.receives = RecvQueue(self.attr.max_wr, self.context.tally)
        super().__init__(pd)

    @property
    def outstanding(self) -> int:
        """Receives that wait for a message."""
        return self.receives.outstanding

    def get_srq_num(self) -> int:
        """Return its number."""
        return self.slot

    def query(self) -> SrqAttr:
        """Return its attributes; `srq_limit` is 0 when not armed."""
        return SrqAttr(self.attr.max_wr, self.attr.max_sge, self.attr.srq_limit)

    def modify(self, attr: SrqAttr, comp_mask: int) -> None:
        """Arm the limit (IBV_SRQ_LIMIT). Raises: PyverbsRDMAError, the size cannot be changed."""
        check_whole(self.context, "SRQ: mask or srq_limit", (comp_mask, attr.srq_limit))
        if comp_mask & IBV_SRQ_MAX_WR or comp_mask & ~IBV_SRQ_LIMIT:
            raise self.context.refusal("SRQ: only IBV_SRQ_LIMIT can be modified", comp_mask)
        if not 0 <= attr.srq_limit <= self.attr.max_wr:
            raise self.context.refusal(f"SRQ: a limit is 0 to {self.attr.max_wr}", attr.srq_limit)
        self.context.called()
        self.attr.srq_limit = attr.srq_limit

    def post_recv(self, wr: RecvWR, bad_wr: RecvWR | None = None) -> None:
        """Post receives; see `QP.post_recv`."""
        self.context.called()
        post_receives(
            self.context, self.pd, wr, bad_wr, self.receives, SRQ_QUEUE | self.slot, self.attr.max_sge
        )

    def on_received(self, number: int, record: InboxRecord, payload: Bytes | None) -> None:
        """A receive of mine was consumed: the queue pair the message was for completes it."""
        qp = self.context.find_qp(decode_message(record.value).dest_qp)
        if qp is not None:
            qp.on_received(self.receives, number, record, payload)
        elif self.receives.pop(number) is not None:
            self.receives.lose()
        if self.receives.outstanding < self.attr.srq_limit:
            self.attr.srq_limit = 0
            self.context.report(IBV_EVENT_SRQ_LIMIT_REACHED, self)

    def _close(self) -> None:
        self.receives.discard()
        self.context.post(
            new_posts(
                1, kind=K_CLOSE, context=self.context.match_context(SRQ_QUEUE | self.slot), done=DONE_NEVER
            )
        )
        self.context.srqs.give(self.slot)
