"""Persistent requests: a communication described once and started again and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from memsem.mailbox import Operation
from memsem.mpi_errors import ERR_REQUEST, failure
from memsem.request import Request

if TYPE_CHECKING:
    from memsem.communicator import Communicator


class Prequest(Request):
    """A communication that can be started again and again. Made by the `…_init` calls."""

    _begin: Callable[[], tuple[Operation, ...]] | None = None

    @classmethod
    def prepared(cls, comm: Communicator, begin: Callable[[], tuple[Operation, ...]]) -> Prequest:
        """Make an inactive request; `begin` posts it."""
        request = cls()
        request._comm, request._begin = comm, begin
        return request

    def __bool__(self) -> bool:
        return self._begin is not None

    def Start(self) -> None:
        """Start it.

        Raises:
            Exception: ERR_REQUEST for a freed request or one that has not ended.
        """
        if self._begin is None or self.operations:
            raise failure(ERR_REQUEST, "only an inactive persistent request starts", value=None)
        self.operations = self._begin()

    @classmethod
    def Startall(cls, requests: Sequence[Prequest]) -> None:
        """Start several, in order."""
        for request in requests:
            request.Start()

    def Free(self) -> None:
        """Forget the request; what it started goes on. Raises as `Request.Free`."""
        super().Free()
        self._begin = None
