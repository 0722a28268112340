"""A place to run launches in, and the proof that nothing of them is left: processes, sockets, shared
memory, files.

Every process of a sandbox carries a mark in the environment it was exec'd with (forked ranks keep it), and
everything a launch puts on disk lies under the sandbox's TMPDIR or is named in /dev/shm after something
there. A sandbox has fork servers of its own, or (`Grounds`) those that other tests have used before; those
may stay, and must be gone when the grounds are left.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

PROGRAMS = Path(__file__).parent / "programs"
BIN = Path(sys.executable).parent
OPTIONS = ["--oversubscribe", "--mca", "pml", "ob1", "--mca", "btl", "self,sm", "--mca", "osc", "^ucx"]
if os.geteuid() == 0:
    OPTIONS.insert(0, "--allow-run-as-root")


def wait_for(what: Callable[[], Any], timeout_s: float = 60.0) -> Any:
    """Poll until `what()` is true and return it; fail after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not (found := what()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        time.sleep(0.02)
    return found


def written(files: Iterable[Path]) -> list[str]:
    """Wait until each of these one-line files is there and whole, and return their texts: a file is there
    before its first byte."""
    files = list(files)

    def texts() -> list[str]:
        return [f.read_text() if f.exists() else "" for f in files]

    wait_for(lambda: all(texts()))
    return texts()


def listed(directory: Path, pattern: str) -> list[Path]:
    """What is there; again where a directory goes while it is read."""
    while True:
        with contextlib.suppress(FileNotFoundError):
            return list(directory.glob(pattern))


class Grounds:
    """A mark and a directory for many sandboxes, whose launches share fork servers that stay up a while."""

    def __init__(self, idle_s: str = "5") -> None:
        self.tmp = Path(tempfile.mkdtemp(prefix="sp-test-", dir="/tmp"))
        self.mark = (
            f"PYTHON_TEST_MARK={uuid.uuid4().hex}"  # PYTHON…: so that the shared fork server is ours alone
        )
        self.idle_s = idle_s

    def standing(self, processes: list[int]) -> set[int]:
        """Of these fork servers' processes, the shared servers themselves."""
        ours = set(processes)
        shared = [p for p in processes if b"--lock" in _command_line(p)]
        return {p for p in shared if parent_of(p) not in ours}


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


class Sandbox:
    """Use as a context manager; on leaving it kills what is left (the test has failed by then).

    Args:
        grounds: where `superpod run` and `mpirun superpod-rank` find a fork server that is up already;
            without, every launch starts its own and leaves nothing at all.
    """

    def __init__(self, grounds: Grounds | None = None) -> None:
        self.grounds, own = grounds, grounds or Grounds("1")
        self.tmp, self.mark = own.tmp, own.mark
        self.pids_dir = self.tmp / f"pids-{uuid.uuid4().hex[:8]}"
        self.pids_dir.mkdir()
        self.names: set[str] = set()
        self.started: set[str] = set()
        key, value = self.mark.split("=")
        path = f"{BIN}:{os.environ.get('PATH', '')}"
        self.environment = {
            **os.environ,
            key: value,
            "TMPDIR": str(self.tmp),
            "PATH": path,
            "SUPERPOD_IDLE_S": own.idle_s,
            "SUPERPOD_WARM": "1" if grounds else "0",
        }

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for pid in self.processes():
            if self.grounds is None or pid in self._left_processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._note_names()
        if self.grounds is None:  # a server that is killed here may have been about to remove these
            for path in Path("/dev/shm").iterdir():
                if any(name in path.name for name in self.names):
                    shutil.rmtree(path, ignore_errors=True)
        shutil.rmtree(self.pids_dir if self.grounds else self.tmp, ignore_errors=True)

    def clear(self) -> None:
        """Remove what a failed test has left, so that later tests are not blamed for it."""
        while left := self._left_processes():  # none may make another file
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        for name in self._left_files():
            shutil.rmtree(name, ignore_errors=True)

    def popen(self, command: list[str], **options: Any) -> subprocess.Popen[str]:
        env = {**self.environment, **options.pop("env", {})}
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(command, env=env, text=True, **{**pipes, **options})
        self.started.add(str(process.pid))
        return process

    def run(self, command: list[str], timeout: float = 150, input: str | None = None, **options: Any) -> Any:
        if input is not None:
            options["stdin"] = subprocess.PIPE
        p = self.popen(command, **options)
        try:
            out, err = p.communicate(input, timeout=timeout)
        except subprocess.TimeoutExpired:
            p.kill()
            raise
        return subprocess.CompletedProcess(command, p.returncode, out, err)

    def superpod(self, num_ranks: int, *program: str, options: tuple[str, ...] = ()) -> list[str]:
        return [str(BIN / "superpod"), "run", "-n", str(num_ranks), *options, *program]

    def mpirun(self, num_ranks: int, *program: str, options: tuple[str, ...] = ()) -> list[str]:
        return [str(BIN / "mpirun"), *OPTIONS, *options, "-n", str(num_ranks), *program]

    def forked(self, num_ranks: int, *program: str, options: tuple[str, ...] = ()) -> list[str]:
        return self.mpirun(num_ranks, str(BIN / "superpod-rank"), *program, options=options)

    # -- what runs and what is left --

    def processes(self, word: str = "") -> list[int]:
        """Return the sandbox's processes whose command line contains `word`."""
        found = []
        for entry in os.scandir("/proc"):
            if not entry.name.isdigit():
                continue
            try:
                marked = self.mark.encode() in Path(entry.path, "environ").read_bytes()
                if marked and word.encode() in Path(entry.path, "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def rank_pids(self, num_ranks: int) -> list[int]:
        """Wait until `num_ranks` ranks of hold.py are in user code; return their process ids."""
        found = written(self.pids_dir / str(r) for r in range(num_ranks))
        self._note_names()
        return [int(text) for text in found]

    def _note_names(self) -> None:
        self.names |= {p.name for p in listed(self.tmp, "superpod-*/run-*")}
        self.names |= {p.stem for p in listed(self.tmp, "superpod-*/*.sock")}

    def _left_processes(self) -> set[int]:
        found = self.processes()
        return set(found) - (
            self.grounds.standing(self.processes("launch.forkserver")) if self.grounds else set()
        )

    def _left_files(self) -> list[str]:
        if self.grounds is None:
            return [str(p) for p in listed(self.tmp, "**/*") if self.pids_dir not in (p, *p.parents)]
        servers = "\0".join(_command_line(p).decode() for p in self.processes("launch.forkserver"))
        runtime = [p for p in listed(self.tmp, "superpod-*/*") if p.stem not in servers]
        others = [p for p in self.tmp.iterdir() if not p.name.startswith(("superpod-", "pids-"))]
        return [str(p) for p in runtime + others]

    def _is_ours(self, name: str) -> bool:
        """Whether a directory in /dev/shm is named after something of this sandbox: a run's or a server's
        file, or the command or mpirun it started."""
        owner = re.search(r"-run-(\d+)-|-(\d+)@\d+$", name)
        return any(n in name for n in self.names) or bool(owner and self.started & {*owner.groups()})

    def leftovers(self) -> list[str]:
        """What is there and should not be; a standing server may be, with its socket and lock."""
        shm = [p.name for p in Path("/dev/shm").iterdir() if self._is_ours(p.name)]
        return [f"process {p}" for p in self._left_processes()] + self._left_files() + shm

    def assert_clean(self, timeout_s: float = 15.0) -> None:
        """Fail unless everything is gone within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while left := self.leftovers():
            if time.monotonic() > deadline:
                details = [
                    Path(f"/proc/{x.split()[1]}/cmdline").read_bytes()[:200] for x in left if "process" in x
                ]
                raise AssertionError(f"left behind: {left} {details}")
            time.sleep(0.05)
