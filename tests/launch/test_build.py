"""The package builds its native parts where it can, and works without them."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from sandbox import PROGRAMS, Sandbox

SOURCE = Path(__file__).parents[2]
NATIVE = (
    "emulator/engine/_core.so",
    "emulator/engine/_rows.so",
    "emulator/engine/_undo.so",
    "launch/native/board.so",
    "launch/native/image.so",
    "launch/native/superpod-rank",
    "serving/model/native/_fused.so",
)
COMPILED = ("engine core", "model pieces", "rank stub", "accelerated start")
pytestmark = [pytest.mark.timeout(200)]


def build(tmp_path: Path, **env: str) -> tuple[Path, Path]:
    """Build a wheel of a clean copy of the source and install it into a directory; return both."""
    copy = tmp_path / "source"
    ignore = shutil.ignore_patterns("*.so", "__pycache__", "superpod-rank")
    for name in ("emulator", "memsem", "collectives", "serving", "launch"):
        shutil.copytree(SOURCE / name, copy / name, ignore=ignore)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        if (SOURCE / name).exists():
            shutil.copy(SOURCE / name, copy / name)
    (copy / "README.md").touch()
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    environment = {**os.environ, **env}
    wheel = [*pip, "wheel", str(copy), "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    subprocess.run(wheel, check=True, env=environment, timeout=150)
    (path,) = tmp_path.glob("superpod-*.whl")
    target = tmp_path / "target"
    subprocess.run(
        [*pip, "install", str(path), "--no-deps", "--target", str(target)], check=True, timeout=100
    )
    return path, target


def run(sandbox: Sandbox, target: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "launch.cli", *arguments]
    return sandbox.run(command, env={"PYTHONPATH": str(target), "SUPERPOD_PYTHON": sys.executable})


def levels(sandbox: Sandbox, target: Path) -> dict[str, str]:
    report = json.loads(run(sandbox, target, "doctor", "--json").stdout)
    return {f["name"]: f["level"] for f in report["findings"]}


@pytest.mark.sweep  # the set-up of the suite itself is such a build
@pytest.mark.multirank
def test_with_a_compiler(sandbox: Sandbox, tmp_path: Path) -> None:
    wheel, target = build(tmp_path)
    names = zipfile.ZipFile(wheel).namelist()
    assert set(NATIVE) <= set(names)
    assert "linux" in wheel.name
    stub = target / "bin/superpod-rank"
    assert stub.read_bytes()[:4] == b"\x7fELF"
    found = levels(sandbox, target)
    assert [found[part] for part in COMPILED] == ["ok"] * 4
    result = run(sandbox, target, "run", "-n", "2", str(PROGRAMS / "finish.py"), "code")
    assert result.returncode == 3, result.stderr
    result = sandbox.run(
        sandbox.mpirun(2, str(stub), str(PROGRAMS / "finish.py"), "code"),
        env={"PYTHONPATH": str(target), "SUPERPOD_PYTHON": sys.executable},
    )
    assert result.returncode == 3, result.stderr


@pytest.mark.multirank
def test_without_a_compiler(sandbox: Sandbox, tmp_path: Path) -> None:
    wheel, target = build(tmp_path, SUPERPOD_NO_COMPILER="1")
    assert not set(NATIVE) & set(zipfile.ZipFile(wheel).namelist())
    assert (target / "bin/superpod-rank").read_text().startswith("#!")
    found = levels(sandbox, target)
    assert [found[part] for part in COMPILED] == ["note"] * 4
    out = tmp_path / "out.json"
    result = run(sandbox, target, "run", "-n", "4", "--json", str(out), str(PROGRAMS / "finish.py"), "none")
    assert result.returncode == 0, result.stderr
    facts = json.loads(out.read_text())
    assert (facts["ranks_up"], facts["accelerated"]) == (4, False)
    sandbox.assert_clean()


def test_a_compiler_that_fails_is_no_failure(tmp_path: Path) -> None:
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    wheel, _ = build(tmp_path, CC=str(broken))
    assert not set(NATIVE) & set(zipfile.ZipFile(wheel).namelist())
