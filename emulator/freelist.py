"""Free pieces of a numbered space, first fit: the same requests give the same places on every rank."""

from __future__ import annotations


class FreeList:
    """Holes of a space [0, size), ascending and never adjacent."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._holes = [(0, size)] if size else []

    @property
    def free(self) -> int:
        """Units not taken, in all holes together."""
        return sum(size for _, size in self._holes)

    @property
    def largest(self) -> int:
        """Units of the largest hole."""
        return max((size for _, size in self._holes), default=0)

    def carve(self, size: int, align: int = 1) -> int | None:
        """Take `size` units at a multiple of `align`, the lowest that fits; None if none does. No units are
        at the lowest free place, and take nothing."""
        for at, (start, room) in enumerate(self._holes):
            place = -(-start // align) * align
            if place + size <= start + room:
                if size:
                    rest = [(start, place - start), (place + size, start + room - place - size)]
                    self._holes[at : at + 1] = [hole for hole in rest if hole[1]]
                return place
        return None if size else self.size

    def release(self, start: int, size: int) -> None:
        """Give a piece back.

        Raises:
            ValueError: some of it is free already, or outside the space.
        """
        if size == 0:
            return
        at = sum(hole < (start, 0) for hole in self._holes)
        low, high = self._holes[at - 1 : at], self._holes[at : at + 1]
        if start < 0 or start + size > self.size or (low and sum(low[0]) > start):
            raise ValueError(f"{start} to {start + size} is not taken")
        if high and start + size > high[0][0]:
            raise ValueError(f"{start} to {start + size} is not taken")
        first, last = start, start + size
        self._holes[at : at + len(high)] = [(first, last - first), *high]
        self._join(at)
        self._join(at - 1)

    def _join(self, at: int) -> None:
        """Make one hole of neighbours `at` and `at + 1` where they touch."""
        if 0 <= at < len(self._holes) - 1:
            (start, size), (after, more) = self._holes[at : at + 2]
            if start + size == after:
                self._holes[at : at + 2] = [(start, size + more)]
