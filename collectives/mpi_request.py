"""Requests of collectives, beside those of messages in the same lists.

`Request` has the calls on lists for both kinds. A collective passes its virtual time in a wait: so `Test` of
one completes it, waiting for the other ranks if they are not there yet. (MPI's is to return at once; a
program that must go on before the others enter has to put the wait later.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from collectives.work import Work
from memsem import request, waiting
from memsem.endpoint import Endpoint
from memsem.status import EMPTY, Status

Statuses = list[Status] | None


class _Either(type):
    """Requests of messages count as `Request` too."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, request.Request)


class CollectiveRequest(request.Request):
    """A collective under way, or one that has ended.

    Args:
        finish: what is left to do when it is complete (bytes into a strided buffer).
    """

    def __init__(self, work: Work, endpoint: Endpoint, finish: Callable[[], None] | None = None) -> None:
        super().__init__()
        self._work: Work | None = work
        self._where, self._finish = endpoint, finish

    @property
    def endpoint(self) -> Endpoint:
        return self._where

    def __bool__(self) -> bool:
        return self._work is not None

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, request.Request) and not self and not other)

    __hash__ = request.Request.__hash__

    def is_active(self) -> bool:
        return self._work is not None

    def is_ready(self) -> bool:
        return self._work is None or self._work.is_completed()

    def complete(self) -> None:
        """Wait for the end; it stays to be ended by a wait or test. Raises: as `Work.wait`."""
        if self._work is not None and not self._work.is_completed():
            self._work.wait()

    def settle(self, status: Status | None) -> tuple[int, Any]:
        if self._work is not None:
            self._work.wait()  # raises what it ended with
        finish, self._finish, self._work = self._finish, None, None
        if finish is not None:
            finish()
        (status or Status()).fill(*EMPTY)
        return 0, None

    def wait(self, status: Status | None = None) -> Any:
        """Wait for the end. Raises: as `Work.wait`."""
        return self.settle(status)[1]

    def test(self, status: Status | None = None) -> tuple[bool, Any]:
        """Complete it; always (True, None)."""
        return True, self.settle(status)[1]

    def Get_status(self, status: Status | None = None) -> bool:
        """Complete it and leave it as it is; always True."""
        self.complete()
        (status or Status()).fill(*EMPTY)
        return True

    get_status = Get_status

    def Cancel(self) -> None:
        """Nothing: a collective cannot be taken back."""

    cancel = Cancel

    def _clear(self) -> None:
        self.settle(None)


def _complete(requests: Sequence[request.Request], all_: bool) -> None:
    """Complete the collectives among requests; unless `all_`, only the first, and only if nothing has
    ended."""
    if not all_ and waiting.ended(requests):
        return
    for one in requests:
        if isinstance(one, CollectiveRequest) and one:
            one.complete()
            if not all_:
                return


class Request(request.Request, metaclass=_Either):
    """The calls on lists of requests of either kind."""

    @classmethod
    def waitall(cls, requests: Sequence[request.Request], statuses: Statuses = None) -> list[Any]:
        """Wait for all; returns the objects received."""
        _complete(requests, all_=True)
        return super().waitall(requests, statuses)

    @classmethod
    def waitany(cls, requests: Sequence[request.Request], status: Status | None = None) -> tuple[int, Any]:
        """Wait until one has ended; collectives before messages."""
        _complete(requests, all_=False)
        return super().waitany(requests, status)

    @classmethod
    def waitsome(
        cls, requests: Sequence[request.Request], statuses: Statuses = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """Wait until at least one has ended; collectives before messages."""
        _complete(requests, all_=False)
        return super().waitsome(requests, statuses)

    @classmethod
    def testall(
        cls, requests: Sequence[request.Request], statuses: Statuses = None
    ) -> tuple[bool, list[Any] | None]:
        """Return whether all have ended; completes collectives."""
        _complete(requests, all_=True)
        return super().testall(requests, statuses)

    @classmethod
    def testany(
        cls, requests: Sequence[request.Request], status: Status | None = None
    ) -> tuple[int, bool, Any]:
        """Return one that has ended; completes a collective."""
        _complete(requests, all_=False)
        return super().testany(requests, status)

    @classmethod
    def testsome(
        cls, requests: Sequence[request.Request], statuses: Statuses = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """Return all that have ended; completes a collective."""
        _complete(requests, all_=False)
        return super().testsome(requests, statuses)
