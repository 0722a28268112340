"""Atomics on array elements: what a read-modify-write does to 4 or 8 bytes. Pure.

The engine orders them: a post of kind K_GET whose log entry says LOG_RMW takes effect when its entry does, in
key order with puts and snapshots of the same memory. The entry carries the element (`offset`, `nbytes`), the
operand and the comparand (`a`, `b`), and in the high byte of `op_id` the operation. Signed and unsigned
elements need no telling apart: two's complement adds, compares for equality and masks alike.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from emulator.engine.api import (
    ATOMIC_ADD,
    ATOMIC_AND,
    ATOMIC_OR,
    ATOMIC_XOR,
    CAS,
    LOG_DROP,
    LOG_PUT,
    LOG_RMW,
    LOG_SNAPSHOT,
    SWAP,
)

OPERATIONS = (ATOMIC_ADD, SWAP, CAS, ATOMIC_AND, ATOMIC_OR, ATOMIC_XOR)
WIDTHS = (4, 8)
_OPERATION_SHIFT = 56
Bytes = npt.NDArray[np.uint8]
Kinds = npt.NDArray[np.int32]


def log_kind(operation: int, nbytes: int) -> int:
    """Return what `Device.post` takes as the log kind of an atomic on an element of `nbytes` (4 or 8):
    LOG_RMW + 8 if wide + 16 x operation."""
    assert operation in OPERATIONS and nbytes in WIDTHS, (operation, nbytes)
    return LOG_RMW + (8 if nbytes == 8 else 0) + 16 * operation


def split_log_kinds(kinds: Kinds) -> tuple[Kinds, Kinds]:
    """Return the engine's log kinds and the operations of what `log_kind` made; others stay, operation 0."""
    atomic = kinds > LOG_DROP
    return np.where(atomic, kinds & 7, kinds), np.where(atomic, kinds >> 4, 0)


def marked(op_id: int, operation: int) -> int:
    """Return an operation number that also says which atomic it is."""
    return op_id | operation << _OPERATION_SHIFT


def apply(op_id: int, element: Bytes, operand: int, compare: int) -> Bytes:
    """Carry out an atomic on an element in place.

    Args:
        op_id: a `marked` operation number.
        element: uint8 [4 or 8], the element's bytes.
        operand, compare: numbers of any width; they wrap to the element's.

    Returns:
        uint8 [4 or 8], the bytes before.
    """
    before = element.copy()
    old = int.from_bytes(before.tobytes(), "little")
    new = modified(operation_of(op_id), old, operand, compare, 8 * element.size)
    element[:] = np.frombuffer(new.to_bytes(element.size, "little"), np.uint8)
    return before


def operation_of(op_id: int) -> int:
    """Return which atomic a `marked` operation number says."""
    return op_id >> _OPERATION_SHIFT


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
    return kind in (LOG_SNAPSHOT, LOG_RMW)


def changes_bytes(kind: int) -> bool:
    """Whether an entry changes the memory it is about."""
    return kind in (LOG_PUT, LOG_RMW)
