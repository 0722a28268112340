"""The key-value store of a job, and how its ranks find each other without a server.

The backend itself needs no store: rank, size and memory come from the machine, so nothing is opened at 384
ranks. Torch hands a store around all the same, and gloo lives by it. `JobStore` becomes a file of the job at
its first use, and is nothing before.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlparse

from torch._C._distributed_c10d import FileStore, Store

from emulator.errors import UsageError


def meet(url: str, rank: int, size: int) -> Iterator[tuple[Store, int, int]]:
    """Yield the store, rank and world size of `env://` for a process an MPI launcher has started.

    Raises:
        UsageError: the program asks for another rank or world size than it was started with.
    """
    asked = {key: int(value) for key, value in parse_qsl(urlparse(url).query)}
    for what, here in (("rank", rank), ("world_size", size)):
        if asked.get(what, here) != here:
            raise UsageError(
                f"init_process_group: {what}={asked[what]}; mpirun started this process as {here}"
            )
    _kept.append(JobStore(store_path(os.environ), size))
    yield _kept[-1], rank, size


def store_path(environ: Any) -> Path:
    """Return a path of the job's own, alike on all its ranks on this host."""
    folder = environ.get("PMIX_SERVER_TMPDIR") or tempfile.gettempdir()
    job = environ.get("PMIX_NAMESPACE") or environ.get("PMI_ID") or str(os.getppid())
    return Path(folder) / f"torch-store-{os.getuid()}-{job.replace('/', '_')}"


_Base: Any = Store
_kept: list[Store] = []
"""torch holds a store from C++ only, where the Python object that answers would be collected."""


class JobStore(_Base):  # type: ignore[misc]
    """A store that opens its file at the first call."""

    def __init__(self, path: Path, size: int) -> None:
        super().__init__()
        self._path, self._size = path, size
        self._file: FileStore | None = None
        self._timeout: timedelta | None = None

    def _opened(self) -> FileStore:
        if self._file is None:
            self._file = FileStore(str(self._path), self._size)
            if self._timeout is not None:
                self._file.set_timeout(self._timeout)
        return self._file

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long `get` and `wait` wait, in host time."""
        self._timeout = timeout
        if self._file is not None:
            self._file.set_timeout(timeout)

    @property
    def timeout(self) -> timedelta:
        """How long `get` and `wait` wait."""
        return self._timeout or timedelta(minutes=30)

    def set(self, key: str, value: Any) -> None:
        """Set a value."""
        self._opened().set(key, value)

    def get(self, key: str) -> bytes:
        """Wait for a key and return its value."""
        return bytes(self._opened().get(key))

    def add(self, key: str, value: int) -> int:
        """Add to a counter; returns its new value."""
        return int(self._opened().add(key, value))

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        """Set a value if it is the expected one; returns what it is now."""
        return bytes(self._opened().compare_set(key, expected, desired))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are set."""
        self._opened().wait(list(keys), timeout or self.timeout)

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys are set."""
        return bool(self._opened().check(list(keys)))

    def delete_key(self, key: str) -> bool:
        """Remove a key; returns whether there was one."""
        return bool(self._opened().delete_key(key))

    def num_keys(self) -> int:
        """Return how many keys are set."""
        return int(self._opened().num_keys())
