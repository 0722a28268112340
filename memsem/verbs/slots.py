"""A fixed number of numbered places, the lowest free one first. Each counts how often it was given out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Slots(Generic[T]):
    """Places 0 to size - 1 for objects that know their place."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._items: dict[int, T] = {}
        self._generations: dict[int, int] = {}

    def take(self, item: T) -> tuple[int, int] | None:
        """Put an object into the lowest free place; returns place and generation, None when full."""
        if len(self._items) == self.size:
            return None
        slot = next(i for i in range(self.size) if i not in self._items)
        self._items[slot] = item
        self._generations[slot] = self._generations.get(slot, -1) + 1
        return slot, self._generations[slot]

    def give(self, slot: int) -> None:
        """Free a place."""
        del self._items[slot]

    def get(self, slot: int) -> T | None:
        """Return what is at a place."""
        return self._items.get(slot)

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._items.values()))

    def __len__(self) -> int:
        return len(self._items)
