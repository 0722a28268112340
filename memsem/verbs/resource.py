"""Ownership: a parent closes its children before itself, last made first, as `pyverbs.base` does."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Resource:
    """A verbs object. A context manager; `close` may be called more than once.

    Args:
        parents: objects this one cannot outlive. A constructor names them last, once it can fail no more.
    """

    closed = False

    def __init__(self, *parents: Resource) -> None:
        self._parents, self._children = parents, list[Resource]()
        for parent in parents:
            parent._children.append(self)

    def close(self) -> None:
        """Close what depends on this, then this."""
        if self.closed:
            return
        for child in reversed(self._children.copy()):
            child.close()
        self._close()
        self.closed = True
        for parent in self._parents:
            parent._children.remove(self)

    def _close(self) -> None:
        """Give back what the object holds; its children are closed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
