"""A piece of work in a process of its own, so that what it imports (torch: 140 MB) goes when it ends."""

import contextlib
import gc
import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType

from emulator.errors import SuperpodError
from launch import osproc, paths


class Helper:
    """A forked process that does `work` when told to. It ends with this process, or with the `with` block.

    It is forked at once, because later this process may have threads, and waits for `start()`.

    Args:
        what: its name in an error.
        own: the run's directory; its lock stays with this process alone.
        work: what to do; a SuperpodError of it is raised here, by `wait()`.
    """

    def __init__(self, what: str, own: paths.RunDirectory, work: Callable[[], object]) -> None:
        self.what = what
        self._started = False
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, own.lock_fd, work, os.getpid())
        self._process = context.Process(target=_help, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

    def start(self) -> None:
        """Let it begin; once it has, nothing happens."""
        if not self._started:
            self._started = True
            with contextlib.suppress(OSError):  # it is dead: `wait()` will say so
                self._pipe.send(None)

    def wait(self) -> None:
        """Let it begin if it has not, and wait for its end.

        Raises:
            SuperpodError: what its work raised, or that it ended otherwise than well.
        """
        self.start()
        error: SuperpodError | None = None
        with contextlib.suppress(EOFError, OSError):
            error = self._pipe.recv()
        self._process.join()
        if error is not None:
            raise error
        if self._process.exitcode:
            raise SuperpodError(f"{self.what} ended with exit code {self._process.exitcode}")

    def __enter__(self) -> "Helper":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _help(pipe: Connection, lock_fd: int, work: Callable[[], object], parent: int) -> None:
    osproc.die_with_parent(parent)
    os.close(lock_fd)  # the directory is the command's: when that dies, it may go
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the command's, which kills us
    gc.freeze()  # a collection here must not copy what is still shared with the command: 5 MB
    pipe.recv()
    try:
        work()
    except SuperpodError as error:
        pipe.send(error)
