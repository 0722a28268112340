"""Point to point in a group: messages of `memsem` in a context of the group's own."""

from __future__ import annotations

import numpy as np

from collectives.agreement import DTYPES
from collectives.buffers import Array, dtype_of, fill, raw_of
from collectives.groups import Group
from emulator.errors import DtypeError, SizeError
from memsem.mailbox import Bytes
from memsem.message import Comm
from memsem.request import Request
from memsem.status import ANY_SOURCE, Status


class TypedComm(Comm):
    """A group's messages: each says what its elements are, where that is one of the first 15 of `DTYPES`."""

    def start(self, data: Bytes, dest: int, tag: int, dtype: np.dtype) -> Request:
        """`Isend` of elements of `dtype`."""
        return Request.of(self, self._post(data, "Isend", dest, tag, _kind_of(dtype)))


def _kind_of(dtype: np.dtype) -> int:
    place = DTYPES.index(dtype.name) + 1 if dtype.name in DTYPES else 0
    return place if place < 16 else 0


class Transfer:
    """A message on its way; complete after `wait`.

    Attributes:
        source: rank in the group that sent what was received, -1 before and for a send.
        start_ps, end_ps: virtual times of call and completion (-1 before).
    """

    algorithm = "message"

    def __init__(self, group: Group, request: Request, buffer: Array | None, data: Array) -> None:
        self.group, self._request, self._buffer, self._data = group, request, buffer, data
        self._operation = request.operations[-1]
        self.start_ps, self.end_ps, self.source = group.device.now_ps, -1, -1

    def is_completed(self) -> bool:
        """Whether it has ended; looks once for news, which may move the clock to the next poll."""
        if self.end_ps < 0:
            status = Status()
            if self._request.Test(status):
                self._end(status)
        return self.end_ps >= 0

    def wait(self, timeout_ps: int | None = None) -> None:
        """Complete it. Blocks. Raises: Exception of messages (a longer one came), DeadlockError."""
        if self.end_ps < 0:
            status = Status()
            self._request.Wait(status)
            self._end(status)

    def _end(self, status: Status) -> None:
        self.end_ps = self.group.device.now_ps
        if self._buffer is None:
            return
        self.source, count = status.Get_source(), status.Get_count()
        if count != self._data.size:
            raise self.group.error(
                SizeError,
                f"recv: a message of {count} bytes from rank {self.source} of group {self.group.name} came "
                f"for a buffer of {self._data.size}",
                count,
            )
        came, mine = self._operation.kind, _kind_of(self._buffer.dtype)
        if came and mine and came != mine:
            text = f"recv: {DTYPES[came - 1]} came from rank {self.source} of group {self.group.name}"
            raise self.group.error(DtypeError, f"{text} for a buffer of {self._buffer.dtype}", came)
        fill(self._buffer, self._data)


def send(group: Group, buffer: Array, dest: int, tag: int = 0, async_op: bool = False) -> Transfer:
    """Send `buffer` to rank `dest` of the group.

    Completion: small messages at once, larger ones when the receiver has fetched them. Raises: Exception of
    messages for ranks and tags that are none; DtypeError.
    """
    dtype_of(buffer, "bfloat16" if buffer.dtype == np.uint16 else None, "send")
    data = raw_of(buffer)
    transfer = Transfer(group, comm_of(group).start(data, dest, tag, buffer.dtype), None, data)
    if not async_op:
        transfer.wait()
    return transfer


def recv(group: Group, buffer: Array, source: int | None, tag: int = 0, async_op: bool = False) -> Transfer:
    """Receive into `buffer` from rank `source` of the group, None for any. Raises: as `send`; SizeError,
    DtypeError: another length or type came."""
    data = np.empty(buffer.nbytes, np.uint8)
    request = comm_of(group).Irecv(data, ANY_SOURCE if source is None else source, tag)
    transfer = Transfer(group, request, buffer, data)
    if not async_op:
        transfer.wait()
    return transfer


def comm_of(group: Group) -> TypedComm:
    """The group's context for messages."""
    if group.comm is None:
        group.comm = group.communicator("messages", TypedComm)
    assert isinstance(group.comm, TypedComm)
    return group.comm
