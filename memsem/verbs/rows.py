"""From a work request to the rows the engine gets: which kind, which guards, which order. Pure.

    SEND            K_SEND  state guard; taken by a receive, else "receiver not ready"
    WRITE           K_PUT   state and region guard, then bytes
    WRITE with imm  K_SEND  the same guards, takes a receive, then bytes
    READ, atomics   K_GET   state and region guard; at most max_rd_atomic under way
    refused here    K_WORD  at the peer, under a region nobody opens: fails in its turn, moves nothing

All of an RC queue pair are one stream to its peer: carried out and completed in post order, flushed when one
fails. UD has no stream: K_SEND, complete when it has left, whatever becomes of it; what is refused here is a
K_LOCAL.

Source: InfiniBand specification 1.5, 9.4 to 9.9; ibv_post_send(3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from emulator.engine.api import ATOMIC_ADD, CAS, LOG_PUT, LOG_SNAPSHOT, NO_OP
from emulator.engine.posts import (
    DONE_ALWAYS,
    DONE_ON_ERROR,
    DONE_SENT,
    K_GET,
    K_LOCAL,
    K_PUT,
    K_SEND,
    K_WORD,
    ORD_STREAM,
)
from emulator.fabric import Shape
from emulator.rmw import log_kind
from memsem.verbs.enums import (
    IBV_ACCESS_REMOTE_ATOMIC,
    IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE,
    IBV_SEND_FENCE,
    IBV_SEND_SOLICITED,
    IBV_WR_ATOMIC_CMP_AND_SWP,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE_WITH_IMM,
)
from memsem.verbs.keys import Layout, Region, decode_qp, state_masks, timeout_ps
from memsem.verbs.qpcap import QPAttr
from memsem.verbs.users import SRQ_QUEUE, Message, match_context, message_tag
from memsem.verbs.wr import ATOMICS, FETCHES, SENDS, WITH_IMM, WRITES, SendWR

_NOTE_PLACED, _NOTE_REFUSED = 1, 2
"""Whom to tell what: the other side of a watched write when it is placed; of everything when it refuses, for
then its queue pair fails, too."""
_FARTHEST = 1 << 60
Row = dict[str, Any]


@dataclass(frozen=True)
class Path:
    """Where a queue pair sends: the peer's rank and queue pair number, and how.

    Attributes:
        stream: of an RC queue pair, 0 of UD. attr: retry counts and times.
        reachable: False: the peer is dead, its queue pair answers nobody.
    """

    peer: int
    dest_qp: int
    src_qp: int
    stream: int
    attr: QPAttr
    reachable: bool = True


def context_of(dest_qp: int, layout: Layout) -> int:
    """Return the match context a message to that queue pair goes to: its own, or its SRQ's."""
    srq = decode_qp(dest_qp).srq
    return match_context(dest_qp if srq < 0 else SRQ_QUEUE | srq, layout.owner)


def shape_opcode(opcode: int) -> str:
    """Return what the cost model calls a work request."""
    if opcode in SENDS or opcode == IBV_WR_RDMA_WRITE_WITH_IMM:
        return "send"
    if opcode in ATOMICS:
        return "atomic"
    return "read" if opcode == IBV_WR_RDMA_READ else "write"


def need(opcode: int) -> int:
    """Return the remote access a work request needs."""
    if opcode in WRITES:
        return IBV_ACCESS_REMOTE_WRITE
    if opcode in ATOMICS:
        return IBV_ACCESS_REMOTE_ATOMIC
    return IBV_ACCESS_REMOTE_READ if opcode == IBV_WR_RDMA_READ else 0


def build(
    wr: SendWR,
    nbytes: int,
    signalled: bool,
    path: Path,
    layout: Layout,
    shape: Shape,
    closed: bool = False,
    watched: bool = False,
) -> Row:
    """Return the fields of the post for a work request that is carried out.

    Args:
        nbytes: payload. signalled: it has a completion if all goes well.
        shape: what it costs. closed: whatever its key says, let the other side refuse it (an atomic whose
            address is not a multiple of 8).
        watched: tell the other side of a plain write, too, when it is placed.
    """
    message = Message(
        path.src_qp,
        path.dest_qp,
        wr.opcode in WITH_IMM,
        wr.opcode in WRITES,
        bool(wr.send_flags & IBV_SEND_SOLICITED),
    )
    row = _common(path, layout, need(wr.opcode)) | shape._asdict() | {"nbytes": nbytes}
    row |= {"user_a": message.encode(), "done": DONE_ALWAYS if signalled else DONE_ON_ERROR}
    if wr.opcode not in SENDS and (nbytes or closed):
        closed = closed or _reachable(wr) != wr.remote.addr
        row |= _guard(wr, nbytes, layout.closed if closed else layout.region(wr.remote.rkey))
    if wr.opcode in SENDS or wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM:
        row |= {
            "kind": K_SEND,
            "context": context_of(path.dest_qp, layout),
            "rnr_retries": path.attr.rnr_retry,
        }
        row |= {"tag": message_tag(wr.imm_data if message.has_imm else 0, 0)}
    if wr.opcode in WRITES and nbytes:
        row |= {"log_kind": LOG_PUT, "offset": _reachable(wr)}
    if wr.opcode in FETCHES:
        row |= _fetch(wr, nbytes, path.attr.max_rd_atomic)
    if wr.send_flags & IBV_SEND_FENCE:
        row["rd_below"] = 1
    note = _NOTE_REFUSED | (_NOTE_PLACED if watched and row["kind"] == K_PUT else 0)
    return row | {"real_bytes": nbytes, "note": note}


