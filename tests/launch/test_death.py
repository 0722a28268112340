"""The chain of deaths, each link at 16 ranks: who ends with whom, with which exit status, and that nothing
is left."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from sandbox import BIN, PROGRAMS, Sandbox, parent_of, wait_for

from launch import lost_start
from launch.jobtable import JobTable

N = 16
HOLD = str(PROGRAMS / "hold.py")
pytestmark = [pytest.mark.multirank, pytest.mark.timeout(120)]


def start(
    sandbox: Sandbox, how: str, options: tuple[str, ...] = ()
) -> tuple[subprocess.Popen[str], list[int]]:
    command = {"superpod": sandbox.superpod, "cold": sandbox.superpod, "mpirun": sandbox.forked}[how]
    p = sandbox.popen(command(N, HOLD, str(sandbox.pids_dir), options=options), start_new_session=True)
    return p, sandbox.rank_pids(N)


def gone(pids: list[int]) -> Callable[[], bool]:
    return lambda: not any(Path(f"/proc/{p}").exists() for p in pids)


def only(pids: list[int]) -> int:
    assert len(pids) == 1, pids
    return pids[0]


def fork_server(ranks: list[int]) -> int:
    """The server of these ranks: the parent of their template."""
    return parent_of(parent_of(ranks[0]))


@pytest.fixture
def place(request: pytest.FixtureRequest, how: str) -> Sandbox:
    """Where "cold" has a fork server of its own, and the others have one that is up already."""
    found: Sandbox = request.getfixturevalue("alone" if how == "cold" else "sandbox")
    return found


@pytest.mark.parametrize("how", ["superpod", "mpirun"])
def test_killed_rank_ends_the_job_with_its_signal(sandbox: Sandbox, how: str) -> None:
    p, ranks = start(sandbox, how)
    os.kill(ranks[5], signal.SIGKILL)
    assert p.wait(60) == 128 + signal.SIGKILL
    sandbox.assert_clean()


@pytest.mark.parametrize("how", ["superpod", "mpirun"])
def test_killed_stub_takes_its_rank_along(sandbox: Sandbox, how: str) -> None:
    p, ranks = start(sandbox, how)
    stubs = sandbox.processes("superpod-rank\0")
    stubs = [s for s in stubs if b"prterun" not in Path(f"/proc/{s}/cmdline").read_bytes()]
    assert len(stubs) == N
    os.kill(stubs[3], signal.SIGKILL)
    assert p.wait(60) == 128 + signal.SIGKILL
    wait_for(gone(ranks))
    sandbox.assert_clean()


@pytest.mark.parametrize("how", ["superpod", "mpirun"])
def test_killed_mpirun_takes_all_along(sandbox: Sandbox, how: str) -> None:
    p, ranks = start(sandbox, how)
    os.kill(only(sandbox.processes("prterun")), signal.SIGKILL)
    assert p.wait(60) in (-signal.SIGKILL, 128 + signal.SIGKILL)
    if how == "superpod":  # a shell says it of its own children alone
        assert p.communicate()[1] == "superpod: error: mpirun was killed by signal 9 (Killed)\n"
    wait_for(gone(ranks))
    sandbox.assert_clean()


def test_a_killed_mpirun_that_nobody_has_waited_for_leaves_no_session(sandbox: Sandbox) -> None:
    """Fails on a build that takes a process not yet waited for as one that lives and removes its own."""
    p, ranks = start(sandbox, "mpirun")
    assert list(sandbox.tmp.glob("ompi.*"))
    os.kill(only(sandbox.processes("prterun")), signal.SIGKILL)
    wait_for(gone(ranks))
    wait_for(lambda: not list(sandbox.tmp.glob("ompi.*")))
    assert p.wait() == -signal.SIGKILL
    sandbox.assert_clean()


@pytest.mark.parametrize("how", ["superpod", "cold", "mpirun"])
def test_killed_fork_server_takes_all_along(place: Sandbox, how: str) -> None:
    sandbox = place
    p, ranks = start(sandbox, how)
    os.kill(fork_server(ranks), signal.SIGKILL)
    wait_for(gone(ranks))
    assert p.wait(60) not in (0, None)
    err = p.communicate()[1]
    assert "fork server ended" in err and (how == "mpirun" or err.count("\n") == 1)
    sandbox.assert_clean()


@pytest.mark.parametrize("how", ["superpod", "mpirun"])
def test_killed_template_takes_its_ranks_along(sandbox: Sandbox, how: str) -> None:
    p, ranks = start(sandbox, how)
    os.kill(parent_of(ranks[0]), signal.SIGKILL)
    wait_for(gone(ranks))
    assert p.wait(60) not in (0, None)
    sandbox.assert_clean()


@pytest.mark.parametrize("how", ["superpod", "cold"])
def test_killed_command_takes_all_along(place: Sandbox, how: str) -> None:
    sandbox = place
    p, ranks = start(sandbox, how)
    p.kill()
    p.wait(60)
    wait_for(gone(ranks))
    sandbox.assert_clean()


def test_command_and_fork_server_killed_at_once_are_swept_by_the_next_run(alone: Sandbox) -> None:
    sandbox = alone
    p, ranks = start(sandbox, "cold")
    os.kill(fork_server(ranks), signal.SIGKILL)
    p.kill()
    p.wait(60)
    wait_for(gone(ranks))
    wait_for(lambda: not sandbox.processes())
    assert sandbox.leftovers(), "nobody was left to remove the run's directory"
    assert sandbox.run(sandbox.superpod(1, "-m", "this")).returncode == 0
    sandbox.assert_clean()


@pytest.mark.parametrize("how", ["superpod", "mpirun"])
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_signal_to_the_command_alone(sandbox: Sandbox, how: str, signum: signal.Signals) -> None:
    p, ranks = start(sandbox, how)
    p.send_signal(signum)
    code = p.wait(60)
    assert code == plain_exit_code(sandbox, signum)
    wait_for(gone(ranks))
    sandbox.assert_clean()


def plain_exit_code(sandbox: Sandbox, signum: signal.Signals) -> int:
    """What a plain mpirun of two sleeping processes does with that signal."""
    before = set(sandbox.processes("sleep"))
    p = sandbox.popen(sandbox.mpirun(2, "sleep", "60"))
    wait_for(lambda: len(set(sandbox.processes("sleep\00060")) - before) >= 2)
    p.send_signal(signum)
    return p.wait(60)


@pytest.mark.parametrize("how", ["superpod", "mpirun"])
def test_keep_going_survivors_finish(sandbox: Sandbox, how: str) -> None:
    options = ("--keep-going",) if how == "superpod" else ("--continuous",)
    p, ranks = start(sandbox, how, options)
    os.kill(ranks[5], signal.SIGKILL)
    wait_for(gone([ranks[5]]))
    assert p.poll() is None
    (sandbox.pids_dir / "go").touch()
    out, _ = p.communicate(timeout=60)
    assert sorted(out.split("\n")[:-1]) == sorted(f"rank {r} goes on" for r in range(N) if r != 5)
    sandbox.assert_clean()


def test_who_died_is_known_by_its_number_however_mpirun_maps_ranks(sandbox: Sandbox) -> None:
    """Fails where the job's table has local ranks, counted as mpirun maps: living ones were marked dead."""
    program = Path(__file__).parents[2] / "examples" / "killed_rank.py"
    options = (
        "--continuous",
        "-x",
        "SUPERPOD_CONFIG",
    )  # mapped in turns over sockets, if it can
    command = sandbox.mpirun(8, "superpod-rank", str(program), options=options)
    ran = sandbox.run(command, env={"SUPERPOD_CONFIG": '{"keep_going": true}'})
    lines = [f"rank {rank}: lost [3] at 2416972 ps, 7 go on" for rank in range(8) if rank != 3]
    assert sorted(ran.stdout.splitlines()) == lines, ran.stderr


