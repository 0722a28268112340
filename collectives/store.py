"""What the ranks of a group publish for each other: descriptors and bytes, in shared memory of the group.

    descriptors   DEPTH rings of [g] descriptors, by the number of the call
    even, odd     bytes published in calls of even and odd number

A rank publishes before it enters and reads after it woke. Every collective ends only after all have entered
it (see `collectives.algorithms`), so nobody begins call k + 2 before all have read call k: two copies are
enough.

Equal blocks lie so that what one rank reads of many is close together: units of all ranks in turn, some of a
rank side by side up to `CHUNK` bytes. Of 384 ranks that keeps page tables two orders of magnitude smaller
than areas one after the other. Unequal ones lie one rank after the other, sparse.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from collectives.agreement import FIELDS
from emulator.errors import SizeError, UsageError

Bytes = npt.NDArray[np.uint8]
Int64 = npt.NDArray[np.int64]
CHUNK = 1 << 16
DEPTH = 4
_PAGE = 4096
_REACH = 1 << 40
_LONGEST = 1 << 34
_FREE = 1 << 26
_SMALL = 2048
"""Pieces of fewer bytes than this, on average, are moved by an indexed load."""


def padded(nbytes: int) -> int:
    """Room of a unit: a multiple of 8."""
    return -(-nbytes // 8) * 8


class SharedStore:
    """The published bytes of one group, mapped by all its ranks.

    Args:
        path: of its file; the same on all ranks and no other group's.
        size: ranks. rank: mine.
    """

    def __init__(self, path: str, size: int, rank: int) -> None:
        self._path, self._size, self._rank = path, size, rank
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
        self._areas = [flat[head + parity * room : head + (parity + 1) * room] for parity in (0, 1)]
        self._checked = _FREE

    def opened(self) -> None:
        """All ranks have it open: its name is not needed any more."""
        if self._rank == 0:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)

    # --- descriptors ------------------------------------------------------------------------------------

    def announce(self, call: int, descriptor: Sequence[int]) -> None:
        """Write my descriptor of a call."""
        self._table[call % DEPTH, self._rank] = descriptor

    def announced(self, call: int) -> Int64:
        """Descriptors at the place of a call, int64 [g, FIELDS]; those of ranks not there yet are older."""
        table: Int64 = self._table[call % DEPTH].copy()
        return table

    def last_calls(self) -> Int64:
        """The last call each rank has entered, int64 [g]."""
        calls: Int64 = self._table[:, :, 0].max(axis=0)
        return calls

    # --- equal units ------------------------------------------------------------------------------------

    def publish(self, call: int, raw: Bytes, unit: int, base: int = 0) -> None:
        """Publish units of equal size.

        Args:
            raw: uint8 [units * unit], contiguous; copied.
            unit: bytes of one. base: where the units of all ranks begin, see `end_of`.
        """
        units = raw.size // unit if unit else 0
        if not units:
            return
        self._check_room(self.end_of(unit, units, base))
        blocks, k, room = raw.reshape(units, unit), self._per_chunk(unit), padded(unit)
        flat, step, whole = self._areas[call % 2], self._size * k * room, units // k
        if whole:
            area = flat[base : base + whole * step].reshape(whole, self._size, k, room)
            area[:, self._rank, :, :unit] = blocks[: whole * k].reshape(whole, k, unit)
        if units % k:
            start = base + whole * step + self._rank * k * room
            rest = flat[start : start + (units % k) * room].reshape(-1, room)
            rest[:, :unit] = blocks[whole * k :]

    def column(self, call: int, index: int, unit: int, base: int = 0) -> Bytes:
        """Unit `index` of every rank, a view uint8 [g, unit]; valid until my next call."""
        k, room = self._per_chunk(unit), padded(unit)
        start = base + index // k * self._size * k * room + index % k * room
        stop = start + ((self._size - 1) * k + 1) * room
        view: Bytes = np.lib.stride_tricks.as_strided(
            self._areas[call % 2][start:stop], (self._size, unit), (k * room, 1), writeable=False
        )
        return view

    def unit_of(self, call: int, rank: int, index: int, unit: int, base: int = 0) -> Bytes:
        """Unit `index` of one rank, a view uint8 [unit]; valid until my next call."""
        k, room = self._per_chunk(unit), padded(unit)
        start = base + index // k * self._size * k * room + (rank * k + index % k) * room
        return self._areas[call % 2][start : start + unit]

    def end_of(self, unit: int, units: int, base: int = 0) -> int:
        """Where the next region after `units` units of all ranks begins."""
        k = self._per_chunk(unit)
        return base + -(-units // k) * self._size * k * padded(unit)

    def _per_chunk(self, unit: int) -> int:
        return max(1, CHUNK // max(1, padded(unit)))

    # --- unequal pieces ---------------------------------------------------------------------------------

    def publish_raw(self, call: int, pieces: Sequence[tuple[int, Bytes]]) -> None:
        """Publish pieces at places of my own, (byte offset, uint8 contiguous) each. Raises: SizeError."""
        end = max((at + raw.size for at, raw in pieces), default=0)
        if end > self.stride:
            raise SizeError(
                f"collective: {end} bytes of one rank are too many; at most {self.stride}", value=end
            )
        self._check_room(end * self._size)
        mine = self._areas[call % 2][self._rank * self.stride : (self._rank + 1) * self.stride]
        for at, raw in pieces:
            mine[at : at + raw.size] = raw

    def rows(self, call: int, offset: int, nbytes: int) -> Bytes:
        """The piece at one place of every rank, a view uint8 [g, nbytes]; valid until my next call."""
        area = self._areas[call % 2].reshape(self._size, self.stride)
        return area[:, offset : offset + nbytes]

    def pieces(self, call: int, ranks: Int64, offsets: Int64, sizes: Int64) -> Bytes:
        """Pieces of some ranks one after the other, uint8 [sum of sizes].

        Args:
            ranks, offsets, sizes: int64 [k], of each piece; offset and size are bytes.
        """
        return take_pieces(self._areas[call % 2], ranks * self.stride + offsets, sizes)

    def publish_dense(self, call: int, start: int, total: int, raw: Bytes) -> None:
        """Publish my part of what lies one rank after the other: bytes from `start` of `total`."""
        self._check_room(total)
        if total > self._size * self.stride:
            raise SizeError(f"collective: {total} bytes are too many", value=total)
        self._areas[call % 2][start : start + raw.size] = raw

    def dense(self, call: int, total: int) -> Bytes:
        """All parts, a view uint8 [total]; valid until my next call."""
        return self._areas[call % 2][:total]

    def _check_room(self, nbytes: int) -> None:
        """See that what all ranks publish fits: a full `/dev/shm` would kill ranks by SIGBUS."""
        if nbytes <= self._checked:
            return
        status = os.statvfs(os.path.dirname(self._path) or ".")
        free = status.f_bavail * status.f_frsize
        if nbytes - self._checked > free:
            raise UsageError(
                f"collective: {nbytes >> 20} MiB of {self._size} ranks do not fit in shared memory, "
                f"{free >> 20} MiB are free; send less at a time"
            )
        self._checked = nbytes


def take_pieces(flat: Bytes, starts: Int64, sizes: Int64) -> Bytes:
    """Pieces of `flat` one after the other; many small ones by one indexed load.

    Args:
        flat: uint8, contiguous. starts, sizes: int64 [k], bytes.
    """
    total = int(sizes.sum())
    if total > _SMALL * sizes.size:
        some = zip(starts.tolist(), sizes.tolist(), strict=True)
        return np.concatenate([flat[at : at + size] for at, size in some if size])
    if not total:
        return np.empty(0, np.uint8)
    unit = unit_of_all(starts, sizes)
    at, counts = starts // unit, sizes // unit
    index = np.repeat(at - (np.cumsum(counts) - counts), counts) + np.arange(total // unit)
    if unit == 1:
        return flat[index]
    return flat[: flat.size // unit * unit].view(f"u{unit}")[index].view(np.uint8)


def put_pieces(flat: Bytes, starts: Int64, sizes: Int64, data: Bytes) -> None:
    """The reverse of `take_pieces`: spread what lies one after the other in `data`."""
    ends = np.cumsum(sizes)
    if data.size > _SMALL * sizes.size:
        for at, size, end in zip(starts.tolist(), sizes.tolist(), ends.tolist(), strict=True):
            flat[at : at + size] = data[end - size : end]
    elif data.size:
        unit = unit_of_all(starts, sizes)
        at, counts = starts // unit, sizes // unit
        index = np.repeat(at - (np.cumsum(counts) - counts), counts) + np.arange(data.size // unit)
        if unit == 1 or flat.size % unit:
            unit_index = index if unit == 1 else np.add.outer(index * unit, np.arange(unit)).reshape(-1)
            flat[unit_index] = data
        else:
            flat.view(f"u{unit}")[index] = data.view(f"u{unit}")


def unit_of_all(starts: Int64, sizes: Int64) -> int:
    """The largest of 8, 4, 2, 1 that divides all starts and sizes."""
    bits = int(np.bitwise_or.reduce(starts) | np.bitwise_or.reduce(sizes))
    return 8 if not bits & 7 else 4 if not bits & 3 else 2 if not bits & 1 else 1
