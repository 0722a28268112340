"""Atomics on elements of a window: 32- and 64-bit integers, signed or not; arithmetic wraps.

An atomic takes effect at the owner in one step, in one order with every put and get of that memory; so the
values fetched from one element are the same on every run. It travels as a request and an answer of 8 bytes.

Source: OpenSHMEM 1.5, 9.7. Fetching ones block; `_nbi` ones and those that fetch nothing are complete after
`wait` or `quiet`. `fence` orders where they take effect, not when an answer is here.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from emulator.engine.api import ATOMIC_ADD, ATOMIC_AND, ATOMIC_OR, ATOMIC_XOR, CAS, SWAP
from emulator.engine.posts import ORD_FENCE
from emulator.errors import DtypeError
from emulator.rmw import modified
from memsem.checkfile import Kind
from memsem.operations import Pending
from memsem.ordering import UNORDERED, OrderFlags
from memsem.signals import Signals

_TYPES = frozenset(np.dtype(name) for name in ("i4", "u4", "i8", "u8"))
Order = str | OrderFlags


class Atomics(Signals):
    """Atomic calls. All take the target rank, the element and operands that fit the window's dtype; `order`
    as `put`.

    Raises, all of them:
        DtypeError: the window holds no 32- or 64-bit integers, or an operand does not fit them.
        OffsetError: no such element. UsageError: no such rank. RankLostError: dst is known to be dead.
    """

    def fetch_add(self, dst: int, offset: int, value: int, *, order: Order = UNORDERED) -> int:
        """Add `value`; returns what was there. Blocks."""
        return self._fetching(dst, offset, ATOMIC_ADD, value, 0, order)

    def swap(self, dst: int, offset: int, value: int, *, order: Order = UNORDERED) -> int:
        """Store `value`; returns what was there. Blocks."""
        return self._fetching(dst, offset, SWAP, value, 0, order)

    def compare_swap(
        self, dst: int, offset: int, compare: int, value: int, *, order: Order = UNORDERED
    ) -> int:
        """Store `value` if `compare` is there; returns what was there. Blocks."""
        return self._fetching(dst, offset, CAS, value, compare, order)

    def fetch_and(self, dst: int, offset: int, value: int, *, order: Order = UNORDERED) -> int:
        """Keep the bits that `value` has too; returns what was there. Blocks."""
        return self._fetching(dst, offset, ATOMIC_AND, value, 0, order)

    def fetch_or(self, dst: int, offset: int, value: int, *, order: Order = UNORDERED) -> int:
        """Set the bits of `value`; returns what was there. Blocks."""
        return self._fetching(dst, offset, ATOMIC_OR, value, 0, order)

    def fetch_xor(self, dst: int, offset: int, value: int, *, order: Order = UNORDERED) -> int:
        """Turn the bits of `value`; returns what was there. Blocks."""
        return self._fetching(dst, offset, ATOMIC_XOR, value, 0, order)

    def fetch(self, dst: int, offset: int, *, order: Order = UNORDERED) -> int:
        """Return what is there, in one step also where others change it. Blocks."""
        return self._fetching(dst, offset, ATOMIC_OR, 0, 0, order)

    def fetch_add_nbi(self, dst: int, offset: int, value: int, *, order: Order = UNORDERED) -> Pending:
        """Start a `fetch_add`; `wait` of the result returns what was there."""
        return self._started(dst, offset, ATOMIC_ADD, value, 0, order)

    def swap_nbi(self, dst: int, offset: int, value: int, *, order: Order = UNORDERED) -> Pending:
        """Start a `swap`; `wait` of the result returns what was there."""
        return self._started(dst, offset, SWAP, value, 0, order)

    def compare_swap_nbi(
        self, dst: int, offset: int, compare: int, value: int, *, order: Order = UNORDERED
    ) -> Pending:
        """Start a `compare_swap`; `wait` of the result returns what was there."""
        return self._started(dst, offset, CAS, value, compare, order)

    def add(self, dst: int, offset: int, value: int, *, order: Order = UNORDERED) -> None:
        """Add `value`, fetching nothing. Complete after `quiet`; ordered by `fence`."""
        self._silent(dst, offset, ATOMIC_ADD, value, order)

    def set(self, dst: int, offset: int, value: int, *, order: Order = UNORDERED) -> None:
        """Store `value` in one step, fetching nothing. Complete after `quiet`; ordered by `fence`."""
        self._silent(dst, offset, SWAP, value, order)

    def _silent(self, dst: int, offset: int, operation: int, value: int, order: Order) -> None:
        self._started(dst, offset, operation, value, 0, order)

    def _fetching(self, dst: int, offset: int, operation: int, value: int, compare: int, order: Order) -> int:
        _, finish = self._start(dst, offset, operation, value, compare, order)
        old = finish()
        self._note(dst, offset, (operation, value, compare), old)
        return old

    def _started(
        self, dst: int, offset: int, operation: int, value: int, compare: int, order: Order
    ) -> Pending:
        handle, finish = self._start(dst, offset, operation, value, compare, order)
        return self._ops.started_get(handle, self._note(dst, offset), finish)

    def _start(
        self, dst: int, offset: int, operation: int, value: int, compare: int, order: Order
    ) -> tuple[int, Callable[[], int]]:
        """Post an atomic; returns its handle and what waits for it and returns what was there."""
        home, ops, size, device = self._rank(dst), self._ops, self.dtype.itemsize, self._device
        if self.dtype not in _TYPES:
            message = f"atomics take int32, uint32, int64 or uint64; the window holds {self.dtype}"
            raise self._error(DtypeError, message, str(self.dtype))
        self._check_range("atomic", offset, 1)
        self._check_operand(value)
        self._check_operand(compare)
        ops.enter()
        ops.make_room()
        flags = self._flags(order)
        fields = {"order": flags.bits, "rd_below": int(flags.fence)}
        if device.fence_seq:  # a request is faster than a put: even the fabric's own order needs it
            fields |= {"order": flags.bits | ORD_FENCE, "fence": device.fence_seq}
        fields |= ops.atomic_shape(home)._asdict()
        low = self._byte(offset)
        handle = device.start_rmw(home, low, operation, size, int(value), int(compare), **fields)
        return handle, lambda: int(device.wait_get(handle).view(self.dtype)[0])

    def _check_operand(self, value: int) -> None:
        info = np.iinfo(self.dtype)
        if not isinstance(value, int | np.integer) or not info.min <= value <= info.max:
            message = f"atomic: {value!r} does not fit the window's {self.dtype}"
            raise self._error(DtypeError, message, value)

    def _note(self, dst: int, offset: int, done: tuple[int, int, int] | None = None, old: int = 0) -> int:
        """Record an atomic for the race checker: when it starts, or when it has found `old`."""
        ops, low = self._ops, self._byte(offset)
        if ops.check is None:
            return -1
        where = {"home": self._rank(dst), "low": low, "high": low + self.dtype.itemsize}
        if done is None:
            return ops.note(Kind.ATOMIC, **where)
        new = modified(done[0], old, done[1], done[2], 8 * self.dtype.itemsize)
        seen = int(np.array([new], f"u{self.dtype.itemsize}").view(self.dtype).astype(np.int64)[0])
        found = int(np.array([old], self.dtype).astype(np.int64)[0])
        record = ops.note(Kind.ATOMIC, op=1, value=found, seen=seen, **where)
        return ops.note(Kind.DONE, index=record)
