"""What the processes of a run that does not end are doing, for the error of a test; and their end.

A run's processes are the command's descendants (mpirun, stubs), those of the fork server that listens on the
run's socket, wherever that was forked from (template, ranks), and ranks that have a file of the run open.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from launch.osproc import descendants

STACKS = signal.SIGUSR2
"""A rank of `ranks.PRELUDE` writes where it is to `<rank>.stack` when it gets this signal."""
_WRITING_S = 2.0
_LISTENS = "00010000"  # the flag of /proc/net/unix


def processes_of(command: int, folder: Path) -> list[int]:
    """The command, what it started, the run's fork server and what that started, who holds files in
    `folder`."""
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    sockets = [row for row in rows if len(row) > 7 and f"/run-{command}-" in row[7] and row[3] == _LISTENS]
    wanted = (f"{folder}/", *(f"socket:[{row[6]}]" for row in sockets))
    found = [command, *descendants(command)]
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) != os.getpid() and any(name.startswith(wanted) for name in _open_files(process)):
            found += [int(process.name), *descendants(int(process.name))]
    return list(dict.fromkeys(found))


def tell(processes: list[int], folder: Path) -> str:
    """One line a thread of every process, then the stacks of the ranks that can write them into `folder`."""
    load = Path("/proc/loadavg").read_text().strip()
    lines = [f"load {load}; pid ppid session state name CPU seconds, by thread: state, CPU seconds, wchan"]
    lines += [line for pid in processes for line in _process(pid)]
    for pid in processes:
        if _catches(pid, STACKS) and not _passes_on(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, STACKS)
    time.sleep(_WRITING_S)
    for path in sorted(folder.glob("*.stack")):
        lines += [f"rank {path.stem}:", path.read_text()]
    return "\n".join(lines)


def cpu_s(pid: int) -> float:
    """Seconds of CPU that a process has used, 0 when it is gone."""
    with contextlib.suppress(OSError, IndexError):
        return _cpu_s(_stat(Path(f"/proc/{pid}/stat"))[1])
    return 0.0


def end(processes: list[int]) -> None:
    """Kill them; whoever of them is gone is gone."""
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _open_files(process: Path) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):
        for fd in os.listdir(process / "fd"):
            with contextlib.suppress(OSError):
                found.add(os.readlink(process / "fd" / fd))
    return found


def _process(pid: int) -> list[str]:
    try:
        name, fields = _stat(Path(f"/proc/{pid}/stat"))
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        threads = []
        for task in sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda p: int(p.name)):
            own, facts = _stat(task / "stat")
            threads.append(f"    {own} {facts[0]} {_cpu_s(facts)} {(task / 'wchan').read_text()}")
        head = f"{pid} {fields[1]} {fields[3]} {fields[0]} {name} {_cpu_s(fields)}"
        return [f"{head}: {' '.join(words)[:150]}", *threads]
    except OSError:
        return [f"{pid} is gone"]


def _stat(path: Path) -> tuple[str, list[str]]:
    """The name in a stat file, and the fields after it: state, ppid, group, session, ..."""
    head, _, tail = path.read_text().rpartition(")")
    return head.partition("(")[2], tail.split()


def _cpu_s(fields: list[str]) -> float:
    return round((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), 2)


def _passes_on(pid: int) -> bool:
    """Whether it is mpirun, which hands its signals to the ranks."""
    with contextlib.suppress(OSError):
        return _stat(Path(f"/proc/{pid}/stat"))[0] in ("mpirun", "prterun")
    return True


def _catches(pid: int, number: int) -> bool:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> number - 1 & 1)
    return False
