"""Dispatch, combine and barrier as one compiled call each (`engine/pairs.c`), where that is possible.

It is with the compiled core and rows in shared memory. The functions made here return None (the barrier:
0) without having done anything whenever an argument is out of the ordinary; the caller then takes the steps
one by one, which give the same bits, times and trace, or raise.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from emulator.engine.native import NativeEngine
from emulator.engine.schedules import SEND_DTYPE, STEP_DTYPE
from emulator.rows import Int64, Records, bad_fields, foreign_slot

if TYPE_CHECKING:
    from emulator.device import Device

PairCall = Callable[..., Any]
_ENGINE, _FIELDS, _COUNTS, _SLOT = range(4)


class PairSide(NamedTuple):
    """One operation of a pair: its channel, its event counter int64 [1], its two blocks, all and my own."""

    channel: int
    event: Int64
    all: tuple[Records, Records]
    own: tuple[Records, Records]

    def numbers(self) -> list[int]:
        """As `side_t` wants them."""
        blocks = [records.address for records in (*self.all, *self.own)]
        return [self.channel, self.event.ctypes.data, *blocks, *self.all[0].steps]


class PairShape(NamedTuple):
    """Sizes of an expert exchange; see `collectives.moe.ExpertExchange`."""

    slots: int
    hidden: int
    topk: int
    max_tokens: int
    max_rows: int
    most: int
    int8: bool


class CompiledCalls:
    """The compiled operations of one rank.

    Attributes:
        meet: take part in the barrier's exchange; returns 1, or 0 if it did nothing.
        exchange_tags: (channel, record_bytes, tag) as `Device.exchange_tags`, or None if it did nothing.
        move_rows: as `collectives.moves.move_rows`, or None if it did nothing.
        fold_bf16: (rows, count, bytes of a row, bytes between rows, out) of `engine/fold.c`; addresses.
        clock: the rank's virtual time, ps, in the first place.
        schedule: (steps, sends, step_ps, timeout_ps) as `Device.schedule`, or None if it did nothing.
    """

    def __init__(self, device: Device, channel: int, meta_bytes: int) -> None:
        engine, board, trace = device.engine, device.board, device.trace
        assert isinstance(engine, NativeEngine)
        self._device, self._engine, self._lib = device, engine, _library(engine.library_path)
        self._kept: list[Any] = []
        me, buffer = device.rank, np.frombuffer(trace.buffer, np.uint8)
        state = [
            engine.address, board.state[me:].ctypes.data, board.posted[me:].ctypes.data,
            board.applied[me:].ctypes.data, buffer.ctypes.data, trace.used.ctypes.data, buffer.size,
            channel, meta_bytes,
        ]  # fmt: skip
        dtypes = [np.dtype(kind) for kind in (np.float32, np.int32, np.int64, np.uint8)]
        calls = [device.memory.leave, trace.flush, self._fail, np.empty, np.ndarray, *dtypes]
        self._state = self._lib.sp_rank_calls(self._pack(state, calls).ctypes.data)
        self.meet: Callable[[], int] = self._lib.sp_meet(self._state)
        self.exchange_tags: PairCall = self._lib.sp_tag_exchanger(self._state)
        self.move_rows: PairCall = self._lib.sp_row_mover(self._state)
        self.fold_bf16: Callable[[int, int, int, int, int], None] = self._lib.sp_fold_bf16
        self._kept += [buffer, board, trace, device.ledger]
        tables = [self._state, device.ledger.wire.ctypes.data, board.dead.ctypes.data]
        self.clock: Sequence[int] = memoryview(engine.numbers).cast("B").cast("q")
        self.schedule: PairCall = self._lib.sp_scheduler(
            self._pack(tables, [STEP_DTYPE, SEND_DTYPE]).ctypes.data
        )

    def entrance(self, channel: int, size: int, mine: list[int]) -> PairCall:
        """Make the entry of a group's collectives; see `collectives.work.Entrance`.

        Args:
            channel, size: of the group. mine: addresses of my descriptors, a ring by the number of the call.

        Returns:
            enter(called, number) -> whether all ranks call the same, or None if it did nothing.
        """
        made: PairCall = self._lib.sp_collective_entrance(
            self._pack([self._state, channel, size, *mine], []).ctypes.data
        )
        return made

    def sums(self, shape: Sequence[int], addresses: Sequence[int]) -> PairCall:
        """Make the sums of published vectors; see `collectives.sums`.

        Args:
            shape: ranks, my number, bytes of a block, blocks and bytes of a chunk of all ranks, chunks in the
                order of `sums_t` of `engine/sums.c`, and 0 for float32, 1 for bfloat16.
            addresses: of vectors, sums and marks, in calls of even and odd number each.

        Returns:
            sums(what, call, bytes) -> True, or None if it did nothing.
        """
        packed = self._pack([self._state, *shape, *addresses], [])
        made: PairCall = self._lib.sp_summer(packed.ctypes.data)
        return made

    def pair(
        self, shape: PairShape, times: Int64, out: PairSide, back: PairSide, handle: Any, number: int
    ) -> tuple[PairCall, PairCall]:
        """Make the dispatch and combine of one micro-batch.

        Args:
            times: int64 [3], set to when records were posted, all in, and the last row in.
            handle: called with (rows, number, kept bytes) for the result of a dispatch.

        Returns:
            dispatch(x, slot_ids, charge, costs) and combine(kept bytes, y, weights, costs), costs being
            (start_ps, pull_start_ps, record_ps, row_bytes, meta_bytes).
        """
        numbers = [self._state, *shape, times.ctypes.data, *out.numbers(), *back.numbers()]
        self._kept += [times, out, back]
        made: tuple[PairCall, PairCall] = self._lib.sp_pair_calls(
            self._pack(numbers, [handle, number]).ctypes.data
        )
        return made

    def _pack(self, numbers: list[int], objects: list[Any]) -> Int64:
        """Numbers, then objects by address; the objects are kept."""
        self._kept += objects
        return np.array([*numbers, *map(id, objects)], np.int64)

    def _fail(self, what: int, number: int) -> NoReturn:
        """Called by the compiled code: raise what went wrong."""
        if what == _ENGINE:
            self._device.memory.leave()
            self._engine.refuse(number)
        if what == _SLOT:
            raise foreign_slot(number)
        raise bad_fields(-what, number)


def compiled_calls(device: Device, channel: int, meta_bytes: int) -> CompiledCalls | None:
    """Return the compiled operations, or None where the engine or the rows are not compiled ones, or where
    NumPy's arrays do not look as the compiled code expects."""
    if device.rows.name != "c" or not isinstance(device.engine, NativeEngine):
        return None
    if not _arrays_are_as_expected(_library(device.engine.library_path)):
        return None
    return CompiledCalls(device, channel, meta_bytes)


