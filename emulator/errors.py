"""Every error of the project on one page, split by who is at fault: the caller, the emulated world, or us.

All of them cross process borders, so they pickle and keep their fields.
"""

from collections.abc import Sequence
from typing import Any

__all__ = [
    "AlignmentError",
    "CompletionError",
    "DeadlockError",
    "DtypeError",
    "FabricError",
    "InternalError",
    "KeyFaultError",
    "LinkDownError",
    "MembershipChanged",
    "OffsetError",
    "RankLostError",
    "RemoteAccessError",
    "SizeError",
    "StateError",
    "SuperpodError",
    "UsageError",
    "WallDeadlineError",
    "misuse",
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


class SizeError(UsageError):
    """A number of bytes or elements that cannot be: negative, too large, not what the other side says.

    It and its neighbours are local misuse of memory, found at the call. Fields: `rank`, `now_ps` (virtual
    time of the call) and `value`, the offending one; the message names all three (see `misuse`).
    """


class OffsetError(UsageError):
    """A place outside what may be touched. Fields as `SizeError`."""


class AlignmentError(UsageError):
    """A place that is not a multiple of what the operation needs. Fields as `SizeError`."""


class DtypeError(UsageError):
    """Elements of a type the operation does not take. Fields as `SizeError`."""


class KeyFaultError(UsageError):
    """A key, token or handle that names no memory of mine. Fields as `SizeError`."""


class StateError(UsageError):
    """An object that is not in the state the call needs (closed, in RESET, already complete). Fields as
    `SizeError`."""


def misuse(kind: type[UsageError], message: str, *, rank: int, now_ps: int, value: Any) -> UsageError:
    """Return an error of local misuse whose message ends with the rank and its virtual time.

    Args:
        kind: one of the classes above.
        message: what was asked for and what is right; it names `value`.
        rank, now_ps: who asked, and when (picoseconds).
        value: the offending value, kept as a field.
    """
    return kind(f"{message} (rank {rank}, {now_ps} ps)", rank=rank, now_ps=now_ps, value=value)


class FabricError(SuperpodError):
    """Something the emulated machine did to the program."""


class LinkDownError(FabricError):
    """A link of the emulated fabric is down."""


class RankLostError(FabricError):
    """A rank died, and this call can never complete without it. Fields: `ranks`."""

    def __init__(self, message: str, ranks: Sequence[int] = (), **fields: Any) -> None:
        super().__init__(message, ranks=tuple(ranks), **fields)


class MembershipChanged(RankLostError):
    """Ranks have died, and every survivor that subscribed is told at the same virtual time. Fields: `ranks`,
    all that are dead, and `epoch`, how many such changes there have been."""


class RemoteAccessError(FabricError):
    """The other side refused an operation: its memory is not open to it, or it did not answer. It shows at
    `quiet` or a wait, never at the call. Fields: `rank`, `now_ps`, `peer`, `value` (the status)."""


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
