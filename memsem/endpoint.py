"""The thin shell between messages and the machine: posts sends and receives, follows the inbox, sleeps.

One a rank, shared by all its communicators. The engine matches envelopes in virtual time on every rank, so a
message that was sent and a receive that was posted need neither process to go on: both are handed to the
engine before the call returns, also where it does not block.

    eager       [envelope | payload] --> target; copied out by the receiver
    rendezvous  [envelope] --> target; at the match the target's side fetches the payload

The payload is staged at the target when the send is called (in its pool, or in a file when that is full), so
the sender's buffer could be reused at once; it is not charged before it travels.

Envelopes to one rank are strong puts: they arrive in the order sent, also after strong and relaxed puts of a
window to the same rank, which is more than MPI asks. (An engine stream would also report the ends of
sends in order; a synchronous send need not wait for an earlier one with another tag.)

Source: eager and rendezvous with their extra copy and round trip as Open MPI's ob1 has them; send, receive
and match prices `message.*` of the profile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np

from emulator import Device
from emulator.engine.posts import (
    DONE_ALWAYS,
    DONE_NEVER,
    K_CLOSE,
    K_RECV,
    K_SEND,
    ORD_STRONG,
    ORD_TRACK,
    new_posts,
)
from emulator.errors import DeadlockError
from emulator.fabric import MessageShape, Transaction
from emulator.posting import OWNER_MESSAGES, InboxRecord
from emulator.tracing import Op
from memsem.checkfile import Kind
from memsem.mailbox import NUMBER_BITS, NUMBERS, Bytes, Mailbox, Operation, packed
from memsem.operations import Operations
from memsem.status import ANY_TAG

CONTEXTS = OWNER_MESSAGES << 32
"""Match contexts of messages start here."""
OWNER = OWNER_MESSAGES << NUMBER_BITS
"""High byte of `user_b` in records of messages."""
PATH = "mpi"
NOTHING = np.empty(0, np.uint8)


class Endpoint:
    """A rank's messages.

    Attributes:
        device: the machine.
        next_id: first communicator number this rank has not used; communicators agree on the largest.
    """

    def __init__(self, device: Device) -> None:
        self.device, self.next_id = device, 2
        self._mailbox = Mailbox()
        self._shape = lru_cache(1024)(self._price)
        self._sent: dict[int, int] = {}
        self._check = Operations.of(device).check if device.config.check_races else None
        device.register_inbox(OWNER_MESSAGES, self._on_record)

    # --- calls ------------------------------------------------------------------------------------------

    def send(
        self,
        context: int,
        dest: int,
        tag: int,
        data: Bytes,
        call: str,
        *,
        blocking: bool,
        synchronous: bool = False,
        detached: bool = False,
        kind: int = 0,
    ) -> Operation:
        """Post a send.

        Args:
            context: of the communicator. dest: rank in the whole pod.
            data: uint8, contiguous; may be reused on return.
            call: how reports name it.
            blocking: priced as a blocking send. synchronous: ends at the match, not before.
            detached: ended at once whatever the size (a buffered send).
            kind: what its elements are, 1 to 15 as caller and receiver agree; 0 says nothing.

        Completion: done at once when eager or detached, else when the receiver has fetched it.
        """
        device, operation = self.device, Operation(call)
        shape = self._shape(device.engine.link_class(dest), data.size, synchronous)
        waits = not shape.eager and not detached
        number = self._mailbox.open(operation) if waits else 0
        operation.done = not waits
        posts = new_posts(
            1, kind=K_SEND, peer=dest, context=context, tag=tag, nbytes=shape.envelope_bytes,
            pull_bytes=0 if shape.eager else max(1, shape.pull_bytes), real_bytes=data.size,
            order=ORD_TRACK | ORD_STRONG, done=DONE_ALWAYS if waits else DONE_NEVER,
            user_a=packed(data.size, shape.eager, self._number(dest), kind), user_b=OWNER | number,
            **shape.envelope._asdict(),
        )  # fmt: skip
        price_ps = shape.send_ps if blocking else shape.isend_ps
        posts["start_ps"] += price_ps
        device.post(posts, [data], Op.POST)
        device.ledger.call(PATH)
        if not shape.eager:
            device.ledger.add(PATH, Transaction.HANDSHAKE, 3)
        device.compute(price_ps)  # published: the message is on its way whatever this process does next
        return operation

    def receive(
        self,
        context: int,
        source: int,
        tag: int,
        sink: Callable[[Bytes], None],
        capacity: int,
        call: str,
        *,
        blocking: bool,
    ) -> Operation:
        """Post a receive.

        Args:
            source: rank in the whole pod or ANY_SOURCE. tag: or ANY_TAG.
            sink: called with the payload at the observation that finds it here.
            capacity: bytes there is room for; a longer message ends with ERR_TRUNCATE.
            blocking: a wait follows at once.
        """
        operation = Operation(call, sink, capacity, context=context)
        posts = new_posts(
            1, kind=K_RECV, context=context, source=source, tag=max(tag, 0), mask=0 if tag == ANY_TAG else -1,
            user_b=OWNER | self._mailbox.open(operation),
        )  # fmt: skip
        operation.seq = self.device.post(posts, None, Op.POST)
        self.device.ledger.call(PATH)
        if not blocking:
            self.device.compute(0)  # published, as a send
        return operation

    def cancel(self, operation: Operation) -> None:
        """Take a receive back, unless it has its message by now; the next wait or test tells."""
        if not operation.matched and not operation.done:
            close = new_posts(
                1, kind=K_CLOSE, context=operation.context, compare=operation.seq, done=DONE_ALWAYS
            )
            self.device.post(close, None, Op.POST)

    def charge(self, operation: Operation) -> None:
        """Pay for the end of a receive: taking the message, and for an eager one copying it out."""
        if operation.sink is None or not operation.matched:
            return
        device = self.device
        if self._check is not None:
            self._check.add(Kind.RECEIVE, device.now_ps, home=operation.source, low=operation.number)
        shape = self._shape(device.engine.link_class(operation.source), operation.nbytes, not operation.eager)
        device.ledger.add(PATH, Transaction.MATCH)
        if operation.eager:
            device.ledger.add(PATH, Transaction.COPY)
        device.compute(shape.recv_ps + shape.copy_ps, publish=False)

    # --- waiting ----------------------------------------------------------------------------------------

    def wait(self, ready: Callable[[], bool], call: str) -> None:
        """Sleep until `ready`, asked after every record.

        Raises:
            DeadlockError: nothing can make it so; the message says what this rank waits for.
        """
        with self._named(call):
            while not ready():
                self.device.wait_inbox(self.device.inbox_seen)

    def poll(self, call: str) -> None:
        """Look once for new records; in vain, it moves the clock to the next tick that may differ. Raises as
        `wait`, when every rank polls in vain."""
        with self._named(call):
            self.device.test_inbox(self.device.inbox_seen)

    @contextlib.contextmanager
    def _named(self, call: str) -> Iterator[None]:
        """Say in a deadlock's report what this rank was in."""
        try:
            yield
        except DeadlockError as error:
            text = f"{error.message}; rank {self.device.rank} is in {call}"
            raise DeadlockError(text, **error.fields) from None

    def found(self, context: int, source: int, tag: int) -> tuple[int, int, int] | None:
        """Return (source, tag, bytes) of the oldest message no receive has taken, of those seen so far."""
        envelope = self._mailbox.find(context, source, tag)
        return None if envelope is None else envelope[1:]

    # --- the race checker -------------------------------------------------------------------------------

    def _number(self, dest: int) -> int:
        """Number the next message to a rank, and tell the checker that it leaves."""
        number = self._sent[dest] = (self._sent.get(dest, -1) + 1) % (1 << NUMBERS)
        if self._check is not None:
            self._check.add(Kind.SEND, self.device.now_ps, home=dest, low=number)
        return number

    # --- records ----------------------------------------------------------------------------------------

    def _on_record(self, record: InboxRecord) -> None:
        operation = self._mailbox.take(record)
        if operation is not None and operation.sink is not None:
            place = operation.file_id, operation.file_offset, operation.nbytes
            operation.sink(self.device.memory.take(*place) if operation.nbytes else NOTHING)

    def _price(self, link_class: int, nbytes: int, synchronous: bool) -> MessageShape:
        return self.device.fabric.message(link_class, nbytes, self.device.config.mpi_over, synchronous)


def endpoint_of(device: Device) -> Endpoint:
    """Return the endpoint of a rank's device, made at the first call."""
    found = device.library.get(Endpoint)
    if found is None:
        found = device.library[Endpoint] = Endpoint(device)
    assert isinstance(found, Endpoint)
    return found
