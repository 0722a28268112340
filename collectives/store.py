"""What the ranks of a group publish for each other: descriptors and bytes, in shared memory of the group.

    descriptors   DEPTH rings of [g] descriptors, by the number of the call
    even, odd     bytes published in calls of even and odd number

A rank publishes before it enters and reads after it woke. Every collective ends only after all have entered
it (see `collectives.algorithms`), so nobody begins call k + 2 before all have read call k: two copies are
enough.

Equal blocks lie so that what one rank reads of many is close together: units of all ranks in turn, some of a
rank side by side up to `CHUNK` bytes (`SMALL_CHUNK` where all of them are few). Of 384 ranks that keeps page
tables two orders of magnitude smaller than areas one after the other, and small blocks in few pages on either
side. Unequal ones lie one rank after the other, sparse.
"""

from __future__ import annotations

import atexit
import contextlib
import mmap
import os
import struct
from collections.abc import Sequence

import numpy as np

from collectives.agreement import FIELDS
from collectives.buffers import Array, fill_short
from collectives.crossed import CHUNK, Crossed
from collectives.moves import Move, move_rows
from collectives.pieces import Bytes, Int64, take_pieces
from collectives.sums import Sums
from emulator.errors import SizeError, UsageError

SMALL_CHUNK = 1 << 10
DEPTH = 4
_PAGE = 4096
_LINE = 64
_REACH = 1 << 40
_LONGEST = 1 << 34
_FREE = 1 << 26
_DESCRIPTOR = struct.Struct(f"{FIELDS}q")


