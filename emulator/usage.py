"""How a mistake of the caller that nobody caught ends a rank: one line of what and where, and status 2."""

from __future__ import annotations

import os
import runpy
import sys
import sysconfig
import traceback
from types import TracebackType

from emulator.errors import UsageError

USAGE_STATUS = 2
_INSTALLED = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_PACKAGES = ("emulator", "memsem", "collectives", "serving", "launch")
_LIBRARIES = os.path.realpath(sysconfig.get_path("purelib")) + os.sep
_TORCH = "torch.distributed.distributed_c10d"


def usage_line(error: UsageError) -> str:
    """Say what was wrong and where in the caller's own program, in one line."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not _is_ours(f.filename)]
    frames = [f for f in frames if not os.path.realpath(f.filename).startswith(_LIBRARIES)] or frames
    where = f"{frames[-1].filename}, line {frames[-1].lineno}: " if frames else ""
    return f"superpod: error: {where}{' '.join(str(error).split())}"


def _is_ours(filename: str) -> bool:
    if filename in (runpy.__file__, "<frozen runpy>"):
        return True
    return os.path.realpath(filename).startswith(tuple(os.path.join(_INSTALLED, n, "") for n in _PACKAGES))


def has_own_hook() -> bool:
    """Whether the program shows uncaught exceptions itself.

    Torch's hook, which puts the rank before each line once a process group exists, is not the program's.
    """
    hook = sys.excepthook
    return hook is not sys.__excepthook__ and getattr(hook, "__module__", "") != _TORCH


def exit_on_usage_error() -> None:
    """Let an uncaught UsageError end this process so; where the program has an `excepthook` of its own,
    nothing happens.

    The process ends at once, without `MPI_Finalize`, which would wait for ranks that wait for this one:
    mpirun then ends the others.
    """
    if not has_own_hook():
        sys.excepthook = _hook


def _hook(kind: type[BaseException], error: BaseException, tb: TracebackType | None) -> None:
    if not isinstance(error, UsageError):
        sys.__excepthook__(kind, error, tb)
        return
    sys.stdout.flush()
    out = sys.__stderr__ or sys.stderr  # torch calls this hook with a buffer for sys.stderr
    out.write(usage_line(error) + "\n")
    out.flush()
    os._exit(USAGE_STATUS)
