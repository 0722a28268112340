"""Dispatch and combine of all ranks at once, slow and obvious, to compare with.

dispatch   rows of rank r, slot s: every pair (t, k) of every rank with slot_ids = r * slots + s,
           in the order (source rank, t, k)
combine    out[t] = w[t, 0] * y(t, 0) + w[t, 1] * y(t, 1) + ...      float32, in this order
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]


def quantise_row(row: Float32) -> Float32:
    """A row after int8 with one scale: scale = max |x| / 127, steps rounded half to even."""
    scale = np.float32(np.abs(row).max(initial=0.0)) / np.float32(127)
    if scale == 0:
        return np.zeros_like(row)
    steps = np.array([np.rint(value / scale) for value in row]).astype(np.int8)  # a negative zero is none
    return steps.astype(np.float32) * scale


def dispatch(
    x: Sequence[Float32], slot_ids: Sequence[Int64], slots: int, int8: bool = False
) -> list[list[list[tuple[int, int, int, Float32]]]]:
    """Return, for each rank and slot, the list of (source rank, token, k, row).

    Args:
        x: for each rank, float32 [T, hidden].
        slot_ids: for each rank, int64 [T, topk].
        slots: physical slots a rank.
        int8: rows are quantised on the way.
    """
    out: list[list[list[tuple[int, int, int, Float32]]]] = [[[] for _ in range(slots)] for _ in x]
    for source, (rows, ids) in enumerate(zip(x, slot_ids, strict=True)):
        for t in range(ids.shape[0]):
            row = quantise_row(rows[t]) if int8 else rows[t]
            for k in range(ids.shape[1]):
                target, slot = divmod(int(ids[t, k]), slots)
                out[target][slot].append((source, t, k, row))
    return out


def combine(
    x: Sequence[Float32],
    slot_ids: Sequence[Int64],
    weights: Sequence[Float32],
    expert: Callable[[int, Float32], Float32],
    int8: bool = False,
) -> list[Float32]:
    """Return what dispatch, `expert(slot, row)` and combine give each rank, float32 [T, hidden]."""
    out = []
    for rows, ids, factors in zip(x, slot_ids, weights, strict=True):
        total = np.zeros_like(rows)
        for t in range(ids.shape[0]):
            row = quantise_row(rows[t]) if int8 else rows[t]
            terms = [factors[t, k] * expert(int(ids[t, k]), row) for k in range(ids.shape[1])]
            total[t] = terms[0]
            for term in terms[1:]:
                total[t] += term
        out.append(total)
    return out
