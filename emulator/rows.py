"""Rows of dispatch and combine, twice: compiled (`engine/rows.c`) and in NumPy, bit for bit equal.

A row travels as a record `{int32 slot, int32 charge, float32 scale, int32 unused, payload}` in its sender's
block. The sender groups records by destination; the receiver reads each once, straight from the block, and
places it by expert slot. `charge` is how many priced rows a row stands for.
"""

from __future__ import annotations

import ctypes
import glob
import os
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from emulator.errors import InternalError, UsageError

HEADER_BYTES = 16
_ODD = 0x9E3779B97F4A7C15
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class RowFormat:
    """How rows are written: `hidden` values as float32, or as int8 with a scale; `slots` experts a rank."""

    hidden: int
    slots: int
    int8: bool = False

    @property
    def record_bytes(self) -> int:
        """Bytes of a record, a multiple of 8."""
        return HEADER_BYTES + (self.hidden * (1 if self.int8 else 4) + 7) // 8 * 8


class Records:
    """Records of some ranks, a view uint8[chunks, ranks, records of a chunk, record bytes].

    Chunks hold a power of two; the axis of ranks may have stride 0 (one block for all).
    """

    def __init__(self, view: Bytes) -> None:
        self.view = view
        self.address: int = view.__array_interface__["data"][0]
        self.chunk: int = view.shape[2]
        self.steps = [view.strides[1], view.strides[0], view.strides[2], self.chunk.bit_length() - 1]
        """Bytes from rank to rank, chunk to chunk, record to record; and log2 of a chunk's records."""
        self._layout = np.array(self.steps, np.int64)
        self.layout: int = self._layout.__array_interface__["data"][0]

    def take(self, ranks: Int64 | int, records: Int64) -> Bytes:
        """Copy of the named records, uint8[records, record bytes]."""
        raw: Bytes = self.view[records // self.chunk, ranks, records % self.chunk]
        return raw

    def write(self, raw: Bytes) -> None:
        """Write the first records of a block of one rank, all or the first bytes of each."""
        records = np.arange(len(raw))
        self.view[records // self.chunk, 0, records % self.chunk, : raw.shape[1]] = raw


class Plan(NamedTuple):
    """Pairs grouped by destination, stable by physical slot.

    counts, charged, first: int32 [num_ranks], rows for each rank, what they stand for, first record.
    fields: int32 [num_ranks], what each is told: first * (most + 1) + count.
    order: int32 [pairs], the pair (token * topk + k) at each record.
    """

    counts: Int32
    charged: Int32
    first: Int32
    fields: Int32
    order: Int32


class Received(NamedTuple):
    """Rows placed by local slot, then source rank, then the source's order.

    rows: float32 [R, hidden]. per_slot, charged_per_slot: int64 [slots]. place: int32 [R], output row of the
    i-th record, sources ascending.
    """

    rows: Float32
    per_slot: Int64
    charged_per_slot: Int64
    place: Int32


class RowKernels(Protocol):
    """The operations on rows; see `NumpyRows` for what each means."""

    name: str

    def plan(
        self, slot_ids: Int64, slots: int, num_ranks: int, topk: int, charge: Int32 | None, most: int
    ) -> Plan: ...

    def send(
        self,
        block: Records,
        form: RowFormat,
        x: Float32,
        slot_ids: Int64,
        num_ranks: int,
        topk: int,
        charge: Int32 | None,
        most: int,
    ) -> Plan: ...

    def plan_back(self, counts: Int32, charged: Int32, place: Int32, most: int) -> Plan: ...

    def decode(
        self, fields: Int32, tags: Int64, event: int, most: int, expected: Int32 | None = None
    ) -> tuple[Int32, Int32, int]: ...

    def pack(
        self,
        block: Records,
        form: RowFormat,
        x: Float32,
        order: Int32,
        per_row: int,
        slot_ids: Int64 | None,
        charge: Int32 | None,
    ) -> None: ...

    def unpack(
        self, records: Records, form: RowFormat, counts: Int32, first: Int32, total: int
    ) -> Received: ...

    def combine(
        self, records: Records, hidden: int, counts: Int32, first: Int32, order: Int32, weights: Float32
    ) -> Float32: ...

    def checksum(self, data: Bytes) -> int: ...


class NumpyRows:
    """The readable version, and the one in use where there is no compiler."""

    name = "numpy"

    def plan(
        self, slot_ids: Int64, slots: int, num_ranks: int, topk: int, charge: Int32 | None, most: int
    ) -> Plan:
        """Group pairs by physical slot (rank * slots + local slot).

        Args:
            slot_ids: int64 [tokens * topk].
            charge: int32 [tokens], what each row stands for; None for 1.
            most: most rows for one rank.

        Raises:
            UsageError: a slot does not exist.
        """
        bad = np.flatnonzero((slot_ids < 0) | (slot_ids >= slots * num_ranks))
        if bad.size:
            raise _no_such_slot(int(bad[0]), slot_ids, slots, num_ranks)
        order = np.argsort(slot_ids, kind="stable").astype(np.int32)
        ranks = slot_ids // slots
        counts = np.bincount(ranks, minlength=num_ranks).astype(np.int32)
        charged = counts.copy()
        if charge is not None:
            np.add.at(charged, ranks, np.repeat(charge, topk) - 1)
        return self.plan_back(counts, charged, order, most)

    def send(
        self,
        block: Records,
        form: RowFormat,
        x: Float32,
        slot_ids: Int64,
        num_ranks: int,
        topk: int,
        charge: Int32 | None,
        most: int,
    ) -> Plan:
        """`plan` and `pack` in one call."""
        plan = self.plan(slot_ids, form.slots, num_ranks, topk, charge, most)
        self.pack(block, form, x, plan.order, topk, slot_ids, charge)
        return plan

    def plan_back(self, counts: Int32, charged: Int32, place: Int32, most: int) -> Plan:
        """Place rows whose counts are known; record i is row `place[i]`."""
        first = (np.cumsum(counts) - counts).astype(np.int32)
        return Plan(counts, charged, first, (first * np.int32(most + 1) + counts).astype(np.int32), place)

    def decode(
        self, fields: Int32, tags: Int64, event: int, most: int, expected: Int32 | None = None
    ) -> tuple[Int32, Int32, int]:
        """Take apart the fields all ranks sent me; returns counts, first (int32 [n]) and the sum of counts.

        Raises:
            InternalError: rows of another event, or other counts than expected.
        """
        first, counts = np.divmod(fields, np.int32(most + 1))
        if ((tags != event) & (counts > 0)).any():
            raise bad_fields(-1, event)
        if expected is not None and not np.array_equal(counts, expected):
            raise bad_fields(-2, event)
        return counts, first, int(counts.sum())

    def pack(
        self,
        block: Records,
        form: RowFormat,
        x: Float32,
        order: Int32,
        per_row: int,
        slot_ids: Int64 | None,
        charge: Int32 | None,
    ) -> None:
        """Write record i of a block (a view of one rank) from row `order[i] // per_row` of x [., hidden]."""
        source = order // per_row
        rows = np.ascontiguousarray(x[source])
        head = np.zeros((order.size, 4), np.int32)
        head[:, 0] = 0 if slot_ids is None else slot_ids[order] % form.slots
        head[:, 1] = 1 if charge is None else charge[source]
        scale, payload = _quantised(rows) if form.int8 else (np.ones(order.size, np.float32), rows)
        head[:, 2] = scale.view(np.int32)
        block.write(np.concatenate([head.view(np.uint8), payload.view(np.uint8)], axis=1))

    def unpack(self, records: Records, form: RowFormat, counts: Int32, first: Int32, total: int) -> Received:
        """Read every record meant for this rank, `total` in all: `counts` from each, from record `first` on.

        Raises:
            InternalError: a record names a slot this rank does not have.
        """
        raw = records.take(*_places(counts, first))
        head = np.ascontiguousarray(raw[:, :HEADER_BYTES]).view(np.int32)
        slot, slots = head[:, 0], form.slots
        if slot.size and (slot.min() < 0 or slot.max() >= slots):
            raise foreign_slot(slots)
        order = np.argsort(slot, kind="stable")
        place = np.empty(slot.size, np.int32)
        place[order] = np.arange(slot.size, dtype=np.int32)
        per_slot = np.bincount(slot, minlength=slots).astype(np.int64)
        charged = np.zeros(slots, np.int64)
        np.add.at(charged, slot, head[:, 1])
        return Received(_payload(raw[order], form.hidden, form.int8), per_slot, charged, place)

    def combine(
        self, records: Records, hidden: int, counts: Int32, first: Int32, order: Int32, weights: Float32
    ) -> Float32:
        """Add up rows: out[t] = w[t, 0] * row(t, 0) + w[t, 1] * row(t, 1) + …, in this order, float32.

        Args:
            order: pair t * topk + k of each record, ranks ascending.
            weights: [tokens, topk], float32.
        """
        tokens, topk = weights.shape
        rows = np.empty((tokens * topk, hidden), np.float32)
        rows[order] = _payload(records.take(*_places(counts, first)), hidden, False)
        rows = rows.reshape(tokens, topk, hidden)
        out: Float32 = weights[:, 0, None] * rows[:, 0]
        for k in range(1, topk):
            out += weights[:, k, None] * rows[:, k]
        return out

    def checksum(self, data: Bytes) -> int:
        """Return a position-dependent 64-bit sum of contiguous bytes."""
        words = np.zeros((data.size + 7) // 8, np.uint64)
        words.view(np.uint8)[: data.size] = data
        multiplier = np.arange(words.size, dtype=np.uint64) * np.uint64(2 * _ODD % 2**64) + np.uint64(_ODD)
        mixed = (words ^ (words >> np.uint64(29))) * multiplier
        return (int(mixed.sum(dtype=np.uint64)) + data.size * _ODD) % 2**64


def _places(counts: Int32, first: Int32) -> tuple[Int64, Int64]:
    """Rank and record index of every record meant for this rank, ranks ascending."""
    ranks = np.repeat(np.arange(counts.size), counts)
    before = np.cumsum(counts) - counts
    return ranks, (np.arange(ranks.size) - before[ranks] + first[ranks]).astype(np.int64)


def _quantised(rows: Float32) -> tuple[Float32, npt.NDArray[np.int8]]:
    """A scale for each row, and its values in steps of it, rounded half to even."""
    scale = (np.abs(rows).max(axis=1, initial=0.0) / np.float32(127)).astype(np.float32)
    safe = np.where(scale == 0, np.float32(1), scale)
    return scale, np.rint(rows / safe[:, None]).astype(np.int8)


def _payload(raw: Bytes, hidden: int, int8: bool) -> Float32:
    if not int8:
        return np.ascontiguousarray(raw[:, HEADER_BYTES : HEADER_BYTES + 4 * hidden]).view(np.float32)
    scale = np.ascontiguousarray(raw[:, 8:12]).view(np.float32)
    values = np.ascontiguousarray(raw[:, HEADER_BYTES : HEADER_BYTES + hidden]).view(np.int8)
    out: Float32 = values.astype(np.float32) * scale
    return out


def _no_such_slot(pair: int, slot_ids: Int64, slots: int, num_ranks: int) -> UsageError:
    return UsageError(
        f"dispatch: pair {pair} names slot {slot_ids[pair]}; there are {slots * num_ranks} "
        f"({num_ranks} ranks of {slots})"
    )


OTHER_ROWS = "other rows than were dispatched"


def bad_fields(code: int, event: int) -> InternalError:
    """What is wrong with the fields of an exchange: code -1 another event, -2 other counts."""
    what = "rows of another event" if code == -1 else OTHER_ROWS
    return InternalError(f"exchange of event {event}: {what}")


def foreign_slot(slots: int) -> InternalError:
    """A record's slot is not one of mine."""
    return InternalError(f"a record names a slot outside the {slots} of this rank")


class CompiledRows:
    """The compiled version of `NumpyRows`."""

    name = "c"

    def __init__(self, library: ctypes.CDLL) -> None:
        self._lib = library
        p, i64, i32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
        signatures: dict[str, tuple[Any, list[Any]]] = {
            "rows_plan": (i64, [p, i64, i32, i32, p, i32, i32, p, p, p, p, p, p]),
            "rows_send": (i64, [p, i64, i32, i32, p, i32, i32, p, p, p, p, i64, i32]),
            "rows_back": (None, [p, i32, i32, p, p]),
            "rows_decode": (i64, [p, p, i64, i32, i32, p, p, p]),
            "rows_pack": (None, [p, p, p, i64, p, i64, i32, p, i32, p, i32]),
            "rows_unpack": (i64, [p, p, i32, p, p, i32, i64, i32, p, p, p, p]),
            "rows_combine": (None, [p, p, i32, p, p, p, i64, i32, i64, p, p, p]),
            "rows_checksum": (ctypes.c_uint64, [p, i64]),
        }
        for name, (result, arguments) in signatures.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments

    def plan(
        self, slot_ids: Int64, slots: int, num_ranks: int, topk: int, charge: Int32 | None, most: int
    ) -> Plan:
        """See `NumpyRows.plan`."""
        n, pairs = num_ranks, slot_ids.size
        out = np.empty(4 * n + pairs + slots * n, np.int32)
        at, row = _address(out), 4 * n
        bad = self._lib.rows_plan(
            _address(slot_ids), pairs, slots, n, _optional(charge), topk, most,
            at, at + row, at + 2 * row, at + 3 * row, at + 4 * row, at + 4 * row + 4 * pairs,
        )  # fmt: skip
        if bad:
            raise _no_such_slot(bad - 1, slot_ids, slots, n)
        return Plan(out[:n], out[n : 2 * n], out[2 * n : 3 * n], out[3 * n : row], out[row : row + pairs])

    def send(
        self,
        block: Records,
        form: RowFormat,
        x: Float32,
        slot_ids: Int64,
        num_ranks: int,
        topk: int,
        charge: Int32 | None,
        most: int,
    ) -> Plan:
        """See `NumpyRows.send`."""
        n, pairs, row = num_ranks, slot_ids.size, 4 * num_ranks
        out = np.empty(row + pairs + form.slots * n, np.int32)
        bad = self._lib.rows_send(
            _address(slot_ids), pairs, form.slots, n, _optional(charge), topk, most, _address(out),
            block.address, block.layout, _address(x), form.hidden, form.int8,
        )  # fmt: skip
        if bad:
            raise _no_such_slot(bad - 1, slot_ids, form.slots, n)
        return Plan(out[:n], out[n : 2 * n], out[2 * n : 3 * n], out[3 * n : row], out[row : row + pairs])

    def plan_back(self, counts: Int32, charged: Int32, place: Int32, most: int) -> Plan:
        """See `NumpyRows.plan_back`."""
        n = counts.size
        out = np.empty(2 * n, np.int32)
        at = _address(out)
        self._lib.rows_back(_address(counts), n, most, at, at + 4 * n)
        return Plan(counts, charged, out[:n], out[n:], place)

    def decode(
        self, fields: Int32, tags: Int64, event: int, most: int, expected: Int32 | None = None
    ) -> tuple[Int32, Int32, int]:
        """See `NumpyRows.decode`."""
        n = fields.size
        out = np.empty(2 * n, np.int32)
        at = _address(out)
        total = self._lib.rows_decode(
            _address(fields), _address(tags), event, n, most, _optional(expected), at, at + 4 * n
        )
        if total < 0:
            raise bad_fields(total, event)
        return out[:n], out[n:], total

    def pack(
        self,
        block: Records,
        form: RowFormat,
        x: Float32,
        order: Int32,
        per_row: int,
        slot_ids: Int64 | None,
        charge: Int32 | None,
    ) -> None:
        """See `NumpyRows.pack`."""
        self._lib.rows_pack(
            block.address, block.layout, _address(x), form.hidden, _address(order), order.size, per_row,
            _optional(slot_ids), form.slots, _optional(charge), form.int8,
        )  # fmt: skip

    def unpack(self, records: Records, form: RowFormat, counts: Int32, first: Int32, total: int) -> Received:
        """See `NumpyRows.unpack`."""
        rows, place = np.empty((total, form.hidden), np.float32), np.empty(total, np.int32)
        slots = np.empty((2, form.slots), np.int64)
        at = _address(slots)
        done = self._lib.rows_unpack(
            records.address, records.layout, counts.size, _address(counts),
            _address(first), form.slots, form.hidden, form.int8, _address(rows), at, at + 8 * form.slots,
            _address(place),
        )  # fmt: skip
        if done != total:
            raise foreign_slot(form.slots)
        return Received(rows, slots[0], slots[1], place)

    def combine(
        self, records: Records, hidden: int, counts: Int32, first: Int32, order: Int32, weights: Float32
    ) -> Float32:
        """See `NumpyRows.combine`."""
        tokens, topk = weights.shape
        out, scratch = np.empty((tokens, hidden), np.float32), np.empty(tokens * topk, np.uintp)
        self._lib.rows_combine(
            records.address, records.layout, counts.size, _address(counts),
            _address(first), _address(order), tokens, topk, hidden, _address(weights), _address(out),
            _address(scratch),
        )  # fmt: skip
        return out

    def checksum(self, data: Bytes) -> int:
        """See `NumpyRows.checksum`."""
        return int(self._lib.rows_checksum(_address(data), data.size))


def _address(array: Any) -> int:
    """Where a contiguous array lies. By the buffer, which is six times faster than asking NumPy."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array))
    except (TypeError, ValueError, BufferError):  # read-only, or empty
        if not array.flags.c_contiguous:
            raise InternalError("row kernels need contiguous arrays") from None
        return int(array.__array_interface__["data"][0])


def _optional(array: npt.NDArray[Any] | None) -> int | None:
    return None if array is None else _address(array)


def load_rows(kind: str = "auto") -> RowKernels:
    """Return the row kernels: "c", "python", or "auto" for the compiled ones where they were built.

    Raises:
        UsageError: "c" was asked for and is not built.
    """
    built = sorted(glob.glob(os.path.join(os.path.dirname(__file__), "engine", "_rows*.so")))
    if kind == "python" or (kind == "auto" and not built):
        return NumpyRows()
    if not built:
        raise UsageError("engine 'c': the compiled core is not built here; use engine 'python' or 'auto'")
    return CompiledRows(ctypes.CDLL(built[0]))
