"""Completion queues: completions in the order they happened, polled or waited for.

A queue holds `cqe` completions. One that finds no room is lost, the queue is of no use any more and every
queue pair on it fails: whether it finds room is decided in virtual time, by the completion's own time and the
polls before it.

Source: ibv_create_cq(3), ibv_poll_cq(3), ibv_req_notify_cq(3), ibv_get_cq_event(3).
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from emulator.fabric import Transaction
from memsem.verbs.context import Context
from memsem.verbs.enums import IBV_EVENT_CQ_ERR, IBV_WC_SUCCESS
from memsem.verbs.numbers import check_whole, wrong
from memsem.verbs.resource import Resource
from memsem.verbs.verbs_error import CQOverrunError
from memsem.verbs.wr import WC


class CompChannel(Resource):
    """Where completion events of queues arrive."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.context = context
        self.events: deque[CQ] = deque()

    def get_cq_event(self, expected_cq: CQ | None = None) -> CQ:
        """Sleep until a queue that was armed has a completion; returns that queue.

        Raises:
            PyverbsRDMAError: the event is another queue's than `expected_cq`. DeadlockError: none can come.
        """
        self.context.called()
        self.context.observe()
        while not self.events:
            self.context.sleep()
        cq = self.events.popleft()
        if expected_cq is not None and cq is not expected_cq:
            raise self.context.refusal("CompChannel: the event is another queue's", cq)
        return cq


class _Entry(NamedTuple):
    wc: WC
    on_poll: Callable[[], None]


class CQ(Resource):
    """A completion queue.

    Args:
        context: the device. cqe: most completions it holds, at least 1.
        cq_context: anything of the caller's. channel: where events go. comp_vector: without effect.

    Raises:
        PyverbsRDMAError: `cqe` out of range.
    """

    def __init__(
        self,
        context: Context,
        cqe: int,
        cq_context: object = None,
        channel: CompChannel | None = None,
        comp_vector: int = 0,
    ) -> None:
        self.context, self.cqe, self.cq_context, self._channel = context, cqe, cq_context, channel
        check_whole(context, "CQ: cqe", [cqe])
        if not 1 <= cqe <= context.query_device().max_cqe:
            raise context.refusal(f"CQ: cqe is 1 to {context.query_device().max_cqe}, got {cqe}", cqe)
        self._entries: deque[_Entry] = deque()
        self._armed: bool | None = None
        self.overrun = False
        self.on_overrun: list[Callable[[], None]] = []
        super().__init__(*([context] if channel is None else [context, channel]))

    def __len__(self) -> int:
        return len(self._entries)

    def __bool__(self) -> bool:
        return True

    def push(
        self, wc: WC, on_poll: Callable[[], None], solicited: bool = False, counted: bool = True
    ) -> None:
        """Write a completion; `on_poll` runs when it is polled. Called in key order.

        `counted`: it is a request's; False for a record that belongs to none (URMA).
        """
        faults = self.context.nic_faults
        if faults is not None and counted and faults.spoils(self, wc, on_poll, solicited):
            return
        self.context.count(Transaction.COMPLETION)
        self.context.tally.completions += counted
        if self.overrun or len(self._entries) >= self.cqe:
            self.context.tally.lost += counted
            self._fail()
            return
        self._entries.append(_Entry(wc, on_poll))
        wanted = self._armed is False or (self._armed and (solicited or wc.status != IBV_WC_SUCCESS))
        if wanted and self._channel is not None:
            self._armed = None
            self._channel.events.append(self)

    def _fail(self) -> None:
        if self.overrun:
            return
        self.overrun = True
        self.context.report(IBV_EVENT_CQ_ERR, self)
        for fail in self.on_overrun:
            self.context.later(fail)

    def poll(self, num_entries: int = 1) -> tuple[int, list[WC]]:
        """Take up to `num_entries` completions; returns how many, and them.

        An observation. Without a completion the clock moves to the next poll tick that may bring one.

        Raises:
            CQOverrunError: the queue has lost completions. PyverbsUserError: no such number of them.
        """
        self._check_count("poll", num_entries)
        self.context.called()
        if self._entries or self.overrun:
            self.context.observe()
        else:
            self.context.probe()
        return self._take(num_entries)

    def wait(self, count: int = 1) -> list[WC]:
        """Sleep until `count` completions are there, and take them. (Not in ibverbs: what a program makes of
        `req_notify`, `get_cq_event` and `poll`.)

        Raises:
            CQOverrunError: the queue has lost completions. DeadlockError: they cannot come. PyverbsUserError:
            more than the queue holds.
        """
        self._check_count("wait", count, self.cqe)
        self.context.called()
        self.context.observe()
        while len(self._entries) < count and not self.overrun:
            self.context.sleep()
        return self._take(count)[1]

    def _check_count(self, call: str, count: int, most: int = 1 << 31) -> None:
        check_whole(self.context, f"CQ: {call} for", [count])
        if self.closed or not 0 <= count <= most:
            why = "it is closed" if self.closed else f"{count} completions; 0 to {most} can be asked for"
            raise wrong(self.context, f"CQ: {call}: {why}", count)

    def _take(self, count: int) -> tuple[int, list[WC]]:
        if self.overrun:
            raise CQOverrunError(
                f"CQ: more than {self.cqe} completions were waiting, some are lost "
                f"(rank {self.context.rank}, {self.context.now_ps} ps)",
                errno.EIO,
                rank=self.context.rank,
                now_ps=self.context.now_ps,
                value=self.cqe,
            )
        taken = [self._entries.popleft() for _ in range(min(count, len(self._entries)))]
        for entry in taken:
            entry.on_poll()
        return len(taken), [entry.wc for entry in taken]

    def req_notify(self, solicited_only: bool = False) -> None:
        """Ask for one event at the next completion (or the next solicited or failed one)."""
        self.context.called()
        self._armed = bool(solicited_only)

    def forget(self, qp_num: int) -> None:
        """Drop what a destroyed queue pair has in the queue."""
        self._entries = deque(entry for entry in self._entries if entry.wc.qp_num != qp_num)
