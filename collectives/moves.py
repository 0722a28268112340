"""Copying rows between an array and bytes in one piece, and adding rows up: compiled where possible
(`engine/moves.c`, `engine/fold.c`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from collectives.pieces import Bytes
from collectives.reduction import fold
from emulator import Device

__all__ = ["FoldRows", "Move", "folder_of", "move_rows", "mover_of"]

Array = npt.NDArray[Any]
Move = Callable[[Bytes, Bytes, bool], object]
FoldRows = Callable[[Array, str, str], Array]


def move_rows(view: Bytes, flat: Bytes, inward: bool) -> None:
    """Copy the rows of `view`, in C order, to or from one piece.

    Args:
        view: uint8 [n], [r, n] or [p, r, n] of any steps. flat: uint8, as many bytes, contiguous.
        inward: from `flat` into `view`; else the other way.
    """
    if inward:
        view[...] = flat.reshape(view.shape)
    else:
        flat.reshape(view.shape)[...] = view


def mover_of(device: Device) -> Move:
    """`move_rows`, compiled if the device's calls are."""
    compiled = device.compiled.move_rows if device.compiled is not None else None
    if compiled is None:
        return move_rows

    def move(view: Bytes, flat: Bytes, inward: bool) -> None:
        if not compiled(view, flat, inward):
            move_rows(view, flat, inward)

    return move


def folder_of(device: Device) -> FoldRows:
    """`reduction.fold`, with sums of bfloat16 compiled if the device's calls are."""
    compiled = device.compiled.fold_bf16 if device.compiled is not None else None
    if compiled is None:
        return fold

    def fold_rows(rows: Array, op: str, dtype: str) -> Array:
        if dtype != "bfloat16" or op != "sum" or not rows.size or rows.strides[1] != rows.itemsize:
            return fold(rows, op, dtype)
        out = np.empty(rows.shape[1], rows.dtype)
        compiled(rows.ctypes.data, len(rows), out.nbytes, rows.strides[0], out.ctypes.data)
        return out

    return fold_rows
