"""Turn a freshly forked process into the program a stub was asked to run, as `python program.py args` would.

Files, environment, directory, umask, limits, CPU affinity, signals, `sys.argv`, `sys.path`, `__main__` and
the way it ends (exit status, traceback, atexit handlers, non-daemon threads, flushed output) are those of a
plain interpreter.
"""

import atexit
import contextlib
import importlib.machinery
import io
import os
import resource
import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, TextIO

from emulator.errors import UsageError
from emulator.usage import USAGE_STATUS, has_own_hook, usage_line
from launch import osproc
from launch.jobtable import JobTable
from launch.mpihook import PreloadedMpi
from launch.wire import Hello

OWN_PACKAGES = ("emulator", "memsem", "collectives", "serving")
"""What the fork server imports beside torch, numpy and mpi4py."""

_INSTALLED = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_INHERITED_LIMITS = (
    resource.RLIMIT_AS,
    resource.RLIMIT_CORE,
    resource.RLIMIT_CPU,
    resource.RLIMIT_FSIZE,
    resource.RLIMIT_NOFILE,
    resource.RLIMIT_STACK,
)


def inherit_from(stub: int, hello: Hello, files: list[int], own_stdin: bool) -> None:
    """Take on the stub's files (not 0 if `own_stdin`), directory, umask, affinity, priority and limits."""
    for target, f in enumerate(files):
        if target or not own_stdin:
            os.dup2(f, target)
        os.close(f)
    os.umask(hello.umask)
    os.chdir(hello.cwd)
    with contextlib.suppress(OSError):  # the stub may be gone: then we are about to be killed
        os.sched_setaffinity(0, os.sched_getaffinity(stub))
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, stub))
        for which in _INHERITED_LIMITS:
            limit = resource.prlimit(stub, which)
            if limit != resource.getrlimit(which):
                resource.setrlimit(which, limit)


def reset_signals() -> None:
    """Put every signal where a fresh interpreter has it."""
    signal.set_wakeup_fd(-1)
    for s in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):
            if signal.getsignal(s) not in (signal.SIG_DFL, None):
                signal.signal(s, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def open_standard_files() -> None:
    """Make `sys.stdin`, `stdout`, `stderr` anew: buffering depends on what they now are."""
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))

    def stream(fd: int, mode: str, old: TextIO) -> io.TextIOWrapper:
        binary = open(fd, mode + "b", buffering=0 if unbuffered and fd else -1, closefd=False)  # noqa: SIM115
        raw: Any = getattr(binary, "raw", binary)
        raw.name = old.name
        lines = not unbuffered and (fd == 2 or os.isatty(fd))
        # encoding and errors follow the locale, which is the server's too
        return io.TextIOWrapper(
            binary, old.encoding, old.errors, line_buffering=lines, write_through=unbuffered
        )

    sys.stdin = sys.__stdin__ = stream(0, "r", sys.stdin)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = stream(1, "w", sys.stdout)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = stream(2, "w", sys.stderr)  # type: ignore[misc]


def _program(argv: list[str]) -> Callable[[], object]:
    """Set `sys.argv` and `sys.path` for `program args` or `-m module args`; return what runs it."""
    if argv[0] == "-m":
        if len(argv) < 2:
            raise SystemExit("superpod-rank: -m needs a module")
        sys.argv = argv[1:]
        _add_to_path(os.getcwd())
        return lambda: runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    sys.argv = argv
    if os.path.isdir(argv[0]) or argv[0].endswith((".zip", ".pyz")):
        return lambda: runpy.run_path(argv[0], run_name="__main__")
    _add_to_path(os.path.dirname(os.path.realpath(argv[0])))
    return lambda: _run_script(argv[0])


def _add_to_path(directory: str) -> None:
    """Put the program's directory first on the path; forget those packages of ours that it shadows."""
    if os.environ.get("PYTHONSAFEPATH"):
        return
    sys.path.insert(0, directory)
    for name in OWN_PACKAGES:
        shadowed = any(os.path.exists(os.path.join(directory, name + end)) for end in ("", ".py"))
        if shadowed and not os.path.samefile(directory, _INSTALLED):
            for module in [m for m in sys.modules if m == name or m.startswith(name + ".")]:
                del sys.modules[module]


