"""The rank stub in Python: what native/stub.c does, for machines without a C compiler.

It must start fast (one runs per rank), so it imports little: the C modules below `socket`, `signal`, `struct`
and `ctypes`, without what Python puts around them (19 -> 9 ms a stub). It may run without the package on its
path (`-I -S`, or as the installed script `superpod-rank`), so it repeats the few constants of wire.py.
"""

from __future__ import annotations

import fcntl
import os
import sys
from _struct import Struct, pack, unpack

TYPE_CHECKING = False  # as mypy knows it; importing typing would double the time to start
if TYPE_CHECKING:
    import signal
    import socket
    from typing import NoReturn
else:
    import _signal as signal
    import _socket as socket

HEADER, NOTE = Struct("<4sIII"), Struct("<Ii")
STARTED, ENDED, FAILED, DIRECTORY, SIGNAL = (ord(c) for c in "PEXDS")
PASSED_ON = ("TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "CONT", "TSTP", "WINCH")
NAMES: tuple[str, ...] = (
    "PYTHON",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "OMP_",
    "MKL_",
    "TORCH_",
    "OPENBLAS_",
    "LANG",
    "LC_",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SUPERPOD_PYTHON",
    "SUPERPOD_IDLE_S",
)
USAGE = "usage: mpirun -n N superpod-rank {program.py | -m module} [arguments]"


def fail(what: str) -> NoReturn:
    os.write(2, f"superpod-rank: {what}\n".encode())
    os._exit(1)


def die_with_parent(parent: int) -> None:
    import _ctypes

    prctl = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]
    _ctypes.call_function(prctl, (1, int(signal.SIGKILL), 0, 0, 0))
    if os.getppid() != parent:
        os._exit(1)


def runtime_directory() -> str:
    base = os.environ.get("TMPDIR") or "/tmp"
    if len(os.fsencode(base)) > 48:
        base = "/tmp"
    path = f"{base}/superpod-{os.getuid()}"
    try:  # noqa: SIM105
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    s = os.lstat(path)
    if s.st_uid != os.getuid() or s.st_mode & 0o170077 != 0o040000:
        fail(f"{path} must be a directory of mode 0700 that belongs to you")
    return path


def choose_server(state: str = "") -> str:
    """Return the stem of the paths of the server for this interpreter, package, environment, and state."""
    import hashlib
    import sysconfig

    here = os.path.realpath(__file__)
    parts = [sys.executable, here]
    for path in (here, sys.executable, sysconfig.get_path("purelib")):
        s = os.stat(path)
        parts += [str(s.st_mtime_ns), str(s.st_ino)]
    parts += sorted(f"{k}={v}" for k, v in os.environ.items() if k.startswith(NAMES))
    parts += [state] if state else []
    return f"{runtime_directory()}/{hashlib.sha256(os.fsencode(chr(0).join(parts))).hexdigest()[:16]}"


def connect(path: str) -> socket.socket | None:
    c = socket.socket(socket.AF_UNIX)
    while True:
        try:
            c.connect(path)
            break
        except BlockingIOError:
            continue
        except (FileNotFoundError, ConnectionRefusedError):
            c.close()
            return None
    peer = c.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    if unpack("3i", peer)[1] != os.getuid():
        fail(f"{path} belongs to another user")
    return c


def lock_server(path: str, how: int) -> int | None:
    """Return the locked lock file, still the one at its path; None where it is taken and we shall not
    wait."""
    while True:
        try:
            create = 0 if how & fcntl.LOCK_NB else os.O_CREAT
            fd = os.open(path, os.O_RDWR | create | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            if how & fcntl.LOCK_NB:
                return None
            runtime_directory()
            continue
        try:
            fcntl.flock(fd, how)
            if os.fstat(fd).st_ino == os.stat(path).st_ino:
                return fd
        except BlockingIOError:
            os.close(fd)
            return None
        except FileNotFoundError:
            pass
        os.close(fd)


def start_server(stem: str) -> None:
    path = stem + ".sock"
    if os.path.lexists(path):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    os.chmod(path, 0o600)
    listener.listen(4096)
    os.set_inheritable(listener.fileno(), True)
    if os.fork():
        listener.close()
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open("/dev/null", os.O_RDWR)
    log = os.environ.get("SUPERPOD_SERVER_LOG")
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) if log else null
    for fd, target in ((null, 0), (out, 1), (out, 2)):
        os.dup2(fd, target)
    os.chdir("/")
    python = os.environ.get("SUPERPOD_PYTHON", sys.executable)
    arguments = ["--listen-fd", str(listener.fileno()), "--path", path, "--lock", stem + ".lock"]
    os.execv(python, [python, "-P", "-m", "launch.forkserver", *arguments])


