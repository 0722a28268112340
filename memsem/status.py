"""What is known about a message that was received or found: from whom, with which tag, how long."""

from __future__ import annotations

from memsem.basic_types import BYTE
from memsem.datatypes import Datatype
from memsem.mpi_errors import SUCCESS

ANY_SOURCE = -1
ANY_TAG = -1
PROC_NULL = -2
LARGEST_TAG = 2**31 - 1


class Status:
    """A message's envelope, or the empty status: source ANY_SOURCE, tag ANY_TAG, no bytes.

    Attributes:
        source: rank in the communicator of the call. tag, error: as MPI's. cancelled: by `Request.Cancel`.
        count: bytes that were sent, also where the receiver had room for fewer.
    """

    def __init__(self, status: Status | None = None) -> None:
        self.source, self.tag, self.error = ANY_SOURCE, ANY_TAG, SUCCESS
        self.count, self.cancelled = 0, False
        if status is not None:
            self.assign(status)

    def assign(self, other: Status) -> None:
        """Take over every field."""
        self.source, self.tag, self.error = other.source, other.tag, other.error
        self.count, self.cancelled = other.count, other.cancelled

    def fill(self, source: int, tag: int, nbytes: int, error: int = SUCCESS, cancelled: bool = False) -> None:
        """Set every field."""
        self.source, self.tag, self.error = source, tag, error
        self.count, self.cancelled = nbytes, cancelled

    def Get_source(self) -> int:
        """Return the sender."""
        return self.source

    def Set_source(self, source: int) -> None:
        """Set the sender."""
        self.source = source

    def Get_tag(self) -> int:
        """Return the tag."""
        return self.tag

    def Set_tag(self, tag: int) -> None:
        """Set the tag."""
        self.tag = tag

    def Get_error(self) -> int:
        """Return the error number."""
        return self.error

    def Set_error(self, error: int) -> None:
        """Set the error number."""
        self.error = error

    def Get_count(self, datatype: Datatype = BYTE) -> int:
        """Return the elements of `datatype` in the message, UNDEFINED when it ends within one."""
        return datatype.count_of(self.count)

    def Get_elements(self, datatype: Datatype) -> int:
        """Return the basic elements of `datatype` in the message, UNDEFINED when it ends within one."""
        return datatype.elements_of(self.count)

    def Set_elements(self, datatype: Datatype, count: int) -> None:
        """Set the length to `count` elements of `datatype`."""
        self.count = count * datatype.size

    def Is_cancelled(self) -> bool:
        """Return whether the receive was cancelled."""
        return self.cancelled

    def Set_cancelled(self, flag: bool) -> None:
        """Set whether it was cancelled."""
        self.cancelled = flag

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Status) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


EMPTY = (ANY_SOURCE, ANY_TAG, 0)
"""Source, tag and bytes of the empty status."""
