"""Standard output that cannot be written, told from other errors: a full disk, a reader that left."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any


class OutputError(Exception):
    """Standard output takes no more; `cause` says why."""

    def __init__(self, cause: OSError) -> None:
        self.cause = cause
        super().__init__(cause.strerror)


class Watched:
    """A text stream whose failures are `OutputError`; in all else the stream it stands for."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return int(self._stream.write(text))
        except OSError as error:
            raise OutputError(error) from None

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            raise OutputError(error) from None


@contextlib.contextmanager
def output_watched() -> Iterator[None]:
    """Stand in for `sys.stdout`; whatever is printed has been written at the end. Raises OutputError.

    A standard file that was closed before the command began is /dev/null: what says nothing may still work.
    """
    before = sys.stdout, sys.stderr
    with contextlib.ExitStack() as held:
        if sys.stderr is None:
            sys.stderr = held.enter_context(open(os.devnull, "w"))
        stream: Any = held.enter_context(open(os.devnull, "w")) if sys.stdout is None else sys.stdout
        watched: Any = Watched(stream)
        sys.stdout = watched
        try:
            yield
            watched.flush()
        except OutputError:
            give_up(stream)
            raise
        finally:
            sys.stdout, sys.stderr = before


def give_up(stream: Any) -> None:
    """Let the interpreter write nothing more to a standard file at its end."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
