"""The Linux calls a launcher needs and Python lacks: who dies with whom, timer slack, huge pages, process
trees.

Everything here acts on the calling process (or reads /proc) and knows nothing of MPI.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)

STARTING_SLACK_NS = 20_000_000
"""Timer slack while starting and ending: Open MPI polls with usleep(100) there, which 20 ms of slack turns
into naps."""

RUNNING_SLACK_NS = 50_000
"""The kernel's default, restored while user code runs."""

_PR_SET_PDEATHSIG, _PR_SET_TIMERSLACK, _PR_GET_TIMERSLACK, _PR_SET_CHILD_SUBREAPER = 1, 29, 30, 36
_MADV_COLLAPSE = 25
_HUGE_PAGE = 2 << 20


def die_with_parent(parent: int) -> None:
    """Be killed when `parent`, which must be the parent process, ends; end at once if it already has."""
    LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def become_subreaper() -> None:
    """Adopt orphaned descendants, so that none outlives this process unnoticed."""
    LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def set_timer_slack(slack_ns: int) -> None:
    """Set the calling thread's timer slack; children inherit it."""
    LIBC.prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(slack_ns), 0, 0, 0)


def timer_slack_ns() -> int:
    return int(LIBC.prctl(_PR_GET_TIMERSLACK, 0, 0, 0, 0))


def collapse_heap() -> None:
    """Move anonymous memory into huge pages where the kernel will (Linux 6.1; elsewhere nothing happens).

    A fork then copies, and an exit drops, one page-table entry per 2 MB instead of 512
    (measured: fork + exit + wait 7.0 -> 3.3 ms).
    """
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split()
        if fields[1] != "rw-p" or fields[4] != "0" or (len(fields) > 5 and fields[5] != "[heap]"):
            continue
        start, end = (int(x, 16) for x in fields[0].split("-"))
        first = (start + _HUGE_PAGE - 1) & -_HUGE_PAGE
        for at in range(first, end & -_HUGE_PAGE, _HUGE_PAGE):
            LIBC.madvise(ctypes.c_void_p(at), ctypes.c_size_t(_HUGE_PAGE), _MADV_COLLAPSE)


def replace_environment(entries: dict[bytes, bytes]) -> None:
    """Make `entries` the whole environment of this process, for Python and for C."""
    LIBC.clearenv()
    os.environ._data.clear()  # type: ignore[attr-defined]  # clear() would call unsetenv once per entry
    for key, value in entries.items():
        os.environb[key] = value


def children(pids: Iterable[int]) -> list[int]:
    """Return the child processes of `pids` (zombies too)."""
    found: list[int] = []
    for pid in pids:
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                text = Path(f"/proc/{pid}/task/{task}/children").read_text()
                found.extend(int(x) for x in text.split())
    return found


def descendants(pid: int) -> Iterator[int]:
    """Yield every descendant of `pid`, parents first."""
    level = children([pid])
    while level:
        yield from level
        level = children(level)


def session_of(pid: int) -> int:
    """Return the session id of a process, 0 when it is gone."""
    return int(_status(pid, 3) or 0)


def parent_of(pid: int) -> int:
    """Return the parent of a process, 0 when it is gone."""
    return int(_status(pid, 1) or 0)


def is_alive(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    return _status(pid, 0) not in ("", "Z", "X")


def _status(pid: int, field: int) -> str:
    """A field of /proc/PID/stat behind the name, "" when the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[field]
    except (OSError, IndexError):
        return ""


def start_time_s(pid: int | None = None) -> float:
    """Return when a process (default: this one) started, on the CLOCK_BOOTTIME scale, to 10 ms."""
    fields = Path(f"/proc/{pid or 'self'}/stat").read_text().rpartition(")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def first_to_end(*processes: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    """Sleep until one of them has ended."""
    with contextlib.ExitStack() as held:
        ends = {}
        for process in processes:
            fd = os.pidfd_open(process.pid)
            held.callback(os.close, fd)
            ends[fd] = process
        ready, _, _ = select.select([*ends], [], [])
        return ends[ready[0]]
