"""A command's private directory, where also its `tempfile` looks: removed at its end, and by the next command
(or by the run's fork server) where it was killed."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from emulator.errors import UsageError
from launch import paths


@contextmanager
def job_directory() -> Iterator[paths.RunDirectory]:
    """A private directory for the job's files. Raises UsageError: it cannot be made."""
    try:
        own = paths.RunDirectory()
    except OSError as error:
        raise UsageError(f"cannot make the job's directory: {error}") from None
    before, tempfile.tempdir = tempfile.tempdir, str(own.session)
    try:
        yield own
    finally:
        tempfile.tempdir = before
        own.remove()
        os.close(own.lock_fd)


@contextmanager
def work_directory() -> Iterator[Path]:
    """An empty folder in a directory of the command's own. Raises UsageError: it cannot be made."""
    with job_directory() as own:
        folder = own.path / "work"
        folder.mkdir()
        yield folder
