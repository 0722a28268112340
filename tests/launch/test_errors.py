"""What a user sees of errors in a program: the caller's mistake is one line, not a traceback per rank."""

import os
import signal
import sys
from pathlib import Path

import pytest
from sandbox import Sandbox, listed

from emulator.errors import UsageError
from launch.cmd_run import merged_config

N = 8
pytestmark = [pytest.mark.multirank, pytest.mark.timeout(120)]


def write(sandbox: Sandbox, text: str, name: str = "program.py") -> str:
    path = sandbox.pids_dir / name
    path.write_text(text)
    return str(path)


def errors(text: str) -> list[str]:
    """The lines of stderr that are not mpirun's notice about an exit status (superpod run leaves it out)."""
    return text.split("-----", 1)[0].splitlines()


@pytest.mark.parametrize("how", ["superpod", "mpirun"])
def test_an_uncaught_usage_error_is_one_line_for_all_ranks_and_exit_code_2(
    sandbox: Sandbox, how: str
) -> None:
    program = write(sandbox, "import emulator\n\nemulator.init(heap_bites=4)\n")
    command = {"superpod": sandbox.superpod, "mpirun": sandbox.forked}[how]
    result = sandbox.run(command(N, program))
    assert result.returncode == 2
    assert len(errors(result.stderr)) == 1, result.stderr
    assert how == "mpirun" or "prterun" not in result.stderr
    line = errors(result.stderr)[0]
    assert line.startswith(f"superpod: error: {program}, line 3: ")
    assert "'heap_bites'; did you mean 'heap_bytes'?" in line
    sandbox.assert_clean()


def test_plain_python_says_it_once_a_rank(sandbox: Sandbox) -> None:
    program = write(sandbox, "import emulator\n\nemulator.init(heap_bites=4)\n")
    result = sandbox.run(sandbox.mpirun(4, sys.executable, program))
    assert result.returncode == 2, result.stderr
    lines = errors(result.stderr)
    assert 1 <= len(lines) <= 4
    assert len(set(lines)) == 1
    assert lines[0].startswith(f"superpod: error: {program}, line 3: ")
    assert "did you mean 'heap_bytes'?" in lines[0]
    sandbox.assert_clean()


def test_other_exceptions_keep_their_tracebacks(sandbox: Sandbox) -> None:
    result = sandbox.run(sandbox.superpod(1, write(sandbox, "import emulator\n1 / 0\n")))
    assert result.returncode == 1
    assert "Traceback" in result.stderr
    assert "ZeroDivisionError" in result.stderr


@pytest.mark.parametrize(
    ("error", "status", "last"),
    [
        ("ValueError('boom')", 1, "ValueError: boom"),
        ("emulator.errors.UsageError('3 is bad')", 2, "line 6: 3 is bad"),
    ],
)
def test_ranks_that_wait_for_one_that_failed_say_nothing(
    sandbox: Sandbox, error: str, status: int, last: str
) -> None:
    """Fails on a build whose failed rank ends the run as if it had finished: the others report a deadlock."""
    start = "import emulator\n\nemulator.init()\nemulator.barrier()\n"
    rest = f"if emulator.rank() == 1:\n    raise {error}\nemulator.barrier()\n"
    result = sandbox.run(sandbox.superpod(N, write(sandbox, start + rest)))
    assert result.returncode == status
    assert errors(result.stderr)[-1].endswith(last)
    assert "Deadlock" not in result.stderr
    assert result.stderr.count("Traceback") == (status == 1)
    sandbox.assert_clean()


def test_a_hook_of_the_program_gets_its_usage_error(sandbox: Sandbox) -> None:
    text = "import emulator, sys\nsys.excepthook = lambda *_: print('mine')\nemulator.rank()\n"
    result = sandbox.run(sandbox.superpod(1, write(sandbox, text)))
    assert (result.returncode, result.stdout) == (2, "mine\n")
    assert "superpod: error" not in result.stderr


LOST = """
import os, signal, sys, time
import numpy as np
import emulator
from emulator.errors import RankLostError
from memsem import Window

device = emulator.init()
window = Window.create(4, np.int64)
emulator.barrier()
if device.rank == 3:
    time.sleep(0.5)  # by then the others are blocked
    how = sys.argv[1]
    os._exit(0) if how == "exit" else os.kill(os.getpid(), signal.SIGKILL)
try:
    if device.rank % 2:
        window.signal_wait_until(0, "eq", 1)
    else:
        emulator.barrier()
except RankLostError as error:
    print(f"rank {device.rank} lost {list(error.ranks)}", flush=True)
"""


