"""What starting N ranks takes of this machine, checked before anything is started.

The figures are measured with the fork server on 2 cores and 24 GB (64-bit Linux, torch 2.13 for the CPU): a
forked torch rank with MPI up owns 5 to 10 MB, the server 250 MB; each rank has a stub, a handful of threads
and of files.
"""

import os
import resource
import shutil
from dataclasses import dataclass
from pathlib import Path

from launch import paths

SERVER_BYTES = 300 << 20
RANK_BYTES = 9 << 20
"""Private memory of a rank in user code, its stub and its share of mpirun; what the program allocates comes
on top."""

RANK_SHM_BYTES = 1 << 20
"""Touched part of a rank's sm segment and session; windows come on top."""

ADDRESS_SPACE_BYTES = 2_000_000 << 10
"""What a process with torch maps; with half of it the fork server dies inside a library."""

FILES_PER_RANK = 6
"""Descriptors mpirun holds for one local rank (standard files, their other ends, its PMIx connection)."""

PROCESSES_PER_RANK = 5
"""A stub, and a rank with its threads (PMIx, progress)."""


@dataclass(frozen=True)
class Check:
    """One limit: what is there, what is needed, and what to do when that is too little."""

    name: str
    have: float
    need: float
    unit: str
    remedy: str

    @property
    def ok(self) -> bool:
        return self.have >= self.need

    @property
    def sentence(self) -> str:
        return f"{self.name}: {self.need:,.1f} {self.unit} needed, {self.have:,.1f} there: {self.remedy}"


def available_memory() -> int:
    """Return the bytes that can be used without swapping: /proc/meminfo, and the cgroup's limit where it is
    lower."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) << 10
    try:
        group = Path("/sys/fs/cgroup")
        limit = (group / "memory.max").read_text().strip()
        if limit != "max":
            available = min(available, int(limit) - int((group / "memory.current").read_text()))
    except (OSError, ValueError):
        pass
    return available


def total_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _soft(which: int) -> float:
    """Return a limit that may be raised by ourselves: the hard one."""
    hard = resource.getrlimit(which)[1]
    return float("inf") if hard == resource.RLIM_INFINITY else float(hard)


def address_space() -> float:
    """Return the bytes one process may map."""
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    return float("inf") if soft == resource.RLIM_INFINITY else float(soft)


def free_processes() -> float:
    """Return how many more processes and threads this user may start."""
    kernel = int(Path("/proc/sys/kernel/pid_max").read_text())
    running = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
    return min(_soft(resource.RLIMIT_NPROC), float(kernel)) - running


def checks(num_ranks: int, rank_bytes: int = 0, shm_bytes: int = 0) -> list[Check]:
    """Return the limits that starting `num_ranks` ranks on this host meets.

    Args:
        num_ranks: ranks to start here.
        rank_bytes: private memory the program will want per rank, on top of the start.
        shm_bytes: shared memory (windows, staging) the program will want in all.
    """
    memory = SERVER_BYTES + num_ranks * (RANK_BYTES + rank_bytes) + shm_bytes
    shm = shm_bytes + num_ranks * RANK_SHM_BYTES
    gb, mb = 1e9, 1e6
    return [
        Check("memory", available_memory() / gb, memory / gb, "GB", "start fewer ranks or free memory"),
        Check(
            "shared memory (/dev/shm)",
            shutil.disk_usage(paths.SHM).free / mb,
            shm / mb,
            "MB",
            "mount -o remount,size=… /dev/shm, or docker run --shm-size",
        ),
        Check(
            "open files",
            _soft(resource.RLIMIT_NOFILE),
            FILES_PER_RANK * num_ranks + 64,
            "files",
            "raise ulimit -Hn",
        ),
        Check(
            "processes", free_processes(), PROCESSES_PER_RANK * num_ranks + 64, "processes", "raise ulimit -u"
        ),
        Check(
            "address space",
            address_space() / gb,
            (ADDRESS_SPACE_BYTES + shm_bytes) / gb,
            "GB",
            "raise ulimit -v",
        ),
    ]


def raise_file_limit() -> None:
    """Raise this process's soft limit of open files to the hard one; mpirun needs several per rank."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
