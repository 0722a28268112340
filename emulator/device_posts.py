"""The calls of a device that go through post records: batches, atomics on elements, records coming back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from emulator import rmw
from emulator.engine.api import GT, TIMEOUT
from emulator.engine.posts import K_GET, K_PUT, ORD_FENCE, Posts, new_posts
from emulator.fabric import Shape
from emulator.posting import Callback, InboxRecord, Payload, Posting
from emulator.tracing import Op
from emulator.transport import Bytes

if TYPE_CHECKING:
    from emulator.delivery import Delivery


class PostCalls(ABC):
    """Part of `emulator.device.Device`.

    Attributes:
        posting: what I post and get back.
        beside: waits for a condition of mine while what else I have begun moves on; None: nothing does.
        delivery: in what order and how late it takes effect.
        after_barrier: called at the end of each barrier and exchange of mine.
    """

    posting: Posting
    beside: Callable[[tuple[int, int, int], int | None], bool] | None
    delivery: Delivery

    def post(self, posts: Posts, data: Payload | None = None, call: Op = Op.POST, step_ps: int = 0) -> int:
        """Post a batch of operations, in order; see `emulator.engine.posts`.

        Args:
            posts: [count] of POST_DTYPE. I fill in where payloads are staged (file_id, file_offset, op_id),
                and LOG_PUT or LOG_SNAPSHOT for puts and gets of real bytes that name no log kind.
            data: payloads of puts and sends: a list of uint8 arrays (None where there is none), one for
                each post, which sets `real_bytes`; or one uint8 array cut by `real_bytes`.
            call: what the trace says each post is.
            step_ps: what each costs me beside the call price.

        Returns:
            the sequence number of the first; they are consecutive unless adversarial delivery cut some puts.
            That of a get is a handle for `wait_get`; `take` wants the record.

        Completion: payloads may be reused on return. What happened is told by `done`, `note` and `quiet`.

        Raises:
            UsageError: a field out of range, payloads of other sizes. RankLostError: a peer is known to be
                dead.
        """
        return self.posting.post(posts, data, call, step_ps)

    def start_post_get(
        self, source: int, offset: int, nbytes: int, charged: int, shape: Shape | None, fields: dict[str, Any]
    ) -> int:
        """Post a get through a record; see `Device.start_get`."""
        timing = (shape or Shape())._asdict()
        post = new_posts(
            1,
            kind=K_GET,
            peer=source,
            offset=offset,
            real_bytes=nbytes,
            nbytes=charged,
            **{**timing, **fields},
        )
        return self.posting.post(post, None, Op.GET, 0)

    def start_rmw(
        self,
        target: int,
        offset: int,
        operation: int,
        nbytes: int,
        operand: int,
        compare: int = 0,
        **fields: Any,
    ) -> int:
        """Post an atomic on an element of the target's heap; charged as a get of 8 bytes.

        Args:
            offset: of the element, a multiple of `nbytes`.
            operation: ATOMIC_ADD, SWAP, CAS, ATOMIC_AND, ATOMIC_OR or ATOMIC_XOR of `emulator.engine.api`.
            nbytes: 4 or 8.
            operand, compare: wrap to the element's width; `compare` counts for CAS alone.
            fields: further fields of the post (order, fence, tail_ps, ...).

        Returns:
            a handle; `wait_get` of it returns the element's bytes before, uint8 [nbytes].

        Completion: after `wait_get` or `quiet`; ordered with all that reaches the same memory.
        """
        charged = fields.pop("charged", 8)
        post = new_posts(
            1, kind=K_GET, peer=target, offset=offset, real_bytes=nbytes, nbytes=charged,
            log_kind=rmw.log_kind(operation, nbytes), log_a=_signed(operand), log_b=_signed(compare),
            **fields,
        )  # fmt: skip
        return self.posting.post(post, None, Op.ATOMIC, 0)

    def take(self, record: InboxRecord) -> Bytes:
        """Return the bytes that belong to a record, and free their place: once each.

        A message's, of IN_MATCH; what a get or atomic brought, of its IN_DONE (none unless its status is
        ST_OK).
        """
        return self.posting.take(record)

    def new_stream(self) -> int:
        """Return a stream number this rank has not used yet."""
        return self.posting.new_stream()

    @property
    def may_reorder(self) -> bool:
        """Whether a fence needs ORD_FENCE (with `fence_seq`) on what I post after it."""
        return self.posting.may_reorder

    @property
    def fence_seq(self) -> int:
        """Sequence number of my last fence, 0 without."""
        return self.posting.fence_seq

    def fence_fields(self) -> dict[str, int]:
        """Return what the posts after my last fence need to honour it; nothing where order is kept anyway."""
        if not self.posting.fence_seq or not self.may_reorder:
            return {}
        return {"order": ORD_FENCE, "fence": self.posting.fence_seq}

    def register_inbox(self, owner: int, callback: Callback) -> None:
        """Have the records of an owner (a number of `emulator.posting`) handed to `callback`.

        It is called at each observation of mine, in key order, for records up to then; it must make no call
        that costs virtual time.
        """
        self.posting.owners[owner] = callback

    @property
    def inbox_seen(self) -> int:
        """Records taken from my inbox so far."""
        return self.posting.seen

    def wait_inbox(self, seen: int, timeout_ps: int | None = None) -> bool:
        """Wait until my inbox ever got more than `seen` records; False: `timeout_ps` passed first.

        What else this rank has begun may move on meanwhile (`beside`).
        """
        news = (self._inbox_word(), GT, seen)
        if self.beside is not None:
            return self.beside(news, timeout_ps)
        return self.wait([news], False, timeout_ps) != TIMEOUT

    def test_inbox(self, seen: int) -> bool:
        """Probe for the same; an unsuccessful probe moves my clock as `test` does."""
        return self.test(self._inbox_word(), GT, seen)

    def put_record(
        self, target: int, offset: int, data: Bytes, charged: int, word: int | None, op: int, value: int
    ) -> None:
        """Post a put through a record; see `Device.put`."""
        post = new_posts(1, kind=K_PUT, peer=target, offset=offset, nbytes=charged)
        if word is not None:
            post["word"], post["op"], post["value"] = word, op, value
        self.posting.post(post, [data], Op.PUT, 0)

    @abstractmethod
    def _inbox_word(self) -> int: ...

    @abstractmethod
    def wait(
        self, conditions: list[tuple[int, int, int]], any_: bool = False, timeout_ps: int | None = None
    ) -> int: ...

    @abstractmethod
    def test(self, word: int, cmp: int, value: int) -> bool: ...


def _signed(value: int) -> int:
    """The number as a signed 64-bit word."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)
