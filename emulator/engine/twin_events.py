"""Events of the Python twin: stages of an operation, keys, and what an operation carries along."""

from collections import namedtuple
from typing import Any

from emulator.engine.api import LOG_PUT, LOG_RMW, LOG_SNAPSHOT, LogRef
from emulator.engine.posts import K_GET, K_PUT, K_SEND, K_WORD, POST_DTYPE, new_posts

S_START, S_ROW, S_EGRESS, S_INGRESS, S_DELIVER, S_ACK, S_ATOMIC, S_RESPONSE = range(8)
S_PULL, S_PULL_IN, S_BULK, S_CHECK, S_TIMEOUT, S_POLL, S_RESUME, S_LOCAL, S_RETRY, S_FAIL = range(8, 18)
Event = tuple[int, int, int, int, Any]

Post: Any = namedtuple("Post", POST_DTYPE.names or ())  # type: ignore[misc]
"""A row of POST_DTYPE as plain integers."""
BLANK = Post._make(new_posts(1)[0].tolist())


class Op:
    """An operation under way.

    Args:
        post: what was posted, `BLANK` for the calls `put`, `get` and `atomic`.
        posted: its post time.
        ref: what the apply log of the target will say.
        blocking: an `atomic` whose poster sleeps until the answer.
        finished: it ended, as its poster knows it (with `status` and `old`, a word's old value).
        void: it ended before it left; what arrives at the target says only that nothing comes.
        silent: no record of it for its poster.
        pair: (receive, send) of a rendezvous whose payload this operation pulls.
        epoch: -1, or when a send that is retried for ever was last refused (see `Order.idle`).
    """

    def __init__(self, kind: int, poster: int, peer: int, nbytes: int, seq: int, post: Any = BLANK) -> None:
        self.kind, self.poster, self.peer, self.nbytes, self.seq = kind, poster, peer, nbytes, seq
        self.post, self.posted, self.plane = post, 0, post.plane
        self.ref: LogRef | None = None
        self.log_kind = post.log_kind
        self.op, self.word, self.value, self.compare = post.op, post.word, post.value, post.compare
        self.blocking = self.finished = self.void = self.silent = False
        self.status = self.old = 0
        self.rnr_left, self.lost_left = post.rnr_retries, post.lost_retries
        self.pair: tuple[Op, Op] | None = None
        self.epoch = -1

    def __reduce__(self) -> Any:
        state = self.__dict__.copy()
        post = state.pop("post")
        return _restore, (None if post is BLANK else tuple(post), state)

    def with_log(self, ref: LogRef | None) -> "Op":
        """The same with an entry of a `put` or `get` for the target's apply log."""
        if ref is not None:
            self.ref = LogRef(*map(int, ref))
            self.log_kind = LOG_SNAPSHOT if self.kind == K_GET else LOG_PUT
        return self

    @property
    def counts(self) -> bool:
        """Later operations may have to wait for this one at its target."""
        in_order = self.kind == K_GET and (self.post.stream > 0 or self.is_rmw)
        return in_order or self.kind in (K_PUT, K_SEND, K_WORD)

    @property
    def is_rmw(self) -> bool:
        """A get that changes what it reads; the upper bits of its log kind say how."""
        return bool(self.kind == K_GET and self.log_kind & 7 == LOG_RMW)

    @property
    def is_rendezvous(self) -> bool:
        return bool(self.kind == K_SEND and self.post.pull_bytes)


def _restore(post: Any, state: dict[str, Any]) -> Op:
    op: Op = Op.__new__(Op)
    op.__dict__.update(state, post=BLANK if post is None else Post._make(post))
    return op


def of_post(rank: int, seq: int, now: int, post: Any) -> Op:
    """The operation of a row posted at `now`."""
    op = Op(post.kind, rank, post.peer, post.nbytes, seq, post)
    op.posted = now
    op.ref = LogRef(post.file_id, post.file_offset, post.offset, post.real_bytes, post.op_id)
    return op


def key_of(rank: int, seq: int, sub: int, stage: int) -> int:
    return rank << 50 | seq << 18 | sub << 6 | stage


def staged(key: int, stage: int) -> int:
    return key & ~63 | stage


def occupy_ps(nbytes: int, bytes_per_s: int) -> int:
    """How long bytes occupy a port: ceil(bytes * 10**12 / bytes_per_s)."""
    return -(-nbytes * 10**12 // bytes_per_s)


def holds(a: int, cmp: int, b: int) -> bool:
    return (a == b, a != b, a > b, a >= b, a < b, a <= b)[cmp]
