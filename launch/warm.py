"""A run's private fork server, forked from one that stays up between runs instead of importing torch again.

    SUPERPOD_WARM=1 superpod run -n 16 app.py       the next such run starts two seconds sooner

The process that stays is a shared fork server (the kind that `mpirun superpod-rank` starts) of this
interpreter, package, environment and host state; it leaves SUPERPOD_IDLE_S seconds after its last job. The
private server takes on the command's environment, standard input and error, listens on the run's own socket,
and ends when the command's end of `owner` closes, however that came.

The command sends one hello (wire.py) whose arguments are the paths of the run; the standard files and the
three sockets of the run go with it. The connection stays open for as long as the private server lives.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import select
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

from emulator.errors import UsageError
from launch import osproc, stub, wire

VARIABLE = "SUPERPOD_WARM"


def wanted(environment: Mapping[str, str]) -> bool:
    """Whether a run with this environment of its ranks is to use the server that stays up."""

    def matters(entries: Mapping[str, str]) -> dict[str, str]:
        return {k: v for k, v in entries.items() if k.startswith(stub.NAMES)}

    return environment.get(VARIABLE, "0") not in ("", "0") and matters(environment) == matters(os.environ)


def idle_seconds(environment: Mapping[str, str]) -> float:
    """How long a shared server stays without a job. Raises UsageError where SUPERPOD_IDLE_S is no time."""
    text = environment.get("SUPERPOD_IDLE_S", "60")
    with contextlib.suppress(ValueError):
        if 0 <= (seconds := float(text)) < float("inf"):
            return seconds
    raise UsageError(f"SUPERPOD_IDLE_S={text}: seconds, 0 or more, are wanted")


def host_state() -> str:
    """What a child inherits beside its environment and files: limits, cores, priority, umask."""
    names = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
    limits = [(name, *resource.getrlimit(getattr(resource, name))) for name in names]
    cores = sorted(os.sched_getaffinity(0))
    return repr((limits, cores, os.getpriority(os.PRIO_PROCESS, 0), _umask()))


def _umask() -> int:
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


class BorrowedServer:
    """A private fork server that is nobody's child here; used like the `subprocess.Popen` of one.

    Args:
        connection: to the server that forks it; the forked one holds the other end for its whole life.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._said = b""

    def wait(self, timeout: float) -> None:
        """Return when the server has ended. Raises subprocess.TimeoutExpired."""
        while not self._hear(timeout):
            pass
        self._connection.close()

    def kill(self) -> None:
        """End the server now, if it has said who it is."""
        if pid := self.pid:
            os.kill(pid, 9)

    @property
    def pid(self) -> int | None:
        """Its process id; None until it is there, and when it is gone."""
        while select.select([self._connection], [], [], 0)[0]:
            if self._hear(0):
                return None
        return wire.NOTE.unpack(self._said)[1] if len(self._said) == wire.NOTE.size else None

    def _hear(self, timeout: float) -> bool:
        """Read what comes within `timeout` seconds; whether it was the end."""
        if not select.select([self._connection], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("fork server", timeout)
        try:
            more = self._connection.recv(wire.NOTE.size)
        except OSError:
            more = b""
        self._said += more
        return not more


def borrow(
    path: Path, shm: Path, fds: tuple[int, int, int], environment: Mapping[str, str]
) -> BorrowedServer:
    """Ask for a private server of the run whose socket is `path`; `fds` are its listener, owner and lock."""
    connection, _ = stub.reach_shared(host_state())
    words = (str(path), str(shm))
    entries = {os.fsencode(k): os.fsencode(v) for k, v in environment.items()}
    hello = wire.Hello(b"/", tuple(os.fsencode(w) for w in words), entries, 0).pack(wire.SERVER_MAGIC)
    socket.send_fds(connection, [hello[: wire.HEADER.size]], [0, 2, *fds])
    connection.sendall(hello[wire.HEADER.size :])
    return BorrowedServer(connection)


def become_private(message: bytes, files: list[int]) -> argparse.Namespace:
    """In the forked child: take on what the command sent. Returns the arguments of the server to be."""
    hello = wire.parse_hello(message)
    path, shm = (os.fsdecode(word) for word in hello.argv)
    standard_input, standard_error, listener, owner, _lock = files
    os.setsid()
    for given, number in ((standard_input, 0), (standard_error, 2)):
        os.dup2(given, number)
        os.close(given)
    osproc.replace_environment(hello.environment)
    osproc.become_subreaper()
    return argparse.Namespace(
        listen_fd=listener, path=path, lock=None, owner_fd=owner, shm=shm, first_fd=None
    )
