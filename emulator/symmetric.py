"""Symmetric allocation: every rank carves the same piece at the same place, and says so to the others.

First fit over the same free pieces on every rank. A mismatch between ranks is found at the call, on every
rank, before anything is written through the piece. Channels are never given back.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

from emulator.engine.api import SET
from emulator.engine.posts import K_LOCAL, new_posts
from emulator.errors import SizeError, UsageError, misuse
from emulator.freelist import FreeList
from emulator.transport import Area

if TYPE_CHECKING:
    from emulator.device import Device

_ALIGN = {Area.HEAP: 64, Area.MANAGED: 4096}
_KEYS = {Area.HEAP: "heap_bytes", Area.MANAGED: "managed_bytes"}
_FARTHEST = 1 << 46


class SymmetricSpace:
    """The free pieces of one rank's heap, managed area, words and channels, alike on all ranks."""

    def __init__(self, device: Device) -> None:
        self._device = device
        sizes = device.transport.sizes
        self._free = {area: FreeList(sizes.of(area)) for area in _ALIGN}
        self._words = FreeList(device.config.words_per_rank)
        self._channels = 1
        self._calls = 0

    def carve(
        self, area: Area, nbytes: int, what: str, words: int = 0, channels: int = 0
    ) -> tuple[int, int, int]:
        """Allocate on all ranks at once (collective: costs a barrier).

        Args:
            area: heap or managed.
            nbytes: size of the piece.
            what: what it is for; must be equal on all ranks.
            words, channels: signal words and exchange channels that go with it.

        Returns:
            byte offset, first word, first channel. The words are 0; the bytes are what was there before.

        Raises:
            UsageError: the ranks do not agree, or the space is used up.
        """
        if not all(0 <= number < _FARTHEST for number in (nbytes, words, channels)):
            sizes = f"{nbytes} bytes, {words} words and {channels} channels"
            where = {"rank": self._device.rank, "now_ps": self._device.now_ps}
            raise misuse(SizeError, f"{what}: no machine has room for {sizes}", value=nbytes, **where)
        self._agree((int(area), nbytes, words * 4096 + channels, zlib.crc32(what.encode())), what)
        config, free = self._device.config, self._free[area]
        if self._channels + channels > config.channels:
            raise UsageError(f"{what}: needs {channels} channels, {config.channels - self._channels} left; "
                             f"raise channels (now {config.channels})")  # fmt: skip
        start = free.carve(nbytes, _ALIGN[area])
        if start is None:
            raise UsageError(
                f"{what}: needs {nbytes} bytes, {free.largest} in a row of {free.size} are left; "
                f"raise {_KEYS[area]} (now {free.size})"
            )
        first_word = self._words.carve(words)
        if first_word is None:
            free.release(start, nbytes)
            raise UsageError(f"{what}: needs {words} words, {self._words.largest} in a row are left; "
                             f"raise words_per_rank (now {config.words_per_rank})")  # fmt: skip
        self._channels += channels
        return start, first_word, self._channels - channels

    def release(
        self, area: Area, start: int, nbytes: int, what: str, first_word: int = 0, words: int = 0
    ) -> None:
        """Give a piece of `carve` back on all ranks at once (collective: costs a barrier).

        Completion: nobody's operation on it is under way any more; its words are 0.

        Raises:
            UsageError: the ranks do not agree, or some of it is free already.
        """
        kind = zlib.crc32(f"free {what} {start} {first_word}".encode())
        self._agree((int(area), nbytes, words * 4096, kind), what)
        try:
            self._free[area].release(start, nbytes)
            self._words.release(first_word, words)
        except ValueError as error:
            raise UsageError(f"{what}: cannot be given back: {error}") from None
        if words:
            mine = np.arange(first_word, first_word + words)
            self._device.post(new_posts(words, kind=K_LOCAL, peer=self._device.rank, word=mine, op=SET))

    def _agree(self, mine: tuple[int, int, int, int], what: str) -> None:
        """Compare this allocation with everyone's. Two slots by parity: a rank that runs ahead to the
        next call cannot reach the one after it before all have read this one."""
        device, parity = self._device, self._calls % 2
        table = device.board.allocation
        table[device.rank, parity] = mine
        self._calls += 1
        device.barrier()
        others = np.flatnonzero((table[:, parity] != np.array(mine)).any(axis=1))
        if others.size:
            theirs = tuple(int(v) for v in table[others[0], parity])
            raise UsageError(
                f"{what}: a symmetric allocation must be alike on all ranks; "
                f"rank {device.rank} asks for {mine[1]} "
                f"bytes, rank {others[0]} for {theirs[1]}"
                + ("" if mine[1] != theirs[1] else " of another kind")
            )
