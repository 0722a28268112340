"""Every error of the project on one page, split by who is at fault: the caller, the emulated world, or us.

All of them cross process borders, so they pickle and keep their fields.
"""

from collections.abc import Sequence
from typing import Any

__all__ = [
    "CompletionError",
    "DeadlockError",
    "FabricError",
    "InternalError",
    "LinkDownError",
    "RankLostError",
    "SuperpodError",
    "UsageError",
    "WallDeadlineError",
]


class SuperpodError(Exception):
    """Root of the tree. `fields` are the facts behind the message (rank, virtual time, the offending
    value)."""

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields

    def __getattr__(self, name: str) -> Any:
        fields = self.__dict__.get("fields", {})
        if name in fields:
            return fields[name]
        raise AttributeError(name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.fields)


def _rebuild(kind: type[SuperpodError], message: str, fields: dict[str, Any]) -> SuperpodError:
    return kind(message, **fields)


class UsageError(SuperpodError):
    """The caller's mistake. One line: what, where, the nearest valid choice. The command exits with code
    2."""


class FabricError(SuperpodError):
    """Something the emulated machine did to the program."""


class LinkDownError(FabricError):
    """A link of the emulated fabric is down."""


class RankLostError(FabricError):
    """A rank died, and this call can never complete without it. Fields: `ranks`."""

    def __init__(self, message: str, ranks: Sequence[int] = (), **fields: Any) -> None:
        super().__init__(message, ranks=tuple(ranks), **fields)


class DeadlockError(SuperpodError):
    """Nothing runs and nothing is under way. Fields: `waiters`, one dict per blocked rank."""

    def __init__(self, message: str, waiters: Sequence[dict[str, Any]] = (), **fields: Any) -> None:
        super().__init__(message, waiters=tuple(waiters), **fields)


class WallDeadlineError(SuperpodError):
    """The host made no progress for too long. It ends the run with a report and is never a virtual
    time-out."""


class CompletionError(SuperpodError):
    """A work completion with an error status. Fields: the completion, as the caller passed it."""


class InternalError(SuperpodError):
    """Our bug, or shared state that a killed rank left half changed."""
