"""Atomics on elements against numpy's own arithmetic, all operations, widths and signs."""

import numpy as np
import pytest

from emulator import rmw
from emulator.engine.api import ATOMIC_ADD, ATOMIC_AND, ATOMIC_OR, ATOMIC_XOR, CAS, LOG_PUT, LOG_RMW, SWAP

NUMPY = {
    ATOMIC_ADD: lambda a, b, c: a + b,
    SWAP: lambda a, b, c: b,
    CAS: lambda a, b, c: np.where(a == c, b, a),
    ATOMIC_AND: lambda a, b, c: a & b,
    ATOMIC_OR: lambda a, b, c: a | b,
    ATOMIC_XOR: lambda a, b, c: a ^ b,
}


@pytest.mark.parametrize("dtype", ["i4", "u4", "i8", "u8"])
@pytest.mark.parametrize("operation", NUMPY)
def test_every_operation_on_every_element_type(operation: int, dtype: str) -> None:
    info = np.iinfo(dtype)
    values = [info.min, info.max, 0, 1, 7, info.max - 1]
    for old in values:
        for operand in values:
            for compare in (old, 7):
                element = np.array([old], dtype)
                with np.errstate(over="ignore"):
                    a, b, c = (np.array([x], dtype) for x in (old, operand, compare))
                    want = NUMPY[operation](a, b, c).astype(dtype)
                op_id = rmw.marked(12345, operation)
                before = rmw.apply(op_id, element.view(np.uint8), int(operand), int(compare))
                assert element == want, (old, operand, compare)
                assert before.view(dtype)[0] == old


def test_log_kinds_say_operation_and_width() -> None:
    kinds = np.array([0, LOG_PUT, rmw.log_kind(ATOMIC_ADD, 4), rmw.log_kind(ATOMIC_XOR, 8)], np.int32)
    plain, operations = rmw.split_log_kinds(kinds)
    assert plain.tolist() == [0, LOG_PUT, LOG_RMW, LOG_RMW]
    assert operations.tolist() == [0, 0, ATOMIC_ADD, ATOMIC_XOR]


def test_the_mark_leaves_the_number_s_place_in_a_ring() -> None:
    for number in (1, 255, 256, 70_001):
        assert rmw.marked(number, ATOMIC_XOR) % 256 == number % 256
        assert rmw.operation_of(rmw.marked(number, CAS)) == CAS
