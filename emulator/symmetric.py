"""Symmetric allocation: every rank carves the same piece at the same place, and says so to the others.

First fit over the same free pieces on every rank. A mismatch between ranks is found at the call, on every
rank, before anything is written through the piece. Channels are never given back.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from emulator.engine.api import SET
from emulator.engine.posts import K_LOCAL, new_posts
from emulator.engine.reports import ranges
from emulator.errors import SizeError, UsageError, misuse
from emulator.freelist import FreeList
from emulator.remarks import remark, remarked
from emulator.transport import Area

if TYPE_CHECKING:
    from emulator.device import Device

_ALIGN = {Area.HEAP: 64, Area.MANAGED: 4096}
_KEYS = {Area.HEAP: "heap_bytes", Area.MANAGED: "managed_bytes"}
_FARTHEST = 1 << 46
_ALLOCATES = "allocates "
"""What a rank's remark begins with until all have said what they allocate."""


class SymmetricSpace:
    """The free pieces of one rank's heap, managed area, words and channels, alike on all ranks."""

    def __init__(self, device: Device) -> None:
        self._device = device
        sizes = device.transport.sizes
        self._free = {area: FreeList(sizes.of(area)) for area in _ALIGN}
        self._words = FreeList(device.config.words_per_rank)
        self._channels = 1
        self._calls = 0
        self._ranks = np.arange(device.transport.num_ranks)
        """Who takes part: all, or the living."""

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

    def regroup(self, living: npt.NDArray[np.int32]) -> None:
        """Allocate among these ranks from now on; all of them call it, after deaths of which they were told
        at one time. An allocation that deaths ended was made by none."""
        self._ranks, self._calls = living.astype(np.int64), 0

    def _agree(self, mine: tuple[int, int, int, int], what: str) -> None:
        """Compare this allocation with everyone's. Two slots by parity: a rank that runs ahead to the
        next call cannot reach the one after it before all have read this one."""
        device = self._device
        device.renew()
        parity = self._calls % 2
        table = device.board.allocation
        table[device.rank, parity] = mine
        self._calls += 1
        remark(device.board, device.rank, _ALLOCATES + what)
        device.barrier()
        asked = table[self._ranks, parity]
        if (asked != np.array(mine)).any():
            said = _asked(asked, self._ranks, remarked(device.board, _ALLOCATES))
            device.barrier()  # all have read what the others asked for
            raise UsageError(f"a symmetric allocation must be alike on all ranks; {said}")
        remark(device.board, device.rank, "")


def _asked(table: npt.NDArray[np.int64], ranks: npt.NDArray[np.int64], what: dict[int, str]) -> str:
    """Who asks for what, those who ask alike together; `what` for, by rank."""
    kinds, which = np.unique(table, axis=0, return_inverse=True)
    parts = []
    for number, size in enumerate(kinds[:, 1].tolist()):
        members = ranks[which.reshape(-1) == number].tolist()
        who, kind = ranges(members), what.get(members[0], "another kind")
        parts.append(f"{who} ask{'s' if who.startswith('rank ') else ''} for {size} bytes ({kind})")
    return ", ".join(parts[:8])
