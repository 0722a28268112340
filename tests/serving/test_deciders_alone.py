"""What schedules, balances and caches is decided without MPI, the machine, its clock, torch or the host's."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DECIDERS = ("scheduler", "paged", "balance", "dispatch", "request", "placement", "metrics", "aborts")
"""Beside all of `serving.kv` but its table of prices."""
FORBIDDEN = {"mpi4py", "torch", "time", "random", "threading", "asyncio", "socket"}
MACHINE = {"emulator": {"errors"}, "memsem": set(), "collectives": set(), "launch": set()}
"""Top-level package -> what of it may be imported."""


def modules() -> list[str]:
    cache = [f"serving.kv.{file.stem}" for file in (ROOT / "serving" / "kv").glob("[a-z]*.py")]
    return [f"serving.{name}" for name in DECIDERS] + sorted(set(cache) - {"serving.kv.tiers"})


def foreign(source: str) -> list[str]:
    """Imports of a decider's source that it has no use for, wherever they stand."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return [name for name in names if _is_foreign(*name.split("."))]


def _is_foreign(package: str, part: str = "", *rest: str) -> bool:
    return package in FORBIDDEN or part not in MACHINE.get(package, {part})


@pytest.mark.parametrize("module", modules())
def test_a_decider_names_nothing_of_the_machine(module: str) -> None:
    file = ROOT / (module.replace(".", "/") + ".py")
    assert not foreign(file.read_text())


def test_nothing_of_it_is_loaded_behind_them() -> None:
    """Whatever they import imports nothing of it either. Mutation: `from serving.forward import Forward` in
    `serving/request.py`."""
    script = (
        "import json, sys, importlib\n"
        f"for name in {modules()!r}: importlib.import_module(name)\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = json.loads(ran.stdout)
    machine = {
        "emulator.device", "emulator.context", "emulator.clock", "emulator.engine", "emulator.transport",
        "emulator.wall", "memsem", "collectives", "launch", "mpi4py", "torch",
    }  # fmt: skip
    assert not machine & set(loaded)
    assert "serving.kv.cache" in loaded


def test_the_check_itself_catches_one() -> None:
    assert foreign("def f():\n    import time\n") == ["time"]
    assert foreign("from emulator.errors import UsageError\nfrom emulator import Device\n") == [
        "emulator.Device"
    ]
    assert foreign("from mpi4py import MPI\nimport numpy as np\n") == ["mpi4py.MPI"]
