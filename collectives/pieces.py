"""Many pieces of a flat array at once: small ones by one indexed load, large ones one by one. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Int64 = npt.NDArray[np.int64]
SMALL = 2048
"""Pieces of fewer bytes than this, on average, are moved by an indexed load."""


def take_pieces(flat: Bytes, starts: Int64, sizes: Int64) -> Bytes:
    """Pieces of `flat` one after the other.

    Args:
        flat: uint8, contiguous. starts, sizes: int64 [k], bytes.
    """
    total = int(sizes.sum())
    if not total:
        return np.empty(0, np.uint8)
    if total > SMALL * sizes.size:
        some = zip(starts.tolist(), sizes.tolist(), strict=True)
        return np.concatenate([flat[at : at + size] for at, size in some if size])
    unit = unit_of_all(starts, sizes)
    index = _index(starts // unit, sizes // unit)
    whole = flat[: flat.size // unit * unit].view(f"u{unit}")
    return whole[index].view(np.uint8)


def put_pieces(flat: Bytes, starts: Int64, sizes: Int64, data: Bytes) -> None:
    """The reverse of `take_pieces`: spread what lies one after the other in `data`."""
    if not data.size:
        return
    if data.size > SMALL * sizes.size:
        ends = np.cumsum(sizes)
        for at, size, end in zip(starts.tolist(), sizes.tolist(), ends.tolist(), strict=True):
            flat[at : at + size] = data[end - size : end]
        return
    unit = unit_of_all(starts, sizes)
    whole = flat[: flat.size // unit * unit].view(f"u{unit}")
    whole[_index(starts // unit, sizes // unit)] = data.view(f"u{unit}")


def _index(starts: Int64, counts: Int64) -> Int64:
    """starts[0], starts[0] + 1, …, starts[1], …: counts[i] numbers from starts[i] each."""
    index: Int64 = np.repeat(starts - (np.cumsum(counts) - counts), counts)
    index += np.arange(index.size)
    return index


def unit_of_all(starts: Int64, sizes: Int64) -> int:
    """The largest of 8, 4, 2, 1 that divides all starts and sizes."""
    bits = int(np.bitwise_or.reduce(starts) | np.bitwise_or.reduce(sizes))
    return 8 if not bits & 7 else 4 if not bits & 3 else 2 if not bits & 1 else 1
