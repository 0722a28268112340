"""What groups ask the engine for: signal words of a call, and exchanges of which only the tags are read."""

from __future__ import annotations

from collections.abc import Callable

from collectives.pieces import Int64
from emulator import Device

ExchangeTags = Callable[[int, "int | Int64", int], int]


def words_of(num_ranks: int) -> int:
    """Signal words of one parity: a word for each round of two phases of the algorithm with most rounds."""
    return 2 * (max(num_ranks - 1, 1).bit_length() + 2)


def exchange_of(device: Device) -> ExchangeTags:
    """(channel, bytes of a record to each or int64 [g], tag) -> sum of all tags modulo 2**64, of one
    exchange."""
    compiled: ExchangeTags | None = getattr(device, "exchange_tags", None)

    def exchange(channel: int, sizes: int | Int64, tag: int) -> int:
        if isinstance(sizes, int):
            return int(device.exchange(channel, None, 0, sizes, tag=tag).tags.sum())
        return int(device.exchange(channel, None, 0, 0, tag=tag, record_bytes=sizes).tags.sum())

    return compiled or exchange
