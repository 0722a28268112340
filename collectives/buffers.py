"""Arrays that collectives take: their element type by name, their bytes, and putting bytes back into them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from collectives.agreement import DTYPES
from collectives.pieces import Bytes, Int64, put_pieces, take_pieces
from emulator.errors import DtypeError, SizeError

Array = npt.NDArray[Any]


def dtype_of(array: Array, dtype: str | None, call: str) -> str:
    """Name of the element type.

    Args:
        array: any strides.
        dtype: "bfloat16" for 16-bit integers that hold it; else None or the array's own.

    Raises:
        DtypeError: a type collectives do not carry, or another than `dtype`.
    """
    if not isinstance(array, np.ndarray):
        raise DtypeError(f"{call}: a numpy array is needed, got {type(array).__name__}", value=array)
    if dtype == "bfloat16" and array.dtype.kind in "iu" and array.itemsize == 2:
        return dtype
    name = array.dtype.name if array.dtype.name in DTYPES else ""
    if not name or not array.dtype.isnative or dtype not in (None, name):
        wanted = f"; dtype={dtype!r} was asked for" if dtype is not None else ""
        raise DtypeError(f"{call}: elements of type {array.dtype} cannot be sent{wanted}", value=array.dtype)
    return name


def facts(array: Array, call: str) -> tuple[Any, ...]:
    """All of an array that a plan depends on. Raises: DtypeError, it is none."""
    if not isinstance(array, np.ndarray):
        raise DtypeError(f"{call}: a numpy array is needed, got {type(array).__name__}", value=array)
    return array.dtype, array.size, array.flags.writeable


def raw_of(array: Array) -> Bytes:
    """Bytes of an array in C order: a view where it is contiguous, else a copy."""
    if not array.size:
        return np.empty(0, np.uint8)
    whole = array if array.flags.c_contiguous else np.ascontiguousarray(array)
    return whole.reshape(-1).view(np.uint8)


def fill(array: Array, rows: Array) -> None:
    """Put bytes, uint8 of any shape and as many as the array has, into it in C order."""
    if not array.size:
        return
    if array.flags.c_contiguous:
        array.reshape(-1).view(np.uint8).reshape(rows.shape)[...] = rows
    else:
        array[...] = np.ascontiguousarray(rows).reshape(-1).view(array.dtype).reshape(array.shape)


def fill_short(array: Array, rows: Bytes) -> None:
    """Put as many bytes of rows [g, unit] as the array has into it in C order; the last may be left over."""
    full, part = divmod(array.nbytes, rows.shape[1]) if rows.size else (0, 0)
    if not array.flags.c_contiguous:
        array[...] = rows.reshape(-1)[: array.nbytes].view(array.dtype).reshape(array.shape)
        return
    flat = array.reshape(-1).view(np.uint8)
    flat[: array.nbytes - part].reshape(full, rows.shape[1])[...] = rows[:full]
    if part:
        flat[array.nbytes - part :] = rows[full, :part]


def fill_elements(array: Array, values: Array) -> None:
    """Put elements, flat and of the array's item size, into it in C order."""
    array[...] = values.view(array.dtype).reshape(array.shape)


def spread(array: Array, starts: Int64, counts: Int64, data: Bytes) -> None:
    """Put pieces that lie one after the other in `data` (uint8) at elements `starts` of an array.

    Args:
        starts, counts: int64 [k], elements.
    """
    ends, item = np.cumsum(counts), array.itemsize
    if array.flags.c_contiguous and (starts == ends - counts)[counts > 0].all():
        fill(array.reshape(-1)[: data.size // item], data)
    elif array.flags.c_contiguous:
        put_pieces(array.reshape(-1).view(np.uint8), starts * item, counts * item, data)
    else:
        whole = np.ascontiguousarray(array)
        put_pieces(whole.reshape(-1).view(np.uint8), starts * item, counts * item, data)
        array[...] = whole


def taken(array: Array, starts: Int64, counts: Int64) -> Bytes:
    """Pieces from elements `starts` of an array one after the other, uint8; a view where they lie so."""
    raw, item, ends = raw_of(array), array.itemsize, np.cumsum(counts)
    if (starts == ends - counts)[counts > 0].all():
        return raw[: int(ends[-1]) * item]
    return take_pieces(raw, starts * item, counts * item)


def check_count(call: str, name: str, array: Array, count: int, why: str) -> None:
    """Raises: SizeError, the array has another number of elements than `count`."""
    if array.size != count:
        raise SizeError(
            f"{call}: {name} has {array.size} elements, {count} are needed ({why})", value=array.size
        )


def check_same(call: str, send: Array, recv: Array) -> None:
    """Raises: DtypeError, the two differ in their type. SizeError, recv cannot be written."""
    if send.dtype != recv.dtype:
        raise DtypeError(f"{call}: send has {send.dtype} elements, recv {recv.dtype}", value=recv.dtype)
    if not recv.flags.writeable:
        raise SizeError(f"{call}: recv cannot be written", value=None)
