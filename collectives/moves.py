"""Copying rows between an array and bytes in one piece: compiled where possible (`engine/moves.c`)."""

from __future__ import annotations

from collections.abc import Callable

from collectives.pieces import Bytes
from emulator import Device

__all__ = ["Move", "move_rows", "mover_of"]

Move = Callable[[Bytes, Bytes, bool], object]


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
