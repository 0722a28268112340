"""Run a rank program on n real processes: what multi-rank tests share.

    result = run_ranks(4, '''
        import emulator
        device = emulator.init()
        report(now_ps=device.now_ps)
    ''', transport="rma")
    assert result.reports[0]["now_ps"] == 0 and result.result["ranks"] == 4

The program is text (or a path); `report(**values)` in it hands JSON values back, one dict a rank, the later
call winning. `result.result` is the run's own result, with `trace_sha256`. Launchers: "fork" (what `superpod
run` does, with any configuration), "cli" (`superpod run` itself), "rank" (`mpirun superpod-rank`), "plain"
(`mpirun python`); "auto" takes the shared fork server where it works.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import stuck

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
MPIRUN = ["mpirun", "--oversubscribe"]
MCA = ["--mca", "osc", "^ucx", "--mca", "pml", "ob1", "--mca", "btl", "self,sm"]
WAITED = 2 / 3
"""Of a run's time limit: for how long nobody may enter the engine before it says who waits for whom."""
GOING_S = 1.0
"""Seconds of CPU that a run uses up in a third of its time limit if it is not stuck."""
FORK = """
import json, os, sys
from launch.run import run_job
going = json.loads(os.environ.get("SUPERPOD_CONFIG", "{}")).get("keep_going", False)
sys.exit(run_job(int(sys.argv[1]), sys.argv[2:], keep_going=going).exit_code)
"""
PRELUDE = """
import faulthandler as _faulthandler, json as _json, os as _os, signal as _signal
_stack = open(_os.path.join(_os.environ["RANKS_OUT"], _os.environ["OMPI_COMM_WORLD_RANK"] + ".stack"), "w")
_faulthandler.register(_signal.SIGUSR2, _stack)
def report(**values):
    rank = _os.environ["OMPI_COMM_WORLD_RANK"]
    with open(_os.path.join(_os.environ["RANKS_OUT"], rank + ".json"), "w") as file:
        _json.dump(values, file)
"""


@dataclass
class Ran:
    """How a run ended: exit code, output, what the ranks reported (by rank), the run's result (None
    without)."""

    code: int
    stdout: str
    stderr: str
    reports: dict[int, dict[str, Any]] = field(default_factory=dict)
    result: dict[str, Any] | None = None

    @property
    def sha(self) -> str:
        assert self.result is not None, self.stderr
        return str(self.result["trace_sha256"])


def run_ranks(
    num_ranks: int,
    program: str | Path,
    *,
    launcher: str = "auto",
    timeout_s: float = 90,
    check: bool = True,
    args: tuple[str, ...] = (),
    options: tuple[str, ...] = (),
    env: dict[str, str] | None = None,
    **config: Any,
) -> Ran:
    """Run `program` on `num_ranks` ranks; with `check`, failure is an error.

    `config` goes into SUPERPOD_CONFIG ("cli" makes its own: there use `options`, words for `superpod run`).
    """
    with tempfile.TemporaryDirectory(prefix="superpod-test-") as folder:
        path = _program_file(program, Path(folder))
        result = Path(folder) / "result.json"
        given = {"report": str(result), "wall_deadline_s": WAITED * timeout_s, **config}
        environ = {**os.environ, **(env or {}), "RANKS_OUT": folder, "SUPERPOD_CONFIG": json.dumps(given)}
        environ["PATH"] = f"{BIN}:{environ['PATH']}"
        environ["PYTHONPATH"] = f"{ROOT}:{environ.get('PYTHONPATH', '')}"
        how = _launcher(launcher, bool(config.get("keep_going")))
        command = _command(how, num_ranks, path, args, options)
        ran = _run(command, environ, timeout_s)
        reports = {int(p.stem): json.loads(p.read_text()) for p in Path(folder).glob("[0-9]*.json")}
        ran.reports = dict(sorted(reports.items()))
        if result.exists():
            ran.result = json.loads(result.read_text())
    if check and ran.code:
        raise AssertionError(f"{' '.join(command)} ended with {ran.code}\n{ran.stdout}\n{ran.stderr}")
    return ran


def _program_file(program: str | Path, folder: Path) -> Path:
    if isinstance(program, Path):
        return program
    path = folder / "program.py"
    path.write_text(PRELUDE + textwrap.dedent(program))
    return path


def _launcher(name: str, keep_going: bool = False) -> str:
    """For "auto": the shared fork server imports torch once for many tests; it serves no keep-going run."""
    if name != "auto":
        return name
    if not fork_server_works():
        return "plain"
    return "fork" if keep_going else "rank"


def _command(
    launcher: str, num_ranks: int, path: Path, args: tuple[str, ...], options: tuple[str, ...] = ()
) -> list[str]:
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    mpirun = [*MPIRUN, *root, *MCA, "-n", str(num_ranks)]
    program = [str(path), *args]
    return {
        "plain": [*mpirun, sys.executable, *program],
        "rank": [*mpirun, "superpod-rank", *program],
        "cli": ["superpod", "run", "-n", str(num_ranks), *options, *program],
        "fork": [sys.executable, "-c", FORK, str(num_ranks), *program],
    }[launcher]


def _run(command: list[str], environ: dict[str, str], timeout_s: float) -> Ran:
    process = subprocess.Popen(
        command,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    folder = Path(environ.get("RANKS_OUT", "/nowhere"))
    try:
        out, err = _outlast(process, folder, timeout_s)
    except subprocess.TimeoutExpired:
        processes = stuck.processes_of(process.pid, folder)
        state = stuck.tell(processes, folder)
        os.killpg(process.pid, signal.SIGKILL)
        stuck.end(processes)
        out, err = process.communicate()
        text = f"{' '.join(command)} did not end in {timeout_s} s\n{out}\n{err}\n{state}"
        raise AssertionError(text) from None
    return Ran(process.returncode, out, err)


def _outlast(process: subprocess.Popen[str], folder: Path, timeout_s: float) -> tuple[str, str]:
    """Wait for the end; past the time limit, at most as long again, while the run computes: a busy host is
    no hang. (7,000 wake-ups one after the other take 5 s on a quiet host and ten times that beside 400
    ranks.) Raises TimeoutExpired."""
    used = -GOING_S
    for part in (1, 1 / 3, 1 / 3, 1 / 3):
        try:
            return process.communicate(timeout=part * timeout_s)
        except subprocess.TimeoutExpired:
            before, used = used, sum(map(stuck.cpu_s, stuck.processes_of(process.pid, folder)))
            if used - before < GOING_S:
                raise
    raise subprocess.TimeoutExpired(process.args, 2 * timeout_s)


@functools.cache
def fork_server_works() -> bool:
    """Whether `superpod run` starts ranks here."""
    with tempfile.TemporaryDirectory(prefix="superpod-test-") as folder:
        path = Path(folder) / "hello.py"
        path.write_text("print('hello')\n")
        environ = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        try:
            ran = _run(_command("fork", 1, path, ()), environ, 60)
        except AssertionError:
            return False
    return ran.code == 0 and "hello" in ran.stdout
