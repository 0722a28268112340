"""Where the blocks of an all-to-all lie: one of each rank for each rank.

A rank writes a block for everybody and reads one from everybody, so either its writes or its reads jump. Laid
out by target alone, each rank would write into as many page tables as there are ranks; laid out by source
alone, reads jump at every block, which costs as much as the block (a miss of the TLB, and the processor's
prefetching begins anew). So:

    chunk      as many targets as fit in `CHUNK` bytes
      group      `TOGETHER` sources
        target     its blocks of the group's sources, side by side

A rank writes single blocks, within half a megabyte for each chunk, and need not wait for memory; it reads
runs of `TOGETHER` blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from collectives.buffers import Array
from collectives.pieces import Bytes

if TYPE_CHECKING:
    from collectives.store import SharedStore

CHUNK = 1 << 16
TOGETHER = 8


class Crossed:
    """Blocks of `unit` bytes, one of every rank for every rank, for calls of either parity.

    Args:
        store: whose. unit: bytes of a block, above 0.
    """

    def __init__(self, store: SharedStore, unit: int) -> None:
        self._store, self._unit, size = store, unit, store.size
        self._room = -(-unit // 8) * 8
        self._targets = min(size, max(1, CHUNK // self._room))
        self._sources = min(size, TOGETHER)
        self._run = self._sources * self._room
        self._group = self._targets * self._run
        self._chunk = -(-size // self._sources) * self._group
        store.check_room(-(-size // self._targets) * self._chunk)
        self._mine = [self._cut(area) for area in store.areas]
        self._theirs = [self._for_me(area) for area in store.areas]

    def _cut(self, area: Bytes) -> tuple[Bytes, Bytes]:
        """My blocks in an area: of whole chunks [c, targets, unit] and of the rest [r, unit]."""
        group, place = divmod(self._store.rank, self._sources)
        start = group * self._group + place * self._room
        whole, rest = divmod(self._store.size, self._targets)
        chunks = self._view(area, start, (whole, self._targets), (self._chunk, self._run))
        return chunks, self._view(area, start + whole * self._chunk, (rest,), (self._run,))

    def _view(self, area: Bytes, start: int, shape: tuple[int, ...], steps: tuple[int, ...]) -> Bytes:
        """Blocks from `start` on, uint8 [*shape, unit], `steps` bytes apart."""
        return np.lib.stride_tricks.as_strided(area[start:], (*shape, self._unit), (*steps, 1))

    def publish(self, call: int, raw: Bytes) -> None:
        """Publish my block for each rank, uint8 [g * unit], contiguous; copied."""
        chunks, rest = self._mine[call % 2]
        if len(chunks):
            self._store.move(chunks, raw[: chunks.size], True)
        if len(rest):
            self._store.move(rest, raw[chunks.size :], True)

    def take(self, call: int, array: Array) -> None:
        """Put every rank's block for me, by rank, into an array of as many bytes, in C order."""
        runs, rest = self._theirs[call % 2]
        if array.flags.c_contiguous:
            flat = array.reshape(-1).view(np.uint8)
            if len(runs):
                self._store.move(runs, flat[: runs.size], False)
            if len(rest):
                self._store.move(rest, flat[runs.size :], False)
        else:
            flat = np.concatenate([runs.reshape(-1), rest.reshape(-1)])
            array[...] = flat.view(array.dtype).reshape(array.shape)

    def _for_me(self, area: Bytes) -> tuple[Bytes, Bytes]:
        """Blocks for me: of whole groups [groups, sources, unit] and of the rest [r, unit]."""
        chunk, place = divmod(self._store.rank, self._targets)
        start = chunk * self._chunk + place * self._run
        groups, rest = divmod(self._store.size, self._sources)
        runs = self._view(area, start, (groups, self._sources), (self._group, self._room))
        return runs, self._view(area, start + groups * self._group, (rest,), (self._room,))
