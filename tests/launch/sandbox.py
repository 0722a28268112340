"""A place to run launches in, and the proof that nothing of them is left: processes, sockets, shared
memory, files.

Every process of a sandbox carries a mark in the environment it was exec'd with (forked ranks keep it), and
everything a launch puts on disk lies under the sandbox's TMPDIR or is named in /dev/shm after something
there.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
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


class Sandbox:
    """Use as a context manager; on leaving it kills what is left (the test has failed by then)."""

    def __init__(self) -> None:
        self.tmp = Path(tempfile.mkdtemp(prefix="sp-test-", dir="/tmp"))
        self.mark = (
            f"PYTHON_TEST_MARK={uuid.uuid4().hex}"  # PYTHON…: so that the shared fork server is ours alone
        )
        self.pids_dir = self.tmp / "pids"
        self.pids_dir.mkdir()
        self.names: set[str] = set()
        key, value = self.mark.split("=")
        path = f"{BIN}:{os.environ.get('PATH', '')}"
        self.environment = {
            **os.environ,
            key: value,
            "TMPDIR": str(self.tmp),
            "PATH": path,
            "SUPERPOD_IDLE_S": "1",
        }

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.tmp, ignore_errors=True)

    def popen(self, command: list[str], **options: Any) -> subprocess.Popen[str]:
        env = {**self.environment, **options.pop("env", {})}
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, env=env, text=True, **{**pipes, **options})

    def run(self, command: list[str], timeout: float = 90, input: str | None = None, **options: Any) -> Any:
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
        files = [self.pids_dir / str(r) for r in range(num_ranks)]
        wait_for(lambda: all(f.exists() for f in files))
        self.names |= {p.name for p in self.tmp.glob("superpod-*/run-*")}
        self.names |= {p.stem for p in self.tmp.glob("superpod-*/*.sock")}
        return [int(f.read_text()) for f in files]

    def leftovers(self) -> list[str]:
        files = [str(p) for p in self.tmp.iterdir() if p != self.pids_dir]
        shm = [p.name for p in Path("/dev/shm").iterdir() if any(n in p.name for n in self.names)]
        return [f"process {p}" for p in self.processes()] + files + shm

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
