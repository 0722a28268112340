"""Starts of 64 ranks: they end also under heavy load, each blocked rank sleeps, and PSS is sampled."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from sandbox import PROGRAMS, Sandbox

from launch.jobtable import JobTable
from launch.memory import PssSampler, pss_bytes

N = 64


def busy_processes(number: int) -> list[subprocess.Popen[bytes]]:
    spin = "import os, time\nend = time.monotonic() + 100\nwhile time.monotonic() < end: pass\n"
    return [subprocess.Popen([sys.executable, "-S", "-c", spin]) for _ in range(number)]


@pytest.mark.multirank
@pytest.mark.slow
@pytest.mark.timeout(280)
@pytest.mark.parametrize(
    ("num_ranks", "busy"), [(16, 20), pytest.param(N, 100, marks=pytest.mark.sweep)], ids=["16", "64"]
)
def test_ranks_start_under_load(num_ranks: int, busy: int, alone: Sandbox) -> None:
    sandbox = alone
    out = sandbox.pids_dir / "out.json"
    load = busy_processes(busy)
    try:
        command = sandbox.superpod(num_ranks, str(PROGRAMS / "barrier.py"), options=("--json", str(out)))
        result = sandbox.run(command, timeout=240)
    finally:
        for p in load:
            p.kill()
            p.wait()
    assert result.returncode == 0, result.stderr
    facts = json.loads(out.read_text())
    assert facts["ranks_up"] == num_ranks
    assert facts["startup_wall_s"] < 240
    sandbox.assert_clean()


@pytest.mark.multirank
@pytest.mark.timeout(120)
def test_sixty_four_ranks_are_counted_and_weighed(alone: Sandbox) -> None:
    sandbox = alone
    out = sandbox.pids_dir / "out.json"
    result = sandbox.run(sandbox.superpod(N, str(PROGRAMS / "nap.py"), options=("--json", str(out))))
    facts = json.loads(out.read_text())
    assert (result.returncode, facts["ranks_up"]) == (0, N), result.stderr
    assert 0.2 < facts["pss_gb"] < 2.0  # the server's torch once, and 5 to 10 MB a rank
    sandbox.assert_clean()


def test_a_table_counts_and_remembers_the_last(tmp_path: Path) -> None:
    table = JobTable(3, tmp_path)
    assert (table.status().entered, table.status().last_ready_ns) == (0, 0)
    for rank in (2, 0):
        table.entered(rank)
        table.ready(rank)
    status = table.status()
    assert (status.num_local, status.entered, status.ready) == (3, 2, 2)
    assert status.last_ready_ns >= status.last_entered_ns > 0


def test_when_ranks_may_finalize(tmp_path: Path) -> None:
    table = JobTable(3, tmp_path)
    for rank in range(3):
        table.ready(rank)
    table.ending(0)
    table.ending(1)
    assert not table.all_ending()
    table.ended(2)  # killed: the others need not wait for it, and must not finalise
    assert table.all_ending()
    assert table.any_lost()
    whole = JobTable(2, tmp_path)
    for rank in range(2):
        whole.ready(rank)
        whole.ending(rank)
    assert whole.all_ending()
    assert not whole.any_lost()
    whole.finalized(0)
    whole.ended(0)
    assert not whole.any_lost()


_ORPHANS = """
import os, signal, sys
from pathlib import Path
from launch.jobtable import JobTable

table = JobTable(2, Path(sys.argv[1]))
gate, spoken = os.pipe(), os.pipe()
template = os.fork()
if template == 0:
    for rank in (1, 0):  # once rank 0 has spoken both are there
        if os.fork() == 0:
            if rank == 1:
                os.read(gate[0], 1)  # until the template has gone
            table.say_once("the same line")
            os.write(spoken[1], b"x")
            os._exit(0)
    signal.pause()
os.read(spoken[0], 1)
os.kill(template, signal.SIGKILL)
os.waitpid(template, 0)
os.write(gate[1], b"x")
os.read(spoken[0], 1)
"""


def test_a_rank_that_outlives_the_template_does_not_repeat_the_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _ORPHANS, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "the same line\n")


def test_a_rank_whose_job_has_been_ended_is_silent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    JobTable(1, tmp_path / "removed").say_once("a line")
    assert capsys.readouterr().err == ""


def test_the_sampler_weighs_descendants() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "x = bytearray(50 << 20); input()"], stdin=subprocess.PIPE
    )
    sampler = PssSampler([child.pid])
    while sampler.peak_bytes < 50 << 20 and child.poll() is None:
        sampler._next_s = 0.0
        sampler.step()
    child.communicate(b"\n")
    assert sampler.peak_bytes >= 50 << 20
    assert pss_bytes(child.pid) == 0


@pytest.mark.multirank
@pytest.mark.timeout(120)
def test_ranks_that_end_while_others_start(sandbox: Sandbox, tmp_path: Path) -> None:
    """Descriptors of ended ranks' stubs are used again at once; a stale event must not block the template."""
    program = tmp_path / "short.py"
    program.write_text("")
    for _ in range(2):
        result = sandbox.run(sandbox.superpod(N, str(program)), timeout=50)
        assert result.returncode == 0, result.stderr
    sandbox.assert_clean()


BEFORE = """
import os, sys
from emulator.errors import UsageError
from launch.run import run_job

def before():
    print(len(os.listdir(sys.argv[1])), "came", flush=True)
    if sys.argv[2] == "refuse":
        raise UsageError("refused")

try:
    print(run_job(4, sys.argv[3:], before_ranks=before).exit_code, len(os.listdir(sys.argv[1])))
except UsageError as error:
    print(error, len(os.listdir(sys.argv[1])))
"""
COME = "import os, sys\nopen(os.path.join(sys.argv[1], str(os.getpid())), 'w').close()\n"


@pytest.mark.multirank
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("how", "said"), [("allow", "0 came\n0 4\n"), ("refuse", "0 came\nrefused 0\n")])
def test_what_must_be_done_before_any_rank(sandbox: Sandbox, tmp_path: Path, how: str, said: str) -> None:
    path, came = tmp_path / "program.py", tmp_path / "came"
    path.write_text(COME)
    came.mkdir()
    result = sandbox.run([sys.executable, "-c", BEFORE, str(came), how, str(path), str(came)])
    assert result.stdout == said, result.stderr
    sandbox.assert_clean()


def test_ranks_hold_no_library_of_the_host_side(sandbox: Sandbox, tmp_path: Path) -> None:
    """What serves HTTP, makes text or tests would cost every start time and every rank memory.
    Mutation that fails: let `launch.preload` import `emulator.testing`, `serving.api` or `serving.bench`."""
    program = tmp_path / "modules.py"
    program.write_text("import sys\nprint(*sorted({m.split('.')[0] for m in sys.modules}))\n")
    done = sandbox.run(sandbox.superpod(1, str(program)))
    assert done.returncode == 0, done.stderr
    held = set(done.stdout.split())
    assert {"torch", "serving", "collectives"} <= held
    assert not held & {"pytest", "fastapi", "uvicorn", "tokenizers", "jinja2", "prometheus_client"}