def reach_server() -> tuple[socket.socket, str]:
    """Return a connection, and the stem of the shared server's paths ("" for a server of `superpod run`)."""
    given = os.environ.get("SUPERPOD_SOCKET")
    if given:
        return connect(given) or fail(f"{given}: no fork server"), ""
    return reach_shared()


def reach_shared(state: str = "") -> tuple[socket.socket, str]:
    """Return a connection to the shared server of this host, started if there is none, and its stem."""
    stem = choose_server(state)
    for _ in range(100):
        c = connect(stem + ".sock")
        if c is None:
            lock = lock_server(stem + ".lock", fcntl.LOCK_EX)
            c = connect(stem + ".sock")
            if c is None:
                start_server(stem)
            if lock is not None:
                os.close(lock)
        if c is not None:
            return c, stem
    fail(f"{stem}.sock: no fork server")


def send_hello(c: socket.socket) -> None:
    umask = os.umask(0)
    os.umask(umask)
    words = [os.fsencode(os.getcwd()), *(os.fsencode(a) for a in sys.argv[1:])]
    words += [k + b"=" + v for k, v in os.environb.items()]
    body = b"".join(w + b"\0" for w in words)
    if len(body) > 1 << 20:
        fail("arguments and environment exceed 1 MB")
    files = (socket.SOL_SOCKET, socket.SCM_RIGHTS, pack("3i", 0, 1, 2))
    c.sendmsg([HEADER.pack(b"SPD1", len(body), len(sys.argv) - 1, umask)], [files])
    c.sendall(body)


def remove_tree(path: str) -> bool:
    """Remove a directory of files; return whether we were the ones who did."""
    try:
        for name in os.listdir(path):
            try:  # noqa: SIM105
                os.unlink(f"{path}/{name}")
            except FileNotFoundError:  # another stub was faster
                pass
        os.rmdir(path)
    except OSError:
        return False
    return True


def server_gone(stem: str, directory: bytes) -> NoReturn:
    """The server was killed: what it can no longer remove, its last stubs do."""
    first = os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0") == "0"
    if directory:
        first = remove_tree(os.fsdecode(directory))
    if first:  # one of hundreds says so
        hint = b"(SUPERPOD_SERVER_LOG=FILE keeps its messages)"
        os.write(2, b"superpod-rank: the fork server ended before this rank did " + hint + b"\n")
    lock = lock_server(stem + ".lock", fcntl.LOCK_EX | fcntl.LOCK_NB) if stem else None
    if lock is not None and connect(stem + ".sock") is None:
        for path in (stem + ".sock", stem + ".lock"):
            if os.path.lexists(path):
                os.unlink(path)
    if stem:
        try:  # noqa: SIM105
            os.rmdir(os.path.dirname(stem))
        except OSError:
            pass
    os._exit(1)


def end_as(status: int) -> NoReturn:
    if status >= 0:
        os._exit(status & 255)
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if -status not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-status, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.kill(os.getpid(), -status)
    os._exit(128 - status)


def wait_for_rank(c: socket.socket, stem: str) -> NoReturn:
    directory = b""

    def take(size: int) -> bytes:
        got = b""
        while len(got) < size:
            more = c.recv(size - len(got))
            if not more:
                server_gone(stem, directory)
            got += more
        return got

    def pass_on(number: int, _frame: object) -> None:
        try:  # noqa: SIM105
            c.send(NOTE.pack(SIGNAL, number), socket.MSG_NOSIGNAL)
        except OSError:
            pass

    for name in PASSED_ON:
        signal.signal(getattr(signal, "SIG" + name), pass_on)
    while True:
        kind, value = NOTE.unpack(take(NOTE.size))
        if kind == ENDED:
            end_as(value)
        if kind == FAILED:
            fail(os.fsdecode(take(value)))
        if kind == DIRECTORY:
            directory = take(value)


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(USAGE, file=sys.stdout if len(sys.argv) > 1 else sys.stderr)
        return 0 if len(sys.argv) > 1 else 2
    die_with_parent(os.getppid())
    c, stem = reach_server()
    send_hello(c)
    os.close(0)
    os.close(1)
    wait_for_rank(c, stem)


if __name__ == "__main__":
    sys.exit(main())
