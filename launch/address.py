"""Where a fork server is found, and what is left there by those that were killed."""

import contextlib
import fcntl
import os
import shutil
import socket
from pathlib import Path

from launch import osproc, paths, wire


def mpirun_of(session: str) -> int:
    """The process that a session directory of Open MPI is named after; 0 where it is none."""
    name, _, pid = Path(session).name.rpartition(".")
    return int(pid) if name == "ompi" and pid.isdigit() else 0


def sweep_jobs(stem: str) -> None:
    """Remove what jobs of a killed server left, whose mpirun (named in the directory) is gone too."""
    for path in paths.SHM.glob(f"superpod-{os.getuid()}-{stem}-prterun-*"):
        pid = path.name.rpartition("@")[0].rpartition("-")[2]
        if pid.isdigit() and not osproc.is_alive(int(pid)):
            shutil.rmtree(path, ignore_errors=True)


def give_up_address(path: str, lock: str, wait: bool) -> bool:
    """Remove a shared server's socket and lock file, so that the next stub starts another server.

    Returns:
        whether that was done; not if the lock is taken (a stub is looking for us just now) and `wait` is off.
    """
    fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        for name in (path, lock):
            Path(name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            Path(path).parent.rmdir()
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(fd)


def refuse(listener: socket.socket, why: str) -> None:
    """Tell every stub that comes within a second why this server cannot serve."""
    listener.settimeout(1.0)
    with contextlib.suppress(OSError):
        while True:
            stub, _ = listener.accept()
            wire.send_note(stub, wire.FAILED, f"the fork server could not start: {why}".encode())
            stub.close()
