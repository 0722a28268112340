"""Posts and records: what a rank hands to the engine in one call, scalar or batch, and what it gets back.

A post is one row of `POST_DTYPE`; `new_posts` makes rows whose unused fields mean "none". The life of a post
(each stage is an event with the key (time, poster, sequence, sub-index, stage)):

    S_START   at me, only with a unit, a stream or rd_below: wait for answers, then for the unit
    S_EGRESS  PUT, SEND: port of the plane at me. GET: at the peer after the request (order, guards, log)
    S_INGRESS port of the plane at the other end, then `tail_ps`
    S_DELIVER PUT, SEND at the peer: failed stream, order, guards, match, log entry, word, record
    S_ATOMIC  WORD at the peer after the request and `tail_ps`: as S_DELIVER, answers the old value
    S_ACK, S_RESPONSE at me: DONE record
    S_LOCAL   K_LOCAL, K_RECV, K_CLOSE: at me at the time of the post; no port, not counted by `quiet`
    S_RETRY   at me: the network part begins again. S_FAIL at me: the operation and its stream have failed

Sources: ordering bits as URMA's place_order (openeuler umdk, `urma_types.h`) and IBV_SEND_FENCE; retries
and flush on error as `ibv_modify_qp(3)` and `ibv_poll_cq(3)`; matching as MPI-4 3.5 and InfiniBand receive
queues.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "DONE_ALWAYS",
    "DONE_NEVER",
    "DONE_ON_ERROR",
    "DONE_SENT",
    "FOR_EVER",
    "INBOX_DTYPE",
    "IN_DONE",
    "IN_MATCH",
    "IN_NOTE",
    "IN_UNEXPECTED",
    "K_CLOSE",
    "K_GET",
    "K_LOCAL",
    "K_PUT",
    "K_RECV",
    "K_SEND",
    "K_WORD",
    "MAX_PLANES",
    "NUM_PORTS",
    "NUM_UNITS",
    "ORD_FENCE",
    "ORD_STREAM",
    "ORD_STRONG",
    "ORD_TRACK",
    "PORT_UNIT",
    "POST_DTYPE",
    "STATUS_NAMES",
    "ST_FLUSH",
    "ST_LENGTH",
    "ST_LOST",
    "ST_OK",
    "ST_REGION",
    "ST_RNR",
    "Inbox",
    "Posts",
    "new_posts",
]

Posts = np.ndarray[Any, np.dtype[Any]]
"""[count] of POST_DTYPE, C-contiguous."""
Inbox = np.ndarray[Any, np.dtype[Any]]
"""[count] of INBOX_DTYPE, in key order."""

K_PUT, K_GET, K_WORD, K_SEND, K_LOCAL, K_RECV, K_CLOSE = range(7)
ORD_TRACK, ORD_STRONG, ORD_STREAM, ORD_FENCE = 1, 2, 4, 8
DONE_NEVER, DONE_ALWAYS, DONE_ON_ERROR, DONE_SENT = range(4)
ST_OK, ST_REGION, ST_LOST, ST_RNR, ST_FLUSH, ST_LENGTH = range(6)
STATUS_NAMES = ("ok", "region", "lost", "rnr", "flush", "length")
IN_DONE, IN_NOTE, IN_MATCH, IN_UNEXPECTED = range(1, 5)
FOR_EVER = 7
"""Value of `rnr_retries` that never ends (InfiniBand's)."""
MAX_PLANES, NUM_UNITS = 4, 4
PORT_UNIT = 3 * MAX_PLANES
"""Port number of unit 0 in records and statistics; port p of plane k is 3 * k + p."""
NUM_PORTS = PORT_UNIT + NUM_UNITS

_POST_FIELDS = (
    ("nbytes", "i8", 0),  # charged bytes
    ("start_ps", "i8", 0),  # from the post (after the call price) to the first stage
    ("unit_ps", "i8", 0),  # how long the unit is taken
    ("tail_ps", "i8", 0),  # from the end of ingress to DELIVER (GET: to its end; WORD: to S_ATOMIC)
    ("done_ps", "i8", 0),  # added to the ack or answer latency (GET: to its end); not to refusals
    ("fence", "i8", 0),  # sequence number of my last fence, with ORD_FENCE
    ("value", "i8", 0),  # operand of the word operation; of a NOTE record
    ("compare", "i8", 0),  # CAS; K_CLOSE: > 0 sequence number of the one receive to close
    ("region_tag", "i8", 0),  # guard 1, see region_word
    ("region_offset", "i8", 0),
    ("region_bytes", "i8", 0),
    ("region_need", "i8", 0),
    ("state_mask", "i8", -1),  # guard 2, see state_word
    ("deny_mask", "i8", 0),
    ("rnr_ps", "i8", 1),  # wait after "receiver not ready", at least 1
    ("lost_ps", "i8", 1),  # wait for an answer that does not come, at least 1
    ("user_a", "i8", 0),  # returned in every record of this operation
    ("user_b", "i8", 0),
    ("context", "i8", 0),  # match fields; 0 in K_CLOSE: no context
    ("tag", "i8", 0),
    ("source", "i8", -1),  # K_RECV: the sender's rank, -1 any
    ("mask", "i8", -1),  # K_RECV: which bits of the tag count, 0 any
    ("capacity", "i8", 1 << 62),  # K_RECV: most bytes a SEND may have
    ("pull_bytes", "i8", 0),  # K_SEND: > 0 rendezvous, bytes pulled at the match
    ("file_id", "i8", -1),  # as LogRef; K_SEND: where the payload is staged
    ("file_offset", "i8", 0),
    ("offset", "i8", 0),
    ("real_bytes", "i8", 0),
    ("op_id", "i8", 0),
    ("log_a", "i8", 0),  # free fields of the log entry (RMW: operation, operands)
    ("log_b", "i8", 0),
    ("kind", "i4", K_PUT),
    ("peer", "i4", 0),  # target; ignored by K_LOCAL, K_RECV, K_CLOSE
    ("plane", "i4", 0),
    ("unit", "i4", -1),  # 0 to NUM_UNITS - 1, -1 none
    ("order", "i4", 0),  # ORD_ bits
    ("stream", "i4", 0),  # > 0: my own number of a queue towards one peer; K_CLOSE: the stream to close
    ("rd_below", "i4", 0),  # k > 0: start when fewer than k of my earlier gets and atomics are unanswered
    ("word", "i4", 0),
    ("op", "i4", 0),  # PUT, SEND, LOCAL: NO_OP SET ADD. WORD: ATOMIC_ADD SWAP CAS ATOMIC_AND _OR _XOR
    ("region_word", "i4", -1),  # first of the peer's 4 words {tag, base, length, access}; -1 no guard
    ("state_word", "i4", -1),  # peer's word with its state in bits 0-5; -1 no guard
    ("rnr_retries", "i4", -1),  # -1: keep an unmatched SEND (MPI); FOR_EVER
    ("lost_retries", "i4", 0),
    ("done", "i4", DONE_NEVER),
    ("note", "i4", 0),  # NOTE record at the peer: 1 on delivery of a PUT or WORD, 2 on refusal for good
    ("log_kind", "i4", 0),  # 0 no log entry, LOG_PUT, LOG_SNAPSHOT or LOG_RMW + 8 * anything
)

POST_DTYPE = np.dtype([(name, kind) for name, kind, _ in _POST_FIELDS])
"""One post; see the module."""
_BLANK = np.array([tuple(default for _, _, default in _POST_FIELDS)], dtype=POST_DTYPE)

INBOX_DTYPE = np.dtype(
    [
        ("time_ps", "i8"),
        ("key", "i8"),  # of the event that made the record
        ("seq", "i8"),  # of the operation; IN_MATCH: of my receive
        ("value", "i8"),  # DONE: old value; NOTE: the post's value; IN_MATCH, IN_UNEXPECTED: sender's user_a
        ("nbytes", "i8"),  # charged bytes of the operation or message
        ("tag", "i8"),  # of the message
        ("context", "i8"),
        ("user_a", "i8"),  # of the operation; IN_MATCH: of my receive
        ("user_b", "i8"),
        ("file_id", "i8"),  # where the payload is staged, -1 nowhere
        ("file_offset", "i8"),
        ("real_bytes", "i8"),
        ("kind", "i4"),  # IN_
        ("rank", "i4"),  # the other end, -1 for a receive that was closed
        ("status", "i4"),  # ST_
        ("context_lo", "i4"),  # low 32 bits of the context
    ]
)
"""One record for its owner. Nobody else sees it."""


def new_posts(count: int, **fields: npt.ArrayLike) -> Posts:
    """Return [count] posts with `fields` (scalars or arrays [count]) filled in and the rest none."""
    posts: Posts = np.repeat(_BLANK, count)
    for name, values in fields.items():
        posts[name] = values
    return posts
