"""Where things are: the native parts beside this file, and the private directories of runs.

A run of `superpod run` has one directory `run-<id>` (socket, Open MPI session) in the user's runtime
directory, and one of the same name in /dev/shm.  The run's processes hold a lock on both, so whoever comes
later can tell a run that was killed, whose leftovers may go, from one that lives.
"""

import contextlib
import fcntl
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from pathlib import Path

NATIVE = Path(__file__).parent / "native"
STUB = NATIVE / "superpod-rank"
BOARD = NATIVE / "board.so"
IMAGE = NATIVE / "image.so"
SHM = Path("/dev/shm")
_GONE_S = 60.0

_MAX_BASE = 48  # a Unix socket's path has 107 bytes, and ours adds about 50


def stub_command() -> list[str]:
    """Return the command of a rank stub: the compiled one, else the same in Python."""
    if os.access(STUB, os.X_OK):
        return [str(STUB)]
    return [sys.executable, "-I", "-S", str(Path(__file__).with_name("stub.py"))]


def private_directory(path: Path) -> Path:
    """Make `path` a directory only this user can enter. Raises PermissionError when somebody else owns it."""
    path.mkdir(mode=0o700, exist_ok=True)
    s = path.lstat()
    if not stat.S_ISDIR(s.st_mode) or s.st_uid != os.getuid() or s.st_mode & 0o077:
        raise PermissionError(
            f"{path} must be a directory of mode 0700 that belongs to you: remove it or set TMPDIR"
        )
    return path


def runtime_directory() -> Path:
    """Return (and make) the directory for sockets and sessions: $TMPDIR/superpod-<uid>, or under /tmp if
    that is long."""
    base = os.path.abspath(os.environ.get("TMPDIR") or tempfile.gettempdir())
    if len(os.fsencode(base)) > _MAX_BASE or not Path(base).is_dir():
        base = "/tmp"
    return private_directory(Path(base) / f"superpod-{os.getuid()}")


def hold(shm: Path) -> int:
    """Hold a directory in /dev/shm against `sweep` for as long as the descriptor, or a forked process's copy
    of it, is open. Flocks hold between containers that share /dev/shm, too."""
    fd = os.open(shm, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(fd, fcntl.LOCK_SH)
    return fd


class RunDirectory:
    """The two directories of one run, made with `RunDirectory()` and removed with `remove()`; see the
    module's text."""

    def __init__(self) -> None:
        for _ in range(100):  # another run that ends may remove the parent meanwhile
            try:
                fresh = Path(tempfile.mkdtemp(prefix="new-", dir=runtime_directory()))
                break
            except FileNotFoundError:
                continue
        self.lock_fd = os.open(fresh / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self.lock_fd, fcntl.LOCK_EX)
        self.path = fresh.with_name(f"run-{os.getpid()}-{fresh.name[4:]}")
        self.shm = private_directory(SHM / f"superpod-{os.getuid()}-{self.path.name}")
        self._held = hold(self.shm)
        fresh.rename(self.path)
        (self.path / "tmp").mkdir()

    @property
    def socket_path(self) -> Path:
        return self.path / "socket"

    @property
    def session(self) -> Path:
        return self.path / "tmp"

    @property
    def trace(self) -> Path:
        return self.path / "trace"

    def remove(self) -> None:
        """Remove both directories, and the runtime directory when this was its last run."""
        if self._held >= 0:
            os.close(self._held)
            self._held = -1
        remove_run(self.path)


def remove_run(path: Path) -> None:
    shutil.rmtree(SHM / f"superpod-{os.getuid()}-{path.name}", ignore_errors=True)
    shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        path.parent.rmdir()


def sweep() -> list[Path]:
    """Remove what killed runs of this user left (nobody holds their lock); return their directories."""
    swept = []
    for path in runtime_directory().glob("run-*"):
        try:
            fd = os.open(path / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_run(path)
            swept.append(path)
        except OSError:
            pass
        finally:
            os.close(fd)
    with contextlib.suppress(OSError):
        runtime_directory().rmdir()
    return swept + _sweep_shared()


def _sweep_shared() -> list[Path]:
    """Remove directories in /dev/shm named after a process that has been gone for a while and held by nobody:
    of runs killed together with everybody who would have removed them, wherever their other files lay."""
    swept = []
    for path in SHM.glob(f"superpod-{os.getuid()}-*"):
        found = re.search(r"-run-(\d+)-|-(\d+)@\d+$", path.name)
        pid = next(filter(None, found.groups())) if found else None
        with contextlib.suppress(OSError):
            if pid and not Path(f"/proc/{pid}").exists() and time.time() - path.stat().st_mtime > _GONE_S:
                _remove_unheld(path)
                swept.append(path)
    return swept


def _remove_unheld(path: Path) -> None:
    """Raises OSError where somebody holds it."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path)
    finally:
        os.close(fd)
