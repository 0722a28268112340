"""Messages found and taken by `Mprobe` and `Improbe`: whoever holds one, and nobody else, receives it.

The engine has no matched probe: taking a message is a receive that it alone can match, posted while it is
the oldest of its sender and tag. So the payload of a long one is fetched from the probe on.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from memsem.bufspec import BufSpec, parse
from memsem.mailbox import Bytes, Operation
from memsem.mpi_errors import ERR_REQUEST, ERR_TRUNCATE, SUCCESS, failure
from memsem.request import Request
from memsem.status import PROC_NULL, Status

if TYPE_CHECKING:
    from memsem.message import Comm
    from memsem.transfers import Transfers


class Message:
    """A message taken from its queue. Null after it was received."""

    def __init__(self, comm: Transfers, operation: Operation, heard: list[Bytes]) -> None:
        self._comm, self._operation, self._heard = comm, operation, heard

    def __bool__(self) -> bool:
        return self._operation is not _RECEIVED

    @classmethod
    def Probe(cls, comm: Comm, source: int = -1, tag: int = -1, status: Status | None = None) -> Message:
        """`comm.Mprobe`."""
        return comm.Mprobe(source, tag, status)

    @classmethod
    def Iprobe(
        cls, comm: Comm, source: int = -1, tag: int = -1, status: Status | None = None
    ) -> Message | None:
        """`comm.Improbe`."""
        return comm.Improbe(source, tag, status)

    def Recv(self, buf: BufSpec, status: Status | None = None) -> None:
        """Receive it into `buf`. Raises: as `Comm.Recv`; Exception (ERR_REQUEST) when it was received."""
        self.Irecv(buf).Wait(status)

    def Irecv(self, buf: BufSpec) -> Request:
        """Start to receive it into `buf`."""
        nothing = self._operation.source == PROC_NULL
        buffer = None if nothing else parse(buf, True)
        return self._request(lambda data: buffer.unpack(data) if buffer else None, buffer and buffer.nbytes)

    def recv(self, status: Status | None = None) -> Any:
        """Receive it as an object."""
        return self.irecv().wait(status)

    def irecv(self) -> Request:
        """Start to receive it as an object."""
        return self._request(lambda data: pickle.loads(data.tobytes()), None)

    probe, iprobe = Probe, Iprobe

    def _request(self, use: Callable[[Bytes], Any], room: int | None) -> Request:
        operation, heard = self._operation, self._heard
        if operation is _RECEIVED:
            raise failure(ERR_REQUEST, "the message has been received", value=None)
        self._operation = _RECEIVED
        if room is not None:
            operation.capacity = room
            operation.error = ERR_TRUNCATE if operation.nbytes > room else SUCCESS
        if heard:
            use_now = [use(heard[0])]
            return Request.of(self._comm, operation, decode=lambda: use_now[0])
        made: list[Any] = []
        operation.sink = lambda data: made.append(use(data))
        return Request.of(self._comm, operation, decode=lambda: made[0] if made else None)


_RECEIVED = Operation("received")