def padded(nbytes: int, to: int = 8) -> int:
    """At least so many bytes, a multiple of `to`."""
    return -(-nbytes // to) * to


class Units:
    """Equal units that all ranks publish, at a fixed place: views made once, for calls of either parity.

    Args:
        store: whose. unit: bytes of one. count: how many each rank has. base: where they begin.
        chunk: most bytes of a rank side by side where there are many, `CHUNK` by default.
    """

    def __init__(self, store: SharedStore, unit: int, count: int, base: int = 0, chunk: int = CHUNK) -> None:
        self._store, self.unit, self.count, self.base = store, unit, count, base
        self._room = unit
        chunk = chunk if count * unit > CHUNK else SMALL_CHUNK
        self._k = max(1, min(count, chunk // max(1, unit)))
        self._step = store.size * self._k * self._room
        self.end = padded(base + -(-count // self._k) * self._step, _LINE)
        self._columns: dict[tuple[int, int], Bytes] = {}
        store.check_room(self.end)
        self._mine = [self._cut(area) for area in store.areas] if unit else []
        start = base + store.rank * self._k * self._room
        flat = slice(start, start + count * unit if count <= self._k else start)
        self._flat = [area[flat] for area in store.areas]  # all of mine, where it is in one piece

    def _cut(self, area: Bytes) -> tuple[Bytes, Bytes]:
        """My units in an area: whole chunks [c, k, unit] and the rest [r, unit]."""
        k, room, whole, rank = self._k, self._room, self.count // self._k, self._store.rank
        chunks = area[self.base : self.base + whole * self._step].reshape(whole, self._store.size, k, room)
        start = self.base + whole * self._step + rank * k * room
        rest = area[start : start + (self.count % k) * room].reshape(self.count % k, room)
        return chunks[:, rank, :, : self.unit], rest[:, : self.unit]

    def publish(self, call: int, raw: Bytes) -> None:
        """Publish my units: uint8, contiguous, up to count * unit bytes (the last may be short); copied."""
        if not self.unit:
            return
        if len(self._flat[call % 2]) == raw.size:
            self._store.move(self._flat[call % 2], raw, True)
            return
        if raw.size + self.unit <= self.count * self.unit:  # several are missing: they are zeros
            raw = np.concatenate([raw, np.zeros(self.count * self.unit - raw.size, np.uint8)])
        full, part = divmod(raw.size, self.unit)
        chunks = self._mine[call % 2][0]
        whole = min(full // self._k, len(chunks))
        rest = full - whole * self._k
        if whole:
            self._store.move(chunks[:whole], raw[: whole * self._k * self.unit], True)
        if rest:
            begun = raw[whole * self._k * self.unit : full * self.unit]
            self._store.move(self._chunk(call, whole)[:rest], begun, True)
        if part:
            last = self._chunk(call, full // self._k)[full % self._k]
            last[:part], last[part:] = raw[full * self.unit :], 0

    def _chunk(self, call: int, number: int) -> Bytes:
        """My units in a chunk, uint8 [up to k, unit]."""
        chunks, rest = self._mine[call % 2]
        return chunks[number] if number < len(chunks) else rest

    def column(self, call: int, index: int) -> Bytes:
        """Unit `index` of every rank, uint8 [g, unit], read-only; valid until my next call."""
        key = call % 2, index
        view = self._columns.get(key)
        if view is None:
            start = self._at(0, index)
            stop = start + (self._store.size - 1) * self._k * self._room + self._room
            view = self._columns[key] = np.lib.stride_tricks.as_strided(
                self._store.areas[call % 2][start:stop],
                (self._store.size, self.unit), (self._k * self._room, 1), writeable=False,
            )  # fmt: skip
        return view

    def take(self, call: int, index: int, array: Array) -> None:
        """Put unit `index` of every rank, one after the other, into an array in C order: as many bytes as it
        has, of which the last unit may be short."""
        rows = self.column(call, index)
        if not array.size or not array.flags.c_contiguous:
            fill_short(array, rows)
            return
        flat = array.reshape(-1).view(np.uint8)
        full, part = divmod(flat.size, self.unit)
        self._store.move(rows[:full], flat[: flat.size - part], False)
        if part:
            flat[flat.size - part :] = rows[full, :part]

    @property
    def chunks(self) -> int:
        """How many pieces of `per_chunk` units of every rank there are, the last one not all full."""
        return -(-self.count // self._k)

    @property
    def per_chunk(self) -> int:
        """Units of a rank that lie side by side."""
        return self._k

    def chunk(self, call: int, number: int) -> Bytes:
        """A chunk's units of every rank, uint8 [g, per_chunk * unit] in one piece; behind the last unit of
        all is whatever is there; valid until my next call."""
        start, size = self.base + number * self._step, self._store.size
        return self._store.areas[call % 2][start : start + self._step].reshape(size, -1)

    def write(self, call: int, first: int, raw: Bytes) -> None:
        """Write the units of ranks `first`, `first` + 1, … (of one unit each) for them."""
        start = self.base + first * self._room
        end = min(start + raw.size, self.base + self._store.size * self._room)
        self._store.areas[call % 2][start:end] = raw[: end - start]

    def of_rank(self, call: int, rank: int, index: int) -> Bytes:
        """Unit `index` of one rank, uint8 [unit]; valid until my next call."""
        start = self._at(rank, index)
        return self._store.areas[call % 2][start : start + self.unit]

    def _at(self, rank: int, index: int) -> int:
        chunk, place = divmod(index, self._k)
        return self.base + chunk * self._step + (rank * self._k + place) * self._room


class SharedStore:
    """The published bytes of one group, mapped by all its ranks.

    Args:
        path: of its file; the same on all ranks and no other group's.
        size: ranks. rank: mine. move: how rows are copied.

    Attributes:
        common: whether a rank may write where another publishes.
    """

    common = True

    def __init__(self, path: str, size: int, rank: int, move: Move = move_rows) -> None:
        self.move = move
        self._path, self.size, self.rank = path, size, rank
        self.stride = 1 << (min(_LONGEST, _REACH // size).bit_length() - 1)
        head = -(-DEPTH * size * FIELDS * 8 // _PAGE) * _PAGE
        total = head + 2 * size * self.stride
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            os.ftruncate(descriptor, total)
            flat: Bytes = np.frombuffer(mmap.mmap(descriptor, total), np.uint8)
        finally:
            os.close(descriptor)
        self._table = flat[: DEPTH * size * FIELDS * 8].view(np.int64).reshape(DEPTH, size, FIELDS)
        room = size * self.stride
        self.areas = [flat[head + parity * room : head + (parity + 1) * room] for parity in (0, 1)]
        self._mine = [self._table[place, rank].data.cast("B") for place in range(DEPTH)]
        self._checked = _FREE
        if rank == 0:
            atexit.register(self.opened)  # where no collective comes to its end

    def opened(self) -> None:
        """All ranks have it open: its name is not needed any more."""
        if self.rank == 0:
            atexit.unregister(self.opened)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)

    def flush(self) -> None:
        """What I published is there for others to read."""

    # --- descriptors ------------------------------------------------------------------------------------

    @property
    def mine(self) -> list[int]:
        """Addresses of my descriptors, by the number of the call modulo DEPTH; [] where they are copies."""
        return [self._table[place, self.rank].ctypes.data for place in range(DEPTH)] if self.common else []

    def announce(self, call: int, descriptor: Sequence[int]) -> None:
        """Write my descriptor of a call, FIELDS numbers."""
        _DESCRIPTOR.pack_into(self._mine[call % DEPTH], 0, call, *descriptor[1:])

    def announced(self, call: int) -> Int64:
        """Descriptors at the place of a call, int64 [g, FIELDS]; those of ranks not there yet are older."""
        table: Int64 = self._table[call % DEPTH].copy()
        return table

    def last_calls(self) -> Int64:
        """The last call each rank has entered, int64 [g]."""
        calls: Int64 = self._table[:, :, 0].max(axis=0)
        return calls

    # --- bytes ------------------------------------------------------------------------------------------

    def units(self, unit: int, count: int, after: Units | None = None, chunk: int = CHUNK) -> Units:
        """Room for `count` equal units of each rank, behind those of `after`; `chunk`: see `Units`."""
        return Units(self, unit, count, after.end if after is not None else 0, chunk)

    def crossed(self, unit: int) -> Crossed | None:
        """Room for a block of each rank for each rank; None where `units` serve as well: few bytes."""
        return Crossed(self, unit) if self.common and self.size * unit > CHUNK else None

    def sums(self, unit: int) -> Sums:
        """Room for a vector of each rank in `size` blocks of `unit` bytes, and for their sums."""
        return Sums(self, unit)

    def publish_raw(self, call: int, pieces: Sequence[tuple[int, Bytes]]) -> None:
        """Publish pieces at places of my own, (byte offset, uint8 contiguous) each. Raises: SizeError."""
        end = max((at + raw.size for at, raw in pieces), default=0)
        if end > self.stride:
            text = f"collective: {end} bytes of one rank are too many; at most {self.stride}"
            raise SizeError(text, value=end)
        self.check_room(end * self.size)
        mine = self.areas[call % 2][self.rank * self.stride : (self.rank + 1) * self.stride]
        for at, raw in pieces:
            mine[at : at + raw.size] = raw

    def rows(self, call: int, offset: int, nbytes: int) -> Bytes:
        """The piece at one place of every rank, uint8 [g, nbytes], contiguous."""
        area = self.areas[call % 2].reshape(self.size, self.stride)
        return np.ascontiguousarray(area[:, offset : offset + nbytes])

    def pieces(self, call: int, ranks: Int64, offsets: Int64, sizes: Int64) -> Bytes:
        """Pieces of some ranks one after the other, uint8 [sum of sizes].

        Args:
            ranks, offsets, sizes: int64 [k], of each piece; offset and size are bytes.
        """
        return take_pieces(self.areas[call % 2], ranks * self.stride + offsets, sizes)

    def publish_dense(self, call: int, sizes: Int64, raw: Bytes) -> None:
        """Publish my part of what lies one rank after the other, sizes[rank] bytes each: uint8 [sizes[me]].

        Raises:
            SizeError: more bytes than the areas of all ranks have. UsageError: as `check_room`.
        """
        ends = np.cumsum(sizes)
        self.check_room(int(ends[-1]))
        if ends[-1] > self.size * self.stride:
            raise SizeError(f"collective: {int(ends[-1])} bytes are too many", value=int(ends[-1]))
        end = int(ends[self.rank])
        self.areas[call % 2][end - raw.size : end] = raw

    def dense(self, call: int, sizes: Int64) -> Bytes:
        """All parts one after the other, uint8 [sum of sizes]; valid until my next call."""
        return self.areas[call % 2][: int(sizes.sum())]

    def check_room(self, nbytes: int) -> None:
        """See that what all ranks publish fits: a full `/dev/shm` would kill ranks by SIGBUS.

        Raises:
            UsageError: more bytes than are free.
        """
        if nbytes <= self._checked:
            return
        status = os.statvfs(os.path.dirname(self._path) or ".")
        free = status.f_bavail * status.f_frsize
        if nbytes - self._checked > free:
            raise UsageError(
                f"collective: {nbytes >> 20} MiB of {self.size} ranks do not fit in shared memory, "
                f"{free >> 20} MiB are free; send less at a time"
            )
        self._checked = nbytes