def _run_script(path: str) -> None:
    """Run a source file in the module `__main__`, as the interpreter does."""
    try:
        with open(path, "rb") as f:
            source = f.read()
    except OSError as e:
        print(
            f"{sys.executable}: can't open file {os.path.abspath(path)!r}: [Errno {e.errno}] {e.strerror}",
            file=sys.stderr,
        )
        raise SystemExit(2) from None
    main = type(sys)("__main__")
    main.__dict__.update(
        __file__=path,
        __builtins__=__builtins__,
        __cached__=None,
        __annotations__={},
        __loader__=importlib.machinery.SourceFileLoader("__main__", path),
    )
    sys.modules["__main__"] = main
    exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)


def _own_frames_dropped(tb: TracebackType | None) -> TracebackType | None:
    here = {__file__, runpy.__file__, "<frozen runpy>"}
    while tb and tb.tb_frame.f_code.co_filename in here:
        tb = tb.tb_next
    return tb


def _report(e: BaseException) -> None:
    e.__traceback__ = _own_frames_dropped(e.__traceback__)
    sys.last_type, sys.last_value, sys.last_traceback = type(e), e, e.__traceback__
    try:
        sys.excepthook(type(e), e, e.__traceback__)
    except BaseException:
        traceback.print_exc()


def _exit_status(e: SystemExit) -> int:
    if e.code is None:
        return 0
    if isinstance(e.code, int):
        return e.code & 0xFF
    print(e.code, file=sys.stderr)
    return 1


def run_program(argv: list[str], say: Callable[[str], None]) -> tuple[int, bool]:
    """Run the program to its last line; return its exit status and whether an exception ended it.

    A UsageError nobody caught is the caller's mistake: one line through `say` instead of a traceback.
    """
    try:
        _program(argv)()
        return 0, False
    except SystemExit as e:
        return _exit_status(e), False
    except KeyboardInterrupt as e:
        _report(e)
        return -signal.SIGINT, True
    except UsageError as e:
        if has_own_hook():
            _report(e)
        else:
            say(usage_line(e))
        return USAGE_STATUS, True
    except BaseException as e:
        _report(e)
        return 1, True


def _shut_down(mpi: PreloadedMpi, failed: bool) -> None:
    """Do what the interpreter does on its way out; MPI ends last, and not at all after an uncaught exception.

    (MPI_Finalize waits for every rank; ranks that wait for the failed one would never come, and mpirun
    would not learn that the job has failed. So does the end of the run in `emulator`.)
    """
    try:
        context = sys.modules.get("emulator.context")
        if failed and context is not None:
            context.abandon()
        threading._shutdown()  # type: ignore[attr-defined]  # joins non-daemon threads
        atexit._run_exitfuncs()
        sys.modules.pop("__main__", None)
        if not failed:
            mpi.finalize()
    except BaseException as e:
        _report(e)


def _flush() -> int:
    status = 0
    for f in (sys.stdout, sys.stderr):
        try:
            if f is not None and not f.closed:
                f.flush()
        except BaseException as e:
            with contextlib.suppress(BaseException):
                sys.stderr.write(f"Exception ignored in: {f!r}\n{type(e).__name__}: {e}\n")
            status = 120
    return status


def _watch_if_wanted(table: JobTable, local_rank: int) -> None:
    """Let a run that keeps going learn of deaths, and the template of a start that cannot end."""

    def start(device: Any) -> Callable[[], None]:
        from launch.watch import DeathWatch

        return DeathWatch(device, table).stop

    context = sys.modules.get("emulator.context")
    if context is not None:
        context.watchers.append(start)
        context.starting.append(lambda by: table.starting(local_rank, by))


_TORCHRUN = {
    "RANK": "OMPI_COMM_WORLD_RANK",
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
    "LOCAL_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
}
"""What scripts written for torchrun read, and where it stands under mpirun."""


def _name_as_torchrun() -> None:
    for name, source in _TORCHRUN.items():
        if source in os.environ:
            os.environ.setdefault(name, os.environ[source])


def become_program(hello: Hello, mpi: PreloadedMpi, on_entered: Callable[[], None]) -> None:
    """Run the program and end the process. Never returns."""
    status = 1
    try:
        _name_as_torchrun()
        open_standard_files()
        sys.orig_argv = [sys.executable, *(os.fsdecode(a) for a in hello.argv)]
        mpi.install()
        _watch_if_wanted(mpi.table, mpi.local_rank)
        osproc.set_timer_slack(osproc.RUNNING_SLACK_NS)
        on_entered()
        status, failed = run_program([os.fsdecode(a) for a in hello.argv], mpi.table.say_once)
        _shut_down(mpi, failed)
        status = _flush() or status if status == 0 else (_flush(), status)[1]
        if status < 0:
            signal.signal(-status, signal.SIG_DFL)
            os.kill(os.getpid(), -status)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status & 0xFF)