@pytest.mark.parametrize("options", [(), ("--transport", "rma")])
@pytest.mark.parametrize("how", ["kill", "exit"])
def test_survivors_blocked_on_a_dead_rank_are_told(
    sandbox: Sandbox, how: str, options: tuple[str, ...]
) -> None:
    command = sandbox.superpod(N, write(sandbox, LOST), how, options=("--keep-going", *options))
    result = sandbox.run(command, timeout=60)
    assert sorted(result.stdout.splitlines()) == [f"rank {r} lost [3]" for r in range(N) if r != 3], (
        result.stderr
    )
    sandbox.assert_clean()


def test_the_configuration_in_the_environment_is_kept_and_options_win(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = {"profile": "cloudmatrix384", "transport": "shared", "seed": 0}
    ours = '{"transport": "rma", "seed": 5, "heap_bytes": 8192, "set": {"ub.latency_inter_us": 4, "a": 1}}'
    monkeypatch.setenv("SUPERPOD_CONFIG", ours)
    assert merged_config({**options, "seed": 7}, {"a": "2"}, given={"seed"}) == {
        "profile": "cloudmatrix384",
        "transport": "rma",
        "seed": 7,
        "heap_bytes": 8192,
        "set": {"ub.latency_inter_us": 4, "a": "2"},
    }
    monkeypatch.setenv("SUPERPOD_CONFIG", '{"heap_bites": 1}')
    with pytest.raises(UsageError, match="did you mean 'heap_bytes'"):
        merged_config(options, {}, given=set())


def test_a_run_uses_the_configuration_in_the_environment(sandbox: Sandbox) -> None:
    text = "import emulator\nc = emulator.init().config\nprint(c.heap_bytes, c.transport, c.seed)\n"
    command = sandbox.superpod(1, write(sandbox, text), options=("--seed", "7"))
    ours = {"SUPERPOD_CONFIG": '{"heap_bytes": 8192, "transport": "rma", "seed": 5}'}
    assert sandbox.run(command, env=ours).stdout == "8192 rma 7\n"
    sandbox.assert_clean()


SPILLING = """
import os, pathlib, sys, time
import numpy as np
import emulator
from memsem import Window

device = emulator.init(staging_bytes=4096)
window = Window.create(4096, np.float64)
emulator.barrier()
for _ in range(3):
    window.put((device.rank + 1) % device.num_ranks, np.ones(4096))
(pathlib.Path(sys.argv[1]) / str(device.rank)).write_text(str(os.getpid()))
time.sleep(60)
"""


@pytest.mark.parametrize("how", ["superpod", "mpirun"])
def test_spill_files_of_killed_ranks_are_removed(sandbox: Sandbox, how: str) -> None:
    def spilled() -> set[Path]:
        return set(listed(Path("/dev/shm"), "**/*-spill-*"))

    before, program = spilled(), write(sandbox, SPILLING)
    command = {"superpod": sandbox.superpod, "mpirun": sandbox.forked}[how]
    process = sandbox.popen(command(2, program, str(sandbox.pids_dir)))
    ranks = sandbox.rank_pids(2)
    ours = {path for path in spilled() - before if any(name in str(path) for name in sandbox.names)}
    assert len(ours) == 6
    os.kill(ranks[1], signal.SIGKILL)
    assert process.wait(60) == 128 + signal.SIGKILL
    sandbox.assert_clean()
    assert not ours & spilled()


def test_a_run_without_home(sandbox: Sandbox) -> None:
    command = [
        "env",
        "-u",
        "HOME",
        *sandbox.superpod(1, write(sandbox, "import emulator\nemulator.init()\n")),
    ]
    assert sandbox.run(command).returncode == 0
    sandbox.assert_clean()


def test_a_trace_that_cannot_be_written_is_one_line(sandbox: Sandbox) -> None:
    program = write(sandbox, "import emulator\nemulator.init()\nemulator.barrier()\n")
    result = sandbox.run(sandbox.superpod(2, program, options=("--trace-out", "/dev/full")))
    assert result.returncode == 2
    assert (
        result.stderr == "superpod: error: /dev/full: the trace cannot be written: No space left on device\n"
    )
    sandbox.assert_clean()
