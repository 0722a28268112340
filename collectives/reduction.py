"""Adding up what several ranks gave, always in the order of their ranks, whatever carried the bytes.

    out = ((x[0] op x[1]) op x[2]) op …       each step rounded to the element's type once

So a result has the same bits for every algorithm, transport and layout. bfloat16 travels as 16-bit integers:
a step widens both sides to float32, adds, and rounds to nearest even.
"""

from __future__ import annotations

import difflib
from typing import Any

import numpy as np
import numpy.typing as npt

from collectives.agreement import OPS
from emulator.errors import DtypeError, UsageError

Array = npt.NDArray[Any]
_UFUNCS: dict[str, np.ufunc] = {
    "sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum,
    "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
}  # fmt: skip
_BITWISE = ("band", "bor", "bxor")


def checked_op(op: str, dtype: str, kind: str) -> None:
    """Refuse what cannot be. Raises: UsageError, no such op. DtypeError, the elements have none."""
    if op not in OPS:
        near = difflib.get_close_matches(str(op), OPS, n=1, cutoff=0.0)[0]
        raise UsageError(f"{kind}: op {op!r} is not one of {', '.join(OPS)}; nearest: {near}")
    is_float = dtype == "bfloat16" or np.dtype(dtype).kind in "fc"
    if op in _BITWISE and is_float:
        raise DtypeError(f"{kind}: {op} is for integers and bool, the elements are {dtype}", value=dtype)
    if op in ("min", "max") and dtype != "bfloat16" and np.dtype(dtype).kind == "c":
        raise DtypeError(f"{kind}: complex numbers have no {op}", value=dtype)


def fold(rows: Array, op: str, dtype: str) -> Array:
    """Reduce over the first axis in order.

    Args:
        rows: [g, m] of the element's type (16-bit integers for bfloat16), any strides.
        op: one of `agreement.OPS`. dtype: name of the element's type.

    Returns:
        [m], of the type of `rows`.
    """
    if dtype == "bfloat16":
        return _fold_bfloat16(rows, op)
    if len(rows) == 1 or rows.shape[1] == 0:
        out = rows[0].copy()
    elif rows.shape[1] == 1:  # one column would be added in pairs
        out = np.array([_UFUNCS[op].accumulate(rows[:, 0], dtype=rows.dtype)[-1]], rows.dtype)
    else:
        out = np.asarray(_UFUNCS[op].reduce(rows, axis=0, dtype=rows.dtype))
    return _average(out, len(rows)) if op == "avg" else out


def _average(total: Array, size: int) -> Array:
    if total.dtype.kind in "iu":
        wide = np.int64 if total.dtype.kind == "i" else np.uint64  # the type itself may not hold `size`
        return np.asarray(total.astype(wide) // wide(size)).astype(total.dtype)
    return np.asarray(total / np.asarray(size, total.dtype), total.dtype)


def widened(bits: Array) -> npt.NDArray[np.float32]:
    """float32 values of bfloat16 bits."""
    return (bits.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def rounded(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """bfloat16 bits nearest to float32 values, ties to even; not-a-number stays one."""
    bits = values.view(np.uint32)
    near = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), (bits >> 16).astype(np.uint16) | 0x40, near)


def _fold_bfloat16(rows: Array, op: str) -> Array:
    ufunc, total = _UFUNCS[op], widened(np.ascontiguousarray(rows[0]))
    for row in rows[1:]:
        step = np.asarray(ufunc(total, widened(np.ascontiguousarray(row))), np.float32)
        total = widened(rounded(step))
    if op == "avg":
        total = np.asarray(total / np.float32(len(rows)), np.float32)
    return rounded(total).view(rows.dtype)