def test_a_signal_reaches_the_program(sandbox: Sandbox) -> None:
    program = sandbox.pids_dir / "usr1.py"
    program.write_text(
        "import os, signal, sys\n"
        "def heard(*_):\n    print('heard'); sys.exit(9)\n"
        "signal.signal(signal.SIGUSR1, heard)\n"
        "open(sys.argv[1], 'w').write(str(os.getpid()))\n"
        "while True: signal.pause()\n"
    )
    ready = sandbox.pids_dir / "ready"
    p = sandbox.popen(sandbox.forked(1, str(program), str(ready)))
    wait_for(lambda: ready.exists() and ready.read_text())
    stub = only([s for s in sandbox.processes("superpod-rank\0") if s not in sandbox.processes("prterun")])
    os.kill(stub, signal.SIGUSR1)
    out, _ = p.communicate(timeout=60)
    assert (p.returncode, out) == (9, "heard\n")
    sandbox.assert_clean()


NEVER_UP = """
import os, signal
if FROM_MPI:
    from mpi4py import MPI
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
import emulator
emulator.init()
"""


@pytest.mark.parametrize("where", ["MPI_Init", pytest.param("emulator.init", marks=pytest.mark.sweep)])
def test_a_start_that_a_death_left_for_ever_is_ended(sandbox: Sandbox, tmp_path: Path, where: str) -> None:
    """Fails where the template lets the others wait (`LostStart.stuck` that returns nothing)."""
    program = tmp_path / "never_up.py"
    program.write_text(NEVER_UP.replace("FROM_MPI", str(where != "MPI_Init")))
    result = sandbox.run(sandbox.superpod(4, str(program), options=("--keep-going",)), timeout=60)
    assert result.returncode
    assert "superpod: rank 1 died while the ranks started; the others, which cannot" in result.stderr
    sandbox.assert_clean()


def test_a_start_in_which_somebody_comes_on_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pure: only a whole span of patience without news says that nobody comes out any more."""
    now = [100.0]
    monkeypatch.setattr(lost_start.time, "monotonic", lambda: now[0])
    table = JobTable(4, tmp_path)
    watch = lost_start.LostStart(table)
    for rank in range(3):
        table.starting(rank, 1)
    assert watch.patience_s == -1.0 and watch.stuck() == []
    table.ended(0)
    watch.note_end(0)
    for change in (lambda: table.starting(3, 1), lambda: table.starting(1, -1), lambda: None):
        change()
        now[0] += lost_start.PATIENCE_S
        found = watch.stuck()
    assert found == [2, 3] and table.status().start_lost == 1
    assert 0 < watch.patience_s <= lost_start.PATIENCE_S


@pytest.mark.sweep
def test_a_stub_killed_on_its_way_holds_nobody_up(sandbox: Sandbox, tmp_path: Path) -> None:
    """Fails without `_note_missing`: the template waits for the stub, the others in MPI_Init for its rank."""
    program = tmp_path / "up.py"
    program.write_text("import emulator\nemulator.init()\n")
    shell = f'test "$OMPI_COMM_WORLD_RANK" = 1 && kill -9 $$; exec {BIN}/superpod-rank "$0"'
    command = sandbox.mpirun(4, "sh", "-c", shell, str(program), options=("--continuous",))
    assert sandbox.run(command, timeout=60).returncode is not None
    sandbox.assert_clean()
