"""One 64-bit word from every rank to every rank: a barrier that carries something."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from emulator import Device
from emulator.transport import Area


class StatusWords:
    """An exchange channel for status words. Collective to make: costs a barrier.

    Args:
        device: this rank.
        meta_bytes: charged size of the record that carries a word.
    """

    def __init__(self, device: Device, meta_bytes: int = 32) -> None:
        self._device, self._meta_bytes = device, meta_bytes
        _, _, self._channel = device.symmetric.carve(Area.HEAP, 0, "status words", channels=1)

    def exchange(self, word: int) -> npt.NDArray[np.int64]:
        """Give my word to all; returns int64 [n], the words by rank. Blocks until all have given theirs."""
        return self._device.exchange(self._channel, None, 0, self._meta_bytes, tag=word).tags
