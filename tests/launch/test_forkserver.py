"""The shared fork server: who starts it, whom it serves, when it leaves; and runs beside each other."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sandbox import PROGRAMS, Sandbox, wait_for, written

from launch import wire

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(120)]
HOLD = str(PROGRAMS / "hold.py")
STUB = str(Path(wire.__file__).with_name("stub.py"))


@pytest.fixture
def sandbox(alone: Sandbox) -> Sandbox:
    """Here fork servers come and go."""
    return alone


@pytest.fixture
def who(tmp_path: Path) -> str:
    program = tmp_path / "who.py"
    program.write_text(
        "import os\nstat = open(f'/proc/{os.getppid()}/stat').read()\nprint(stat.split()[3])\n"
    )
    return str(program)


def servers(sandbox: Sandbox, who: str, *commands: list[str], **options: object) -> list[set[str]]:
    """Run commands at once; return for each the fork servers that its ranks come from."""
    running = [sandbox.popen(c, **options) for c in commands]
    results = [p.communicate(timeout=60) for p in running]
    assert [p.returncode for p in running] == [0] * len(commands), results
    return [set(out.split()) for out, _ in results]


def test_two_jobs_started_at_once_share_one_server_and_it_leaves(sandbox: Sandbox, who: str) -> None:
    one, two = servers(sandbox, who, sandbox.forked(8, who), sandbox.forked(8, who))
    assert len(one) == 1
    assert one == two
    sandbox.assert_clean()


def test_a_server_serves_the_next_job(sandbox: Sandbox, who: str) -> None:
    env = {"SUPERPOD_IDLE_S": "20"}
    (one,) = servers(sandbox, who, sandbox.forked(2, who), env=env)
    (two,) = servers(sandbox, who, sandbox.forked(2, who), env=env)
    assert one == two
    os.kill(int(one.pop()), signal.SIGKILL)


def test_different_environments_never_share_a_server(sandbox: Sandbox, who: str, tmp_path: Path) -> None:
    commands = [sandbox.forked(1, who)]
    (one,) = servers(sandbox, who, *commands, env={"SUPERPOD_IDLE_S": "5", "PYTHONPATH": "/nonexistent/a"})
    (two,) = servers(sandbox, who, *commands, env={"SUPERPOD_IDLE_S": "5", "PYTHONPATH": "/nonexistent/b"})
    assert one != two


def test_a_copy_of_the_stub_elsewhere_has_a_server_of_its_own(sandbox: Sandbox, who: str) -> None:
    copy = sandbox.pids_dir / "superpod-rank"
    copy.write_bytes(Path(sandbox.forked(1)[-1]).read_bytes())
    copy.chmod(0o755)
    env = {"SUPERPOD_IDLE_S": "5", "SUPERPOD_PYTHON": sys.executable}
    one, two = servers(sandbox, who, sandbox.forked(1, who), sandbox.mpirun(1, str(copy), who), env=env)
    assert one.isdisjoint(two)


def test_a_server_with_old_code_hands_over(sandbox: Sandbox, tmp_path: Path, who: str) -> None:
    """Touch a module the server has loaded: the next job gets a new server on the same socket."""
    source = Path(wire.__file__).parent.parent
    for package in ("launch", "emulator", "memsem", "collectives", "serving"):
        (tmp_path / package).symlink_to(source / package)
    (tmp_path / "launch").unlink()
    (tmp_path / "launch").mkdir()
    for f in (source / "launch").iterdir():
        (tmp_path / "launch" / f.name).symlink_to(f)
    touched = tmp_path / "launch/wire.py"
    touched.unlink()
    touched.write_text(Path(wire.__file__).read_text())
    env = {"SUPERPOD_IDLE_S": "3", "PYTHONPATH": str(tmp_path)}
    (one,) = servers(sandbox, who, sandbox.forked(2, who), env=env)
    (same,) = servers(sandbox, who, sandbox.forked(2, who), env=env)
    touched.write_text(touched.read_text() + "# changed\n")
    (two,) = servers(sandbox, who, sandbox.forked(2, who), env=env)
    assert one == same != two
    wait_for(lambda: not Path(f"/proc/{one.pop() if one else 0}").exists())
    sandbox.assert_clean()


def test_a_server_that_cannot_start_says_why(sandbox: Sandbox, tmp_path: Path, who: str) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no torch today')\n")
    for command in (sandbox.forked(2, who), sandbox.superpod(2, who)):
        result = sandbox.run(command, env={"PYTHONPATH": str(tmp_path)})
        assert result.returncode == 1
        assert "no torch today" in result.stderr
    sandbox.assert_clean()


def test_a_missing_python_is_told(sandbox: Sandbox, who: str) -> None:
    result = sandbox.run(sandbox.forked(1, who), env={"SUPERPOD_PYTHON": "/nonexistent/python"})
    assert result.returncode == 1
    assert "/nonexistent/python" in result.stderr


def test_a_rank_without_mpirun(sandbox: Sandbox, who: str) -> None:
    assert sandbox.run([sandbox.forked(1)[-1], who]).returncode == 0
    sandbox.assert_clean()


def test_the_python_stub_does_the_same(sandbox: Sandbox) -> None:
    stub = (sys.executable, "-I", "-S", STUB)
    result = sandbox.run(sandbox.mpirun(2, *stub, str(PROGRAMS / "finish.py"), "code"))
    assert result.returncode == 3
    assert "begin 0 unflushed" in result.stdout
    assert sandbox.run(sandbox.mpirun(2, *stub, str(PROGRAMS / "finish.py"), "segv")).returncode == 139
    p = sandbox.popen(sandbox.mpirun(4, *stub, HOLD, str(sandbox.pids_dir)))
    ranks = sandbox.rank_pids(4)
    os.kill(int(Path(f"/proc/{ranks[0]}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)
    assert p.wait(60) != 0
    sandbox.assert_clean()


def test_usage(sandbox: Sandbox) -> None:
    for command in ([sandbox.forked(1)[-1]], [sys.executable, STUB]):
        result = sandbox.run(command)
        assert (result.returncode, result.stderr.startswith("usage: ")) == (2, True)


def test_runs_beside_each_other_do_not_collide(sandbox: Sandbox) -> None:
    """Three runs hold at once: two of superpod run, one of mpirun; killing one leaves the others alone."""
    places = [sandbox.pids_dir / str(i) for i in range(3)]
    commands = (sandbox.superpod, sandbox.superpod, sandbox.forked)
    running: list[subprocess.Popen[str]] = []
    for place, command in zip(places, commands, strict=True):
        place.mkdir()
        running.append(sandbox.popen(command(4, HOLD, str(place))))
    for place in places:
        written(place / str(r) for r in range(4))
    running[0].kill()
    running[0].wait()
    for place in places:
        (place / "go").touch()
    for p in running[1:]:
        out, err = p.communicate(timeout=60)
        assert (p.returncode, len(out.splitlines())) == (0, 4), err
    sandbox.assert_clean()
