"""Atomics on array elements: what a read-modify-write does to 4 or 8 bytes. Pure.

The engine orders them: a post of kind K_GET whose log entry says LOG_RMW takes effect when its entry does, in
key order with puts and snapshots of the same memory. The entry carries the element (`offset`, `nbytes`), the
operand and the comparand (`a`, `b`); operation and width are in the entry's kind, see `log_kind`. Signed and
unsigned elements need no telling apart: two's complement adds, compares for equality and masks alike.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from emulator.engine.api import (
    ATOMIC_ADD,
    ATOMIC_AND,
    ATOMIC_OR,
    ATOMIC_XOR,
    CAS,
    LOG_PUT,
    LOG_RMW,
    LOG_SNAPSHOT,
    SWAP,
)

OPERATIONS = (ATOMIC_ADD, SWAP, CAS, ATOMIC_AND, ATOMIC_OR, ATOMIC_XOR)
WIDTHS = (4, 8)
_BASE = 7
_WIDE = 8
Bytes = npt.NDArray[np.uint8]


def log_kind(operation: int, nbytes: int) -> int:
    """Return the log kind of an atomic on an element of `nbytes` (4 or 8): LOG_RMW + 8 if wide + 16 x
    operation."""
    assert operation in OPERATIONS and nbytes in WIDTHS, (operation, nbytes)
    return LOG_RMW + (_WIDE if nbytes == 8 else 0) + 16 * operation


Kind = TypeVar("Kind", int, npt.NDArray[np.int32])


def base_kind(kind: Kind) -> Kind:
    """Return LOG_PUT, LOG_SNAPSHOT, LOG_RMW or LOG_DROP: a log kind without operation and width."""
    return kind & _BASE


def apply(kind: int, element: Bytes, operand: int, compare: int) -> Bytes:
    """Carry out an atomic on an element in place.

    Args:
        kind: a log kind of `log_kind`.
        element: uint8 [4 or 8], the element's bytes.
        operand, compare: numbers of any width; they wrap to the element's.

    Returns:
        uint8 [4 or 8], the bytes before.
    """
    before = element.copy()
    old = int.from_bytes(before.tobytes(), "little")
    new = modified(kind >> 4, old, operand, compare, 8 * element.size)
    element[:] = np.frombuffer(new.to_bytes(element.size, "little"), np.uint8)
    return before


def modified(operation: int, old: int, operand: int, compare: int, bits: int) -> int:
    """Return what an element of `bits` holds after the operation; all values taken modulo 2**bits."""
    mask = (1 << bits) - 1
    operand, compare = operand & mask, compare & mask
    if operation == ATOMIC_ADD:
        return (old + operand) & mask
    if operation == SWAP:
        return operand
    if operation == CAS:
        return operand if old == compare else old
    if operation == ATOMIC_AND:
        return old & operand
    return old | operand if operation == ATOMIC_OR else old ^ operand


def takes_bytes(kind: int) -> bool:
    """Whether an entry hands bytes back to its poster."""
    return base_kind(kind) in (LOG_SNAPSHOT, LOG_RMW)


def changes_bytes(kind: int) -> bool:
    """Whether an entry changes the memory it is about."""
    return base_kind(kind) in (LOG_PUT, LOG_RMW)