def _common(path: Path, layout: Layout, access: int) -> Row:
    """State guard, order, and what happens when nobody answers."""
    number, attr = decode_qp(path.dest_qp), path.attr
    ready, denied = state_masks(number.generation, access)
    return {
        "kind": K_PUT,
        "peer": path.peer,
        "stream": path.stream,
        "order": ORD_STREAM,
        "state_word": layout.qp_word(number.slot),
        "state_mask": ready if path.reachable else 0,
        "deny_mask": denied,
        "lost_ps": timeout_ps(attr.timeout),
        "lost_retries": attr.retry_cnt,
    }


def _reachable(wr: SendWR) -> int:
    """The remote address as the engine takes it; 0 for one no region can hold."""
    return wr.remote.addr if 0 <= wr.remote.addr < _FARTHEST else 0


def _guard(wr: SendWR, nbytes: int, region: Region) -> Row:
    return {
        "region_word": region.word,
        "region_tag": region.tag,
        "region_offset": _reachable(wr),
        "region_bytes": nbytes,
        "region_need": need(wr.opcode),
    }


def _fetch(wr: SendWR, nbytes: int, most: int) -> Row:
    row: Row = {"kind": K_GET, "offset": _reachable(wr), "rd_below": max(1, most), "done": DONE_ALWAYS}
    if wr.opcode == IBV_WR_RDMA_READ:
        return row | ({"log_kind": LOG_SNAPSHOT} if nbytes else {})
    swap = wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP
    row["log_kind"] = log_kind(CAS if swap else ATOMIC_ADD, 8)
    row["log_a"] = signed(wr.remote.swap if swap else wr.remote.compare_add)
    row["log_b"] = signed(wr.remote.compare_add if swap else 0)
    return row


def signed(value: int) -> int:
    """Return a 64-bit number as the engine keeps it."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def refused(path: Path, layout: Layout) -> Row:
    """Return the post of a request of an RC queue pair that this side refuses: it ends in its turn, as
    ST_REGION, and the queue pair fails. In a stream that has failed it is flushed at once.

    The state guard lets everything pass; with it the device takes the post although the peer may be dead."""
    return {
        "kind": K_WORD,
        "peer": path.peer,
        "stream": path.stream,
        "order": ORD_STREAM,
        "word": layout.closed.word,
        "op": ATOMIC_ADD,
        "region_word": layout.closed.word,
        "region_tag": layout.closed.tag,
        "state_word": layout.closed.word,
        "done": DONE_ALWAYS,
    }


def datagram(wr: SendWR, nbytes: int, path: Path, layout: Layout, shape: Shape) -> Row:
    """Return the fields of the post for a UD send: `path` names the datagram's own destination."""
    has_imm = wr.opcode in WITH_IMM
    message = Message(path.src_qp, path.dest_qp, has_imm, False, bool(wr.send_flags & IBV_SEND_SOLICITED))
    return _common(path, layout, 0) | shape._asdict() | {
        "kind": K_SEND,
        "order": 0,
        "stream": 0,
        "nbytes": nbytes,
        "real_bytes": nbytes,
        "context": context_of(path.dest_qp, layout),
        "tag": message_tag(wr.imm_data if has_imm else 0, wr.remote.qkey),
        "user_a": message.encode(),
        "lost_ps": 1,
        "lost_retries": 0,
        "rnr_retries": 0,
        "done": DONE_SENT,
    }  # fmt: skip


def local() -> Row:
    """Return the post of a UD request that this side refuses: it ends at once and moves nothing."""
    return {"kind": K_LOCAL, "op": NO_OP, "done": DONE_ALWAYS}