def _arrays_are_as_expected(lib: Any) -> bool:
    """Compare what the compiled code sees of some arrays with what NumPy says."""
    arrays: list[npt.NDArray[Any]] = [
        np.zeros((3, 5), np.float32),
        np.zeros((7, 2), np.int64)[:, :1],
        np.zeros((0, 4), np.int32),
    ]
    return all(np.array_equal(_seen(lib, array), _said(array)) for array in arrays)


def _seen(lib: Any, array: npt.NDArray[Any]) -> list[int]:
    seen = np.zeros(7, np.int64)
    lib.sp_look_at(array, seen.ctypes.data)
    seen[4] &= 0x101
    return list(map(int, seen))


def _said(array: npt.NDArray[Any]) -> list[int]:
    flags = array.flags.c_contiguous + (array.flags.aligned << 8)
    return [array.ctypes.data, array.ndim, *array.shape, flags, id(array.dtype), id(np.ndarray)]


def _library(path: str) -> Any:
    """The compiled core again, for calls that hold the interpreter's lock."""
    lib = ctypes.PyDLL(path)
    pointer, result = ctypes.c_void_p, ctypes.py_object
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "sp_look_at": (None, [result, pointer]),
        "sp_rank_calls": (pointer, [pointer]),
        "sp_meet": (result, [pointer]),
        "sp_tag_exchanger": (result, [pointer]),
        "sp_scheduler": (result, [pointer]),
        "sp_row_mover": (result, [pointer]),
        "sp_collective_entrance": (result, [pointer]),
        "sp_summer": (result, [pointer]),
        "sp_pair_calls": (result, [pointer]),
        "sp_fold_bf16": (None, [pointer, *[ctypes.c_int64] * 3, pointer]),
    }
    for name, (kind, arguments) in signatures.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = kind, arguments
    return lib
