"""Who decides which pages a sequence has, as whoever stores the bytes sees it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

from emulator.errors import InternalError

__all__ = ["Lender", "LentTables"]


class Lender(Protocol):
    """Who decides which pages a sequence has."""

    tables: dict[Hashable, list[int]]

    def forget(self, pages: Sequence[int]) -> None: ...
    def check_integrity(self) -> None: ...


class LentTables:
    """Pages that another rank lends: what it said last."""

    def __init__(self) -> None:
        self.tables: dict[Hashable, list[int]] = {}

    def forget(self, pages: Sequence[int]) -> None:
        """Nothing is kept here."""

    def check_integrity(self) -> None:
        """Raises InternalError: a sequence that has ended has pages."""
        if self.tables:
            raise InternalError(f"KV cache: sequences {sorted(map(str, self.tables))} have not ended")
