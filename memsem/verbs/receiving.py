"""Posting receives, and landing what came: shared by queue pairs and shared receive queues."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from emulator.engine.posts import DONE_ALWAYS, K_CLOSE, K_RECV, Posts, new_posts
from emulator.fabric import Transaction
from memsem.verbs.completion import RecvEntry, RecvQueue
from memsem.verbs.context import Context
from memsem.verbs.enums import IBV_WC_LOC_PROT_ERR
from memsem.verbs.numbers import check_elements, check_whole, wrong
from memsem.verbs.pd import PD
from memsem.verbs.users import QKEY_MASK, message_tag
from memsem.verbs.wr import SGE, RecvWR, total_bytes

if TYPE_CHECKING:
    from emulator.transport import Bytes

NO_CAPACITY = 0
"""Capacity of a receive that may not be written: a message of any byte is too long for it."""


def allowed(context: Context, pd: PD, sg: Sequence[SGE], write: bool) -> bool:
    """Whether every element lies in a region of `pd` that local work may read (or write)."""
    for sge in sg:
        mr = context.mrs.get((sge.lkey >> 12) - 1)
        if mr is None or mr.lkey != sge.lkey or not mr.covers(pd, sge.addr, sge.length, write):
            return False
    return True


def gather(context: Context, sg: Sequence[SGE]) -> Bytes:
    """Return the bytes of a scatter/gather list, uint8; a copy."""
    heap = context.device.heap
    return np.concatenate([np.empty(0, np.uint8), *(heap[sge.addr : sge.addr + sge.length] for sge in sg)])


def scatter(context: Context, sg: Sequence[SGE], data: Bytes) -> None:
    """Write bytes over a scatter/gather list, from its beginning."""
    at = 0
    for sge in sg:
        piece = data[at : at + sge.length]
        context.device.heap[sge.addr : sge.addr + piece.size] = piece
        at += piece.size


def post_receives(
    context: Context,
    pd: PD,
    wrs: RecvWR,
    bad_wr: RecvWR | None,
    queue: RecvQueue,
    number: int,
    max_sge: int,
    *,
    qkey: int | None = None,
    header: int = 0,
    flush: bool = False,
) -> None:
    """Post a list of receives to queue `number`.

    Args:
        bad_wr: filled with the one that was refused; those before it are posted.
        qkey: messages with another do not match. header: bytes before the payload (UD).
        flush: they end at once (the queue pair is in ERR).

    Raises:
        PyverbsRDMAError: no room (ENOMEM), too many elements (EINVAL). PyverbsUserError: no numbers.
    """
    if not isinstance(wrs, RecvWR):
        raise wrong(context, f"post_recv: {wrs!r} is no receive work request", wrs)
    entries: list[RecvEntry] = []
    try:
        for wr in wrs:
            check_whole(context, "post_recv: wr_id", [wr.wr_id])
            check_elements(context, "post_recv", wr.sg)
            if queue.room <= 0:
                raise context.refusal(
                    f"post_recv: {queue.depth} receives are outstanding", wr.wr_id, errno.ENOMEM
                )
            if wr.num_sge > max_sge:
                raise context.refusal(f"post_recv: {wr.num_sge} elements, at most {max_sge}", wr.wr_id)
            verdict = None if allowed(context, pd, wr.sg, write=True) else IBV_WC_LOC_PROT_ERR
            entries.append(RecvEntry(queue.take_number(), wr.wr_id, tuple(wr.sg), verdict))
            queue.push(entries[-1])
    except Exception:
        if bad_wr is not None:
            bad_wr.wr_id, bad_wr.sg, bad_wr.next_wr = wr.wr_id, wr.sg, wr.next_wr
        raise
    finally:
        if entries:
            _hand_over(context, entries, queue, number, qkey, header, flush)


def _hand_over_held(
    context: Context,
    entries: list[RecvEntry],
    queue: RecvQueue,
    number: int,
    qkey: int | None,
    header: int,
) -> None:
    """Hand over what had to wait, but for what RESET or destroy has discarded meanwhile."""
    if left := [entry for entry in entries if queue.has(entry.number)]:
        _hand_over(context, left, queue, number, qkey, header, False)


def _hand_over(
    context: Context,
    entries: list[RecvEntry],
    queue: RecvQueue,
    number: int,
    qkey: int | None,
    header: int,
    flush: bool,
) -> None:
    if (faults := context.nic_faults) is not None and not flush:
        again = partial(_hand_over_held, context, entries, queue, number, qkey, header)
        if faults.holds(again):
            return
    capacities = [NO_CAPACITY if e.verdict else max(0, total_bytes(e.sg) - header) for e in entries]
    posts = new_posts(
        len(entries),
        kind=K_RECV,
        context=context.match_context(number),
        tag=message_tag(0, qkey or 0),
        mask=0 if qkey is None else QKEY_MASK,
        capacity=capacities,
        user_b=[context.user_b(number, e.number, True) for e in entries],
    )
    if flush:
        posts = _with_close(posts, context.match_context(number))
    context.count(Transaction.DESCRIPTOR, len(entries))
    context.post(posts, step_ps=context.device.fabric.post_ps)


def _with_close(posts: Posts, match: int) -> Posts:
    """The receives, and the end of all receives of their queue."""
    close = new_posts(1, kind=K_CLOSE, context=match, done=DONE_ALWAYS)
    return np.concatenate([posts, close])
