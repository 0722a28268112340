"""Symmetric allocation: every rank carves the same piece at the same place, and says so to the others.

Pieces are never given back; an emulated program allocates its windows at the start. A mismatch between
ranks is found at the call, on every rank, before anything is written through the piece.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

from emulator.errors import UsageError
from emulator.transport import Area

if TYPE_CHECKING:
    from emulator.device import Device

_ALIGN = {Area.HEAP: 64, Area.MANAGED: 4096}
_KEYS = {Area.HEAP: "heap_bytes", Area.MANAGED: "managed_bytes"}


class SymmetricSpace:
    """The cursors of one rank over its heap, managed area, words and channels."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._cursor = {Area.HEAP: 0, Area.MANAGED: 0}
        self._words = 0
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
            byte offset, first word, first channel.

        Raises:
            UsageError: the ranks do not agree, or the space is used up.
        """
        self._agree((int(area), nbytes, words * 4096 + channels, zlib.crc32(what.encode())), what)
        start = -(-self._cursor[area] // _ALIGN[area]) * _ALIGN[area]
        size, config = self._device.transport.sizes.of(area), self._device.config
        if start + nbytes > size:
            raise UsageError(
                f"{what}: needs {nbytes} bytes, {size - start} of {size} are left; "
                f"raise {_KEYS[area]} (now {size})"
            )
        if self._words + words > config.words_per_rank:
            raise UsageError(f"{what}: needs {words} words, {config.words_per_rank - self._words} are left; "
                             f"raise words_per_rank (now {config.words_per_rank})")  # fmt: skip
        if self._channels + channels > config.channels:
            raise UsageError(f"{what}: needs {channels} channels, {config.channels - self._channels} left; "
                             f"raise channels (now {config.channels})")  # fmt: skip
        result = (start, self._words, self._channels)
        self._cursor[area] = start + nbytes
        self._words += words
        self._channels += channels
        return result

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
