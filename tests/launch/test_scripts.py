"""The scripts people copy run, here with few ranks."""

from pathlib import Path

import pytest
from sandbox import Sandbox

from launch import paths

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(200)]
SCRIPTS = Path(paths.__file__).parent / "scripts"


def run(sandbox: Sandbox, name: str, *arguments: str, **env: str) -> str:
    result = sandbox.run(["bash", str(SCRIPTS / name), *arguments], timeout=150, env=env)
    assert result.returncode == 0, result.stdout + result.stderr
    sandbox.assert_clean()
    return str(result.stdout)


@pytest.mark.sweep
def test_compare_paths(sandbox: Sandbox) -> None:
    out = run(sandbox, "compare_paths.sh", RANKS="4")
    shared, rma, verdict, *compared = out.splitlines()
    assert shared.startswith("shared: 4 lines")
    assert rma.split()[-1] == shared.split()[-1]
    assert verdict == "both transports print the same"
    assert compared[-1] == "6 measurements, results equal byte for byte, link payloads equal"


def test_fault_run(sandbox: Sandbox) -> None:
    first, second = run(sandbox, "fault_run.sh", RANKS="4", VICTIM="1").splitlines()
    assert first == "mpirun without --continuous: exit code 137, 0 survivors of 4"
    assert second.endswith("3 survivors of 4")


@pytest.mark.parametrize(
    "name",
    ["serve_32.sh", *(pytest.param(n, marks=pytest.mark.sweep) for n in ("serve_384.sh", "slurm.sbatch"))],
)
def test_serve(sandbox: Sandbox, name: str) -> None:
    small = {"RANKS": "2", "REQUESTS": "2", "MAX_OUTPUT": "2", "SCRIPTS": str(SCRIPTS)}
    out = run(sandbox, name, "--no-memory-check", **small)
    assert "Serving benchmark result (virtual time)" in out


def test_a_report_before_the_run_says_how_to_run(sandbox: Sandbox) -> None:
    job = str(sandbox.pids_dir / "job")
    options = ["--requests", "2", "--max-output", "2", "--token-scale", "64", "--no-memory-check"]
    assert sandbox.run(["superpod", "replay", "-n", "2", *options, "--prepare", job]).returncode == 0
    result = sandbox.run(["superpod", "replay-report", job])
    assert (result.returncode, f"superpod-rank -m serving {job}" in result.stderr) == (2, True)
    assert sandbox.run(["superpod", "replay-report", "/nonexistent"]).returncode == 2
