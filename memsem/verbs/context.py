"""The device context: tables of what a rank has made, and the way records become completions.

A context is made on all ranks at once (it takes the same words and heap piece on each); everything below
it is local. Records of finished operations arrive at every observation point of the rank (poll, any wait, a
window's load) in key order, and are sorted into completion queues then. State that only hardware would
change by itself (a queue pair that fails) changes at that moment, too: the rank cannot notice the difference,
its peers see the queue pair answer until then.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import emulator
from emulator import Device
from emulator.engine.api import SET
from emulator.engine.posts import IN_MATCH, IN_NOTE, K_LOCAL, Posts, new_posts
from emulator.errors import InternalError, UsageError, misuse
from emulator.fabric import Shape, Transaction
from emulator.freelist import FreeList
from emulator.posting import OWNER_VERBS, InboxRecord
from emulator.transport import Area
from memsem.verbs.completion import Tally
from memsem.verbs.device_attr import AsyncEvent, DeviceAttr, PortAttr
from memsem.verbs.enums import ibv_event_type
from memsem.verbs.faults import LATE_QUEUE, NicFaults
from memsem.verbs.keys import MAX_MR, MAX_QP, MAX_SRQ, Layout, decode_qp
from memsem.verbs.numbers import check_whole, wrong
from memsem.verbs.resource import Resource
from memsem.verbs.slots import Slots
from memsem.verbs.users import SRQ_QUEUE, Mine, decode_message, decode_mine, match_context
from memsem.verbs.verbs_error import PyverbsRDMAError

if TYPE_CHECKING:
    from emulator.transport import Bytes
    from memsem.verbs.mr import MR
    from memsem.verbs.qp import QP
    from memsem.verbs.srq import SRQ


def _nobody(record: InboxRecord) -> None:
    """Where records go when no context is open: what they are about was destroyed."""


class Context(Resource):
    """This rank's RDMA NIC. Collective: all ranks make one, with the same sizes.

    Args:
        device: this rank's, by default the one of `emulator.init()`.
        max_qp, max_mr: queue pairs and memory regions at a time.
        memory_bytes: heap that `PD.alloc` and `MR(pd, length, access)` give out.
        watch_writes: a plain RDMA WRITE of mine ends the `sleep` of its target when it is placed, as a
            program that polls memory would notice it. Costs no virtual time.
        canary: find memory of a send that was changed before its completion; by default as the
            configuration's `check_races`.

    Attributes:
        tally: what was posted and how it ended; `check()` holds it against the completion rule.

    Raises:
        UsageError: sizes out of range or unlike on two ranks, no room.
    """

    OWNER, PATH = OWNER_VERBS, "verbs"
    """Whose records these are, and which path of moving bytes the ledger counts."""

    def __init__(
        self,
        device: Device | None = None,
        max_qp: int = 64,
        max_mr: int = 64,
        memory_bytes: int = 1 << 20,
        watch_writes: bool = False,
        canary: bool | None = None,
    ) -> None:
        super().__init__()
        self.device = device = device or emulator.device()
        self.rank, self.num_ranks = device.rank, device.num_ranks
        sizes = max_qp, max_mr, memory_bytes
        check_whole(self, "Context: a size", sizes)
        if not (1 <= max_qp <= MAX_QP and 1 <= max_mr <= MAX_MR and memory_bytes >= 0):
            limits = f"max_qp is 1 to {MAX_QP}, max_mr 1 to {MAX_MR}, memory_bytes 0 or more"
            raise wrong(self, f"Context: {limits}, got {sizes}", sizes)
        if device.posting.owners.get(self.OWNER, _nobody) is not _nobody:
            raise wrong(self, f"Context: rank {device.rank} has one already; close it first", device.rank)
        base, word, _ = device.symmetric.carve(
            Area.HEAP, memory_bytes, f"verbs context of {max_qp} queue pairs", Layout.words(max_qp, max_mr)
        )
        self.layout, self.watch_writes = Layout(word, max_qp, max_mr, self.OWNER), watch_writes
        self.canary = device.config.check_races if canary is None else canary
        self.tally = Tally()
        self.qps: Slots[QP] = Slots(max_qp)
        self.mrs: Slots[MR] = Slots(max_mr)
        self.srqs: Slots[SRQ] = Slots(MAX_SRQ)
        self._base, self._memory = base, FreeList(memory_bytes)
        self._events: deque[AsyncEvent] = deque()
        self._chores: list[Callable[[], None]] = []
        self.nic_faults = NicFaults(self) if device.faults.active else None
        device.register_inbox(self.OWNER, self._on_record)

    @property
    def now_ps(self) -> int:
        """Virtual time of this rank, picoseconds."""
        return self.device.now_ps

    @property
    def max_inline(self) -> int:
        """Most bytes of an inline request."""
        return self.device.profile.integer("rdma.inline_bytes")

    # --- queries ----------------------------------------------------------------------------------------

    def query_device(self) -> DeviceAttr:
        """Return the limits."""
        return DeviceAttr(self.layout.max_qp, self.layout.max_mr, MAX_SRQ)

    def query_port(self, port_num: int = 1) -> PortAttr:
        """Return the port's attributes. Raises: PyverbsRDMAError, no such port."""
        if port_num != 1:
            raise self.refusal(f"query_port: no port {port_num}, only 1", port_num)
        return PortAttr(self.rank + 1)

    def check(self) -> None:
        """Hold the counts against the completion rule.

        Raises:
            InternalError: a request ended twice, or not at all, or its completion got lost.
        """
        sends = sum(qp.outstanding_sends for qp in self.qps)
        recvs = sum(qp.outstanding_recvs for qp in self.qps) + sum(s.outstanding for s in self.srqs)
        if wrong := self.tally.violations(sends, recvs):
            raise InternalError(f"verbs, rank {self.rank}: {'; '.join(wrong)} ({self.tally})")

    def refusal(
        self,
        message: str,
        value: Any,
        code: int = errno.EINVAL,
        kind: type[PyverbsRDMAError] = PyverbsRDMAError,
    ) -> PyverbsRDMAError:
        """Return the error of a verbs call that is refused, with rank and time."""
        return kind(
            f"{message} (rank {self.rank}, {self.now_ps} ps)",
            code,
            rank=self.rank,
            now_ps=self.now_ps,
            value=value,
        )

    def flag_reuse(self, qp_num: int, wr_id: int) -> None:
        """Raise what a program is told that changed memory it had lent to the NIC. Raises: UsageError."""
        raise misuse(
            UsageError,
            f"verbs: memory of WR {wr_id} of QP {qp_num:#x} was changed before its completion",
            rank=self.rank,
            now_ps=self.now_ps,
            value=wr_id,
        )

    # --- memory -----------------------------------------------------------------------------------------

    def take_memory(self, nbytes: int) -> int:
        """Take heap bytes; returns the address. Raises: PyverbsRDMAError (ENOMEM)."""
        at = self._memory.carve(nbytes, 64)
        if at is None:
            raise self.refusal(
                f"{nbytes} bytes do not fit the {self._memory.free} left of {self._memory.size}; "
                f"raise memory_bytes of the Context",
                nbytes,
                errno.ENOMEM,
            )
        return self._base + at

    def give_memory(self, address: int, nbytes: int) -> None:
        """Give heap bytes back."""
        self._memory.release(address - self._base, nbytes)

    # --- the engine -------------------------------------------------------------------------------------

    def post(self, posts: Posts, data: Sequence[Bytes | None] | None = None, step_ps: int = 0) -> int:
        """Hand operations over; `data` holds what each carries. Returns the first one's sequence number."""
        return self.device.post(posts, data, step_ps=step_ps)

    def post_local(self, words: dict[int, int]) -> None:
        """Set words of mine, in order."""
        self.post(new_posts(len(words), kind=K_LOCAL, op=SET, word=list(words), value=list(words.values())))

    def shape(self, opcode: str, nbytes: int, inline: bool, peer: int) -> Shape:
        """Return what a work request to `peer` costs; see `Fabric.verbs`."""
        return self.device.fabric.verbs(opcode, nbytes, inline)

    def match_context(self, queue: int) -> int:
        """Return the match context of a queue of mine."""
        return match_context(queue, self.OWNER)

    def user_b(self, queue: int, number: int, is_recv: bool) -> int:
        """Return what comes back in the records of a request of mine."""
        return Mine(queue, number, is_recv).encode(self.OWNER)

    def new_stream(self) -> int:
        """Return a stream number nobody has used."""
        return self.device.new_stream()

    def count(self, kind: Transaction, count: int = 1) -> None:
        """Count transactions in the ledger."""
        self.device.ledger.add(self.PATH, kind, count)

    def called(self) -> None:
        """A call of the program; afterwards is the time for what records asked for."""
        self.device.ledger.call(self.PATH)
        self.do_chores()

    def later(self, chore: Callable[[], None]) -> None:
        """Do something that posts, once no record is being sorted."""
        self._chores.append(chore)

    def do_chores(self) -> None:
        """Do what records asked for."""
        while self._chores:
            self._chores.pop(0)()

    def observe(self) -> None:
        """Sort everything up to now."""
        self.device.observe()
        self.do_chores()

    def probe(self) -> None:
        """Sort everything up to now; if nothing has come since the last time, up to the next poll tick at
        which that may be different."""
        self.device.test_inbox(self.device.inbox_seen)
        self.do_chores()

    def sleep(self) -> None:
        """Sleep until a record has come. Raises: DeadlockError, none can."""
        self.device.wait_inbox(self.device.inbox_seen)
        self.do_chores()

    # --- records ----------------------------------------------------------------------------------------

    def _on_record(self, record: InboxRecord) -> None:
        if record.kind == IN_NOTE:
            qp = self.find_qp(decode_message(record.user_a).dest_qp)
            if qp is not None:
                qp.on_refused(record)
            return
        mine = decode_mine(record.user_b)
        if self.nic_faults is not None and mine.queue == LATE_QUEUE:
            self.nic_faults.arrive(mine.number)
            return
        if not mine.is_recv:
            qp = self.find_qp(mine.queue)
            if qp is not None:
                qp.on_sent(mine.number, record)
            return
        payload = self._payload(record) if record.kind == IN_MATCH and record.real_bytes else None
        if mine.queue & SRQ_QUEUE:
            srq = self.srqs.get(mine.queue & ~SRQ_QUEUE)
            if srq is not None:
                srq.on_received(mine.number, record, payload)
            return
        qp = self.find_qp(mine.queue)
        if qp is not None:
            qp.on_received(qp.receives, mine.number, record, payload)

    def _payload(self, record: InboxRecord) -> Bytes:
        """Take what a message brought, uint8."""
        return self.device.take(record)

    def find_qp(self, number: int) -> QP | None:
        """Return the living queue pair of that number."""
        qp = self.qps.get(decode_qp(number).slot)
        return qp if qp is not None and qp.qp_num == number else None

    # --- events and end ---------------------------------------------------------------------------------

    def report(self, event: ibv_event_type, element: Any) -> None:
        """Queue an asynchronous event."""
        self._events.append(AsyncEvent(event, element))

    def get_async_event(self) -> AsyncEvent:
        """Return the next asynchronous event; sleeps until there is one. Raises: DeadlockError."""
        self.observe()
        while not self._events:
            self.sleep()
        return self._events.popleft()

    @property
    def num_async_events(self) -> int:
        """How many asynchronous events wait to be read."""
        return len(self._events)

    def _close(self) -> None:
        """Complete what is under way and hold the completion rule."""
        self.device.quiet()
        self.check()
        self.device.register_inbox(self.OWNER, _nobody)
