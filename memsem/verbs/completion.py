"""What becomes of work requests: send and receive queue accounting, records to completions, and the rule that
every posted request ends exactly once. Pure: no engine, no memory.

A send queue slot is taken at the post and given back when the completion of that request or of a later one is
polled: unsignalled requests are retired by a later signalled one. The completion rule (design, section 8):

    completions = signalled successes + every send that failed or was flushed, signalled or not
                  + every receive consumed or flushed
    posted      = completed + silent successes + discarded by RESET or destroy + still outstanding

A request refused at the call counts nowhere.

Source: ibv_post_send(3), ibv_poll_cq(3); rdma-core providers/mlx5/cq.c for when a slot is free again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

from emulator.engine.posts import ST_FLUSH, ST_LENGTH, ST_LOST, ST_OK, ST_REGION, ST_RNR
from emulator.errors import InternalError
from memsem.verbs.enums import (
    IBV_WC_REM_ACCESS_ERR,
    IBV_WC_REM_INV_REQ_ERR,
    IBV_WC_RETRY_EXC_ERR,
    IBV_WC_RNR_RETRY_EXC_ERR,
    IBV_WC_SUCCESS,
    IBV_WC_WR_FLUSH_ERR,
    ibv_wc_status,
)
from memsem.verbs.wr import SGE

NUMBERS = 1 << 28
"""Work requests are numbered modulo this."""
_STATUS: dict[int, ibv_wc_status] = {
    ST_OK: IBV_WC_SUCCESS,
    ST_REGION: IBV_WC_REM_ACCESS_ERR,
    ST_LOST: IBV_WC_RETRY_EXC_ERR,
    ST_RNR: IBV_WC_RNR_RETRY_EXC_ERR,
    ST_FLUSH: IBV_WC_WR_FLUSH_ERR,
    ST_LENGTH: IBV_WC_REM_INV_REQ_ERR,
}


@dataclass
class SendEntry:
    """A posted send.

    Attributes:
        number: of the request, modulo NUMBERS.
        opcode, nbytes: `ibv_wr_opcode`, payload.
        landing: where a read or atomic puts what it fetched.
        verdict: the status known when it was posted (a bad lkey, a misaligned atomic), which stands for the
            refusal the engine will report.
        reliable: False: nobody reports what became of the message (UD).
        seq: the engine's number of it; -1 until it is handed over.
        source, canary: where the payload came from and its checksum, if reuse is watched for.
    """

    number: int
    wr_id: int
    opcode: int
    signalled: bool
    nbytes: int = 0
    landing: Sequence[SGE] = ()
    verdict: ibv_wc_status | None = None
    reliable: bool = True
    seq: int = -1
    source: Sequence[SGE] = ()
    canary: int | None = None

    def status(self, engine_status: int) -> ibv_wc_status:
        """Return the completion status for what the engine reported."""
        if engine_status == ST_FLUSH:
            return IBV_WC_WR_FLUSH_ERR
        if self.verdict is not None and engine_status in (ST_OK, ST_REGION):
            return self.verdict
        return _STATUS[engine_status] if self.reliable else IBV_WC_SUCCESS


@dataclass
class RecvEntry:
    """A posted receive: where its message lands, and the status it will have if that is not allowed."""

    number: int
    wr_id: int
    sg: Sequence[SGE]
    verdict: ibv_wc_status | None = None


@dataclass
class Tally:
    """Counts of one queue pair or context; see the module for the rule.

    Attributes:
        posted_sends, posted_recvs: accepted at the call.
        signalled, silent: sends that succeeded with and without a completion.
        failed_sends: failed or flushed.
        received, failed_recvs: receives consumed well; consumed in error or flushed.
        discarded_sends, discarded_recvs: ended by RESET or destroy, without a completion.
        completions: written to a completion queue or lost by its overrun.
        lost: of them, lost by an overrun.
    """

    posted_sends: int = 0
    posted_recvs: int = 0
    signalled: int = 0
    silent: int = 0
    failed_sends: int = 0
    received: int = 0
    failed_recvs: int = 0
    discarded_sends: int = 0
    discarded_recvs: int = 0
    completions: int = 0
    lost: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def violations(self, sends: int = 0, recvs: int = 0) -> list[str]:
        """Return how the rule is broken with that many requests still outstanding; empty if it holds."""
        checks = {
            "sends": (
                self.posted_sends,
                self.signalled + self.silent + self.failed_sends + self.discarded_sends + sends,
            ),
            "receives": (
                self.posted_recvs,
                self.received + self.failed_recvs + self.discarded_recvs + recvs,
            ),
            "completions": (
                self.completions,
                self.signalled + self.failed_sends + self.received + self.failed_recvs,
            ),
        }
        return [f"{what}: {left} counted, {right} accounted for" for what, (left, right) in checks.items()
                if left != right]  # fmt: skip


class SendQueue:
    """The outstanding sends of a queue pair, in post order.

    Args:
        depth: `max_send_wr`. tally: where it counts.
    """

    def __init__(self, depth: int, tally: Tally) -> None:
        self.depth, self._tally = depth, tally
        self._open: OrderedDict[int, SendEntry] = OrderedDict()
        self._taken: OrderedDict[int, None] = OrderedDict()
        self._next = 0

    @property
    def room(self) -> int:
        """Free slots."""
        return self.depth - len(self._taken)

    @property
    def outstanding(self) -> int:
        """Sends that have not ended."""
        return len(self._open)

    def take_number(self) -> int:
        """Return the number of the next request."""
        self._next += 1
        return (self._next - 1) % NUMBERS

    def push(self, entry: SendEntry) -> None:
        """A send was accepted."""
        self._open[entry.number] = entry
        self._taken[entry.number] = None
        self._tally.posted_sends += 1

    def find(self, number: int) -> SendEntry | None:
        """Return the outstanding send of that number; None if RESET or destroy discarded it."""
        return self._open.get(number)

    def finish(self, entry: SendEntry, status: ibv_wc_status) -> bool:
        """A send ended, and with it the unsignalled ones before it, well.

        Returns: whether it has a completion.

        Raises:
            InternalError: an earlier one is signalled and has not ended, or this one has ended before.
        """
        if self._open.get(entry.number) is not entry:
            raise InternalError(f"send {entry.number} ended twice")
        while True:
            number, first = self._open.popitem(last=False)
            if number == entry.number:
                break
            if first.signalled:
                raise InternalError(f"send {entry.number} completed before send {number}")
            self._tally.silent += 1
        if status != IBV_WC_SUCCESS:
            self._tally.failed_sends += 1
            return True
        if entry.signalled:
            self._tally.signalled += 1
        else:
            self._tally.silent += 1
        return entry.signalled

    def ended_with(self, entry: SendEntry) -> Iterator[SendEntry]:
        """Return the outstanding sends that end when `entry` does: itself and those before it."""
        for other in self._open.values():
            yield other
            if other is entry:
                return

    def first(self) -> SendEntry | None:
        """Return the oldest send that has not ended."""
        return next(iter(self._open.values()), None)

    def retire(self, number: int) -> None:
        """The completion of a send was polled: its slot and those before it are free."""
        while number in self._taken:
            self._taken.popitem(last=False)

    def discard(self) -> list[SendEntry]:
        """RESET or destroy: nothing of what is outstanding completes any more; returns it."""
        entries = list(self._open.values())
        self._tally.discarded_sends += len(entries)
        self._open.clear()
        self._taken.clear()
        return entries


class RecvQueue:
    """The posted receives of a queue pair or of a shared receive queue.

    Args:
        depth: `max_recv_wr` or `max_wr`. tally: where it counts.
    """

    def __init__(self, depth: int, tally: Tally) -> None:
        self.depth, self._tally = depth, tally
        self._open: OrderedDict[int, RecvEntry] = OrderedDict()
        self._next = self._held = 0

    @property
    def room(self) -> int:
        """Free slots; a slot is taken until the receive's completion is polled."""
        return self.depth - len(self._open) - self._held

    @property
    def outstanding(self) -> int:
        """Receives that wait for a message."""
        return len(self._open)

    def take_number(self) -> int:
        """Return the number of the next request."""
        self._next += 1
        return (self._next - 1) % NUMBERS

    def push(self, entry: RecvEntry) -> None:
        """A receive was accepted."""
        self._open[entry.number] = entry
        self._tally.posted_recvs += 1

    def waiting(self) -> set[int]:
        """The `wr_id` of every receive that waits for a message."""
        return {entry.wr_id for entry in self._open.values()}

    def has(self, number: int) -> bool:
        """Whether a receive waits."""
        return number in self._open

    def pop(self, number: int) -> RecvEntry | None:
        """A receive was consumed or flushed; None if RESET or destroy discarded it."""
        entry = self._open.pop(number, None)
        self._held += entry is not None
        return entry

    def count(self, status: ibv_wc_status) -> None:
        """Count how a receive ended."""
        if status == IBV_WC_SUCCESS:
            self._tally.received += 1
        else:
            self._tally.failed_recvs += 1

    def lose(self) -> None:
        """A receive was consumed for a queue pair that is gone: it has no completion."""
        self._held -= 1
        self._tally.discarded_recvs += 1

    def retire(self) -> None:
        """A completion of a receive was polled."""
        self._held -= self._held > 0

    def discard(self) -> None:
        """RESET or destroy: nothing of what is posted completes any more."""
        self._tally.discarded_recvs += len(self._open)
        self._open.clear()
        self._held = 0
