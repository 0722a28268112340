"""Requests: what a non-blocking call hands back, and the ways to wait for one, any, some or all of them.

A request that has ended becomes null, a persistent one inactive; waiting for either returns at once with the
empty status. Upper-case calls answer flags and indices, lower-case ones also the objects received.

Every wait or test is an observation point; a test in vain costs a poll. Where several have ended, `Waitany`
and `Testany` take the first of the list.

Source: MPI 4.1, sections 3.7 and 3.9; names, arguments and answers as mpi4py's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from memsem import waiting
from memsem.datatypes import UNDEFINED
from memsem.endpoint import Endpoint
from memsem.mailbox import Operation
from memsem.mpi_errors import ERR_REQUEST, SUCCESS, failure
from memsem.status import EMPTY, Status

if TYPE_CHECKING:
    from memsem.communicator import Communicator

Statuses = list[Status] | None


class Request:
    """A communication under way, or null. Made by the `I…` calls of a communicator."""

    def __init__(self, request: Request | None = None) -> None:
        self._comm: Communicator | None = None
        self.operations: tuple[Operation, ...] = ()
        self._decode: Callable[[], Any] | None = None
        if request is not None:
            self._comm, self.operations, self._decode = request._comm, request.operations, request._decode

    @classmethod
    def of(
        cls, comm: Communicator, *operations: Operation, decode: Callable[[], Any] | None = None
    ) -> Request:
        """Make a request of operations that end together; the last one gives the status, `decode` the object
        of a lower-case wait."""
        request = cls()
        request._comm, request.operations, request._decode = comm, operations, decode
        return request

    def __bool__(self) -> bool:
        return bool(self.operations)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Request):
            return NotImplemented
        return self is other or (not self and not other) or (self.operations == other.operations != ())

    def __hash__(self) -> int:
        return id(self)

    # --- one request ------------------------------------------------------------------------------------

    def Wait(self, status: Status | None = None) -> Literal[True]:
        """Wait for the end.

        Raises:
            Exception: ERR_TRUNCATE, the message was longer than the buffer (which is full now).
            DeadlockError, RankLostError: it can never end.
        """
        self.wait(status)
        return True

    def Test(self, status: Status | None = None) -> bool:
        """Return whether it has ended, by now; if so it is over as after `Wait`."""
        return self.test(status)[0]

    def Get_status(self, status: Status | None = None) -> bool:
        """Return whether it has ended, and leave it as it is."""
        waiting.poll([self])
        if not self.is_ready():
            return False
        self._fill(status)
        return True

    def wait(self, status: Status | None = None) -> Any:
        """Wait for the end; returns the object received, None for others. Raises as `Wait`."""
        waiting.wait([self], lambda: self.is_ready())
        return self.finish(status)

    def test(self, status: Status | None = None) -> tuple[bool, Any]:
        """Return whether it has ended and the object received, None for others."""
        waiting.poll([self])
        return (True, self.finish(status)) if self.is_ready() else (False, None)

    def Cancel(self) -> None:
        """Take a receive back if no message has reached it; the next wait or test tells by
        `Status.Is_cancelled`. A send goes on."""
        for operation in self.operations:
            if operation.sink is not None:
                self.endpoint.cancel(operation)

    def Free(self) -> None:
        """Forget the request; what it stands for goes on.

        Raises:
            Exception: ERR_REQUEST for a null request.
        """
        if not self:
            raise failure(ERR_REQUEST, "a null request cannot be freed", value=None)
        self._clear()

    def free(self) -> None:
        """`Free` unless null."""
        if self:
            self.Free()

    # --- parts ------------------------------------------------------------------------------------------

    @property
    def endpoint(self) -> Endpoint:
        """The rank's endpoint, of the communicator it was started on."""
        assert self._comm is not None
        return self._comm.endpoint

    def is_active(self) -> bool:
        """Whether it was started and has not been ended by a wait, a test or a free."""
        return bool(self.operations)

    def is_ready(self) -> bool:
        """Whether a wait would return at once; an inactive request is ready."""
        return all(operation.done for operation in self.operations)

    def _clear(self) -> None:
        self.operations, self._decode = (), None

    def _fill(self, status: Status | None) -> int:
        """Write the status; returns the error number."""
        if not self.operations or self._comm is None:
            (status or Status()).fill(*EMPTY)
            return SUCCESS
        last = self.operations[-1]
        if status is not None:
            source = self._comm.rank_of(last.source) if last.matched else last.source
            status.fill(source, last.tag, last.nbytes, SUCCESS, last.cancelled)
        return last.error

    def settle(self, status: Status | None) -> tuple[int, Any]:
        """End a request that is ready: pay, write the status; returns error number and object."""
        error = self._fill(status)
        for operation in self.operations:
            self.endpoint.charge(operation)
        cancelled = bool(self.operations) and self.operations[-1].cancelled
        decode = None if error or cancelled else self._decode
        self._clear()
        return error, decode() if decode else None

    def finish(self, status: Status | None) -> Any:
        """End it and return its object, if it has one. Raises: Exception, as `failed` says."""
        call = self.operations[-1] if self.operations else Operation()
        error, thing = self.settle(status)
        if error:
            raise self.failed(error, call)
        return thing

    def failed(self, error: int, of: Operation) -> BaseException:
        """Return the exception of a message that was longer than its room."""
        device = self.endpoint.device
        return failure(
            error,
            f"{of.call}: {of.nbytes} bytes came, there is room for {of.capacity}",
            rank=device.rank,
            now_ps=device.now_ps,
            value=of.nbytes,
        )

    # --- several requests -------------------------------------------------------------------------------

    @classmethod
    def Waitany(cls, requests: Sequence[Request], status: Status | None = None) -> int:
        """Wait until one has ended; returns its index, UNDEFINED when none is active."""
        return cls.waitany(requests, status)[0]

    @classmethod
    def Testany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool]:
        """Return index and flag of one that has ended; (UNDEFINED, True) when none is active."""
        index, flag, _ = cls.testany(requests, status)
        return index, flag

    @classmethod
    def Waitall(cls, requests: Sequence[Request], statuses: Statuses = None) -> Literal[True]:
        """Wait for all.

        Raises:
            Exception: ERR_IN_STATUS, some ended with an error; the statuses say which.
        """
        cls.waitall(requests, statuses)
        return True

    @classmethod
    def Testall(cls, requests: Sequence[Request], statuses: Statuses = None) -> bool:
        """Return whether all have ended; none is over before."""
        return cls.testall(requests, statuses)[0]

    @classmethod
    def Waitsome(cls, requests: Sequence[Request], statuses: Statuses = None) -> list[int] | None:
        """Wait until at least one has ended; returns the indices of all that have, None when none is
        active."""
        return cls.waitsome(requests, statuses)[0]

    @classmethod
    def Testsome(cls, requests: Sequence[Request], statuses: Statuses = None) -> list[int] | None:
        """Return the indices of those that have ended, None when none is active."""
        return cls.testsome(requests, statuses)[0]

    @classmethod
    def waitany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, Any]:
        """`Waitany` with the object received."""
        waiting.wait(requests, lambda: bool(waiting.ended(requests)) or not waiting.active(requests))
        return waiting.take_any(requests, status)

    @classmethod
    def testany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool, Any]:
        """`Testany` with the object received."""
        waiting.poll(requests)
        if waiting.active(requests) and not waiting.ended(requests):
            return UNDEFINED, False, None
        index, thing = waiting.take_any(requests, status)
        return index, True, thing

    @classmethod
    def waitall(cls, requests: Sequence[Request], statuses: Statuses = None) -> list[Any]:
        """`Waitall`; returns the objects received."""
        waiting.wait(requests, lambda: all(r.is_ready() for r in requests))
        return waiting.take(requests, range(len(requests)), statuses)

    @classmethod
    def testall(cls, requests: Sequence[Request], statuses: Statuses = None) -> tuple[bool, list[Any] | None]:
        """`Testall` with the objects received."""
        waiting.poll(requests, all_=True)
        if not all(r.is_ready() for r in requests):
            return False, None
        return True, waiting.take(requests, range(len(requests)), statuses)

    @classmethod
    def waitsome(
        cls, requests: Sequence[Request], statuses: Statuses = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """`Waitsome` with the objects received."""
        waiting.wait(requests, lambda: bool(waiting.ended(requests)) or not waiting.active(requests))
        return waiting.take_some(requests, statuses)

    @classmethod
    def testsome(
        cls, requests: Sequence[Request], statuses: Statuses = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """`Testsome` with the objects received."""
        waiting.poll(requests)
        return waiting.take_some(requests, statuses)

    cancel = Cancel
    get_status = Get_status


REQUEST_NULL = Request()
