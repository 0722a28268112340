"""Memory regions: pieces of my heap that work requests may name.

An address is a byte offset in its owner's heap. A region is four words of its owner, written and cleared in
virtual time, so a remote operation is judged by what stands there when it arrives: one that was posted before
`close` but arrives after it is refused.

Source: ibv_reg_mr(3): remote write and atomic access need local write.
"""

from __future__ import annotations

import errno
from typing import Any

import numpy as np
import numpy.typing as npt

from emulator.errors import UsageError, misuse
from memsem.verbs.enums import (
    IBV_ACCESS_LOCAL_WRITE,
    IBV_ACCESS_REMOTE_ATOMIC,
    IBV_ACCESS_REMOTE_WRITE,
    ibv_access_flags,
)
from memsem.verbs.keys import encode_key
from memsem.verbs.numbers import check_whole
from memsem.verbs.pd import PD
from memsem.verbs.resource import Resource
from memsem.verbs.verbs_error import PyverbsUserError

_ALL_ACCESS = sum(ibv_access_flags)


class MR(Resource):
    """A registered piece of this rank's heap.

    Args:
        pd: the protection domain.
        buffer: an array that is a contiguous view of this rank's heap (a window's `local`, for instance), or
            a number of bytes to allocate.
        access: `ibv_access_flags`. Local reads are always allowed.
        address: register `buffer` bytes at this address, instead of allocating them.

    Attributes:
        buf: address of the first byte. length: bytes. lkey, rkey: the keys.

    Raises:
        PyverbsUserError: the buffer is not in this rank's heap.
        PyverbsRDMAError: bad access flags (EINVAL), no room or no slot (ENOMEM).
    """

    def __init__(
        self, pd: PD, buffer: npt.NDArray[Any] | int, access: int, address: int | None = None
    ) -> None:
        self.pd, self.context = pd, pd.context
        check_whole(self.context, "MR: access", [access])
        if not 0 <= access <= _ALL_ACCESS:
            raise self.context.refusal(f"MR: access {access:#x} is not within {_ALL_ACCESS:#x}", access)
        self.access = ibv_access_flags(access)
        remote = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC
        if access & remote and not access & IBV_ACCESS_LOCAL_WRITE:
            raise self.context.refusal(f"MR: {self.access!r} needs IBV_ACCESS_LOCAL_WRITE", access)
        if not isinstance(buffer, np.ndarray):
            check_whole(self.context, "MR: length or address", (buffer, 0 if address is None else address))
            if buffer < 0:
                raise self.context.refusal(f"MR: a length of {buffer} bytes", buffer)
        self._allocated = not isinstance(buffer, np.ndarray) and address is None
        if not isinstance(buffer, np.ndarray):
            self.length = int(buffer)
            self.buf = self.context.take_memory(self.length) if address is None else address
        else:
            self.buf, self.length = self._locate(buffer)
        heap = self.context.device.heap.size
        if not 0 <= self.buf <= self.buf + self.length <= heap:
            raise self.context.refusal(
                f"MR: bytes {self.buf} to {self.buf + self.length} are not in the heap of {heap}", self.buf
            )
        taken = self.context.mrs.take(self)
        if taken is None:
            self._give_back()
            raise self.context.refusal(f"MR: all {self.context.mrs.size} regions are in use", 0, errno.ENOMEM)
        self._slot = taken[0]
        self.lkey = self.rkey = encode_key(*taken)
        self._register()
        super().__init__(pd)

    def _locate(self, buffer: npt.NDArray[Any]) -> tuple[int, int]:
        """Where in my heap an array lies: address and bytes."""
        heap = self.context.device.heap
        at = int(buffer.__array_interface__["data"][0]) - int(heap.__array_interface__["data"][0])
        contiguous = buffer.flags.c_contiguous or buffer.flags.f_contiguous
        if not contiguous or not 0 <= at <= at + buffer.nbytes <= heap.size:
            raise self._misuse(
                f"MR: the buffer (shape {buffer.shape}) is not a contiguous view of this rank's heap; "
                f"use PD.alloc, MR(pd, length, access) or a window's local array",
                at,
            )
        return at, buffer.nbytes

    def _register(self) -> None:
        context, word = self.context, self.context.layout.mr_word(self._slot)
        context.device.compute(context.device.fabric.control_ps(self.price), publish=False)
        context.post_local(
            {word + 1: self.buf, word + 2: self.length, word + 3: int(self.access), word: self.tag}
        )

    @property
    def tag(self) -> int:
        """What a remote operation must know: the key."""
        return self.rkey

    @property
    def price(self) -> str:
        """Which control-plane call a registration is charged as."""
        return "verbs_register"

    def covers(self, pd: PD, address: int, length: int, write: bool) -> bool:
        """Whether local work of `pd` may touch these bytes."""
        inside = self.buf <= address and address + length <= self.buf + self.length
        allowed = not write or bool(self.access & IBV_ACCESS_LOCAL_WRITE)
        return not self.closed and self.pd is pd and inside and allowed

    @property
    def view(self) -> npt.NDArray[np.uint8]:
        """My bytes, uint8 [length]: a view of the heap, as of my last observation."""
        return self.context.device.heap[self.buf : self.buf + self.length]

    def write(self, data: bytes | str, length: int, offset: int = 0) -> None:
        """Copy the first `length` bytes of `data` to `offset`. Raises: PyverbsUserError, they do not fit."""
        raw = data.encode() if isinstance(data, str) else data
        self._check(length, offset, len(raw))
        self.view[offset : offset + length] = np.frombuffer(raw[:length], np.uint8)

    def read(self, length: int, offset: int = 0) -> bytes:
        """Return `length` bytes from `offset`, as of now: an observation. Raises: PyverbsUserError."""
        self._check(length, offset, length)
        self.context.observe()
        return self.view[offset : offset + length].tobytes()

    def _check(self, length: int, offset: int, most: int) -> None:
        check_whole(self.context, "MR: length or offset", (length, offset))
        if self.closed:
            raise self._misuse("MR: it is closed", offset)
        if offset < 0 or not 0 <= length <= most or offset + length > self.length:
            raise self._misuse(
                f"MR: bytes {offset} to {offset + length} are not in a region of {self.length}", offset
            )

    def _misuse(self, message: str, value: int) -> UsageError:
        where = {"rank": self.context.rank, "now_ps": self.context.now_ps}
        return misuse(PyverbsUserError, message, value=value, **where)

    def _close(self) -> None:
        self.context.post_local({self.context.layout.mr_word(self._slot): 0})
        self.context.mrs.give(self._slot)
        self._give_back()

    def _give_back(self) -> None:
        if self._allocated:
            self.context.give_memory(self.buf, self.length)
