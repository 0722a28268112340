"""A forked rank behaves as a plain interpreter under plain mpirun: one program, run all three ways."""

import hashlib
import os
import subprocess
from pathlib import Path

import pytest
from sandbox import BIN, PROGRAMS, Sandbox

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(120)]
PYTHON = str(BIN / "python")


def plain(sandbox: Sandbox, n: int, *program: str) -> list[str]:
    """A plain mpirun, whose segments a killed rank leaves where the sandbox is removed."""
    return sandbox.mpirun(n, "env", f"OMPI_MCA_btl_sm_backing_directory={sandbox.pids_dir}", PYTHON, *program)


def three_ways(
    sandbox: Sandbox, n: int, *program: str, **options: object
) -> list[subprocess.CompletedProcess[str]]:
    """Run under superpod run, mpirun … superpod-rank, and plain mpirun … python."""
    commands = (
        sandbox.superpod(n, *program),
        sandbox.forked(n, *program),
        plain(sandbox, n, *program),
    )
    return [sandbox.run(c, **options) for c in commands]


def rarer(how: str) -> object:
    return pytest.param(how, marks=pytest.mark.sweep)


@pytest.mark.parametrize(
    "how", ["code", "segv", "none", *map(rarer, ("text", "exception", "kill", "abort", "_exit"))]
)
def test_exit_status_and_output(sandbox: Sandbox, how: str) -> None:
    owned, shared, plain = three_ways(sandbox, 2, str(PROGRAMS / "finish.py"), how)
    expected = {
        "code": 3,
        "text": 1,
        "exception": 1,
        "segv": 139,
        "kill": 137,
        "abort": 5,
        "_exit": 4,
        "none": 0,
    }
    assert (owned.returncode, shared.returncode, plain.returncode) == (expected[how],) * 3
    if how in ("code", "text", "none"):  # nobody is killed: all of the output is determined
        assert sorted(owned.stdout.split()) == sorted(shared.stdout.split()) == sorted(plain.stdout.split())
    for r in (owned, shared):
        assert ("a text as exit code" in r.stderr) == (how == "text")
    sandbox.assert_clean()


def test_traceback_shows_the_program_only(sandbox: Sandbox, tmp_path: Path) -> None:
    program = tmp_path / "bad.py"
    program.write_text("def f():\n    raise ValueError('out of range')\n\nf()\n")
    results = [sandbox.run(sandbox.forked(1, str(program))), sandbox.run([PYTHON, str(program)])]
    traces = ["\n".join(r.stderr.split("\n")[:6]) for r in results]
    assert traces[0] == traces[1]
    assert "ValueError: out of range" in traces[0]


def test_missing_and_broken_programs(sandbox: Sandbox, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("def f(:\n")
    for program, code, text in (
        (str(tmp_path / "none.py"), 2, "can't open file"),
        (str(broken), 1, "SyntaxError"),
    ):
        result = sandbox.run(sandbox.forked(1, program))
        assert (result.returncode, text in result.stderr) == (code, True), result.stderr
    assert sandbox.run(sandbox.forked(1, "-m", "no.such.module")).returncode == 1


def test_surroundings(sandbox: Sandbox, tmp_path: Path) -> None:
    program = str(PROGRAMS / "echo.py")
    env = {"PROBE": "a=b c\nd"}
    owned, shared, plain = three_ways(
        sandbox, 2, program, "x y", "-n", cwd=tmp_path, env=env, input="abc\ndéf\n"
    )
    assert owned.returncode == shared.returncode == plain.returncode == 0
    assert shared.stdout == plain.stdout
    assert _without(owned.stdout, "affinity") == _without(plain.stdout, "affinity")  # it asks for no binding
    assert owned.stdout.startswith("ABC\nDÉF\n")
    for r in (owned, shared, plain):
        assert "err\0or\n" in r.stderr


def _without(text: str, key: str) -> list[str]:
    return [line for line in text.split("\n") if f" {key} " not in line]


def test_standard_input_to_its_end(sandbox: Sandbox, tmp_path: Path) -> None:
    program = tmp_path / "sum.py"
    program.write_text(
        "import hashlib, sys\nfrom mpi4py import MPI\n"
        "print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest(), MPI.COMM_WORLD.rank)\n"
    )
    text = "".join(f"line {i}\n" for i in range(40000))
    result = sandbox.run(sandbox.superpod(2, str(program)), input=text)
    digests = [hashlib.sha256(t).hexdigest() for t in (text.encode(), b"")]
    assert sorted(result.stdout.splitlines()) == sorted(f"{d} {r}" for r, d in enumerate(digests))


def test_a_large_output_passes_through_whole(sandbox: Sandbox, tmp_path: Path) -> None:
    program = tmp_path / "large.py"
    program.write_text("import sys\nfor i in range(50000):\n    sys.stdout.write(f'{i:>19}\\n')\n")
    result = sandbox.run(sandbox.superpod(1, str(program)))
    assert result.stdout == "".join(f"{i:>19}\n" for i in range(50000))


def test_modules_zips_and_directories(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    for name in ("pkg/__init__.py", "pkg/__main__.py"):
        (tmp_path / name).write_text("import sys\nprint(__name__, sys.argv[1:], bool(sys.path[0]))\n")
    env = {"PYTHONPATH": str(tmp_path)}
    expected = "pkg ['a'] True\n__main__ ['a'] True\n"
    for r in three_ways(sandbox, 1, "-m", "pkg", "a", cwd=tmp_path, env=env):
        assert (r.returncode, r.stdout) == (0, expected), r
    assert sandbox.run(sandbox.forked(1, "pkg", "a"), cwd=tmp_path).stdout == "__main__ ['a'] True\n"


def test_an_own_package_beside_the_program_wins(sandbox: Sandbox, tmp_path: Path) -> None:
    """The fork server has imported ours, but the program's directory comes first on the path."""
    (tmp_path / "serving").mkdir()
    (tmp_path / "serving/__init__.py").write_text("mine = True\n")
    program = tmp_path / "app.py"
    program.write_text("import serving, emulator\nprint(serving.mine, hasattr(emulator, 'init'))\n")
    for r in three_ways(sandbox, 1, str(program)):
        assert r.stdout == "True True\n", r.stderr


def test_numpy_random_differs_between_ranks(sandbox: Sandbox, tmp_path: Path) -> None:
    program = tmp_path / "draw.py"
    program.write_text(
        "import random\nimport numpy as np\nprint(np.random.randint(1 << 62), random.getrandbits(62))\n"
    )
    draws = sandbox.run(sandbox.superpod(4, str(program))).stdout.split()
    assert len(set(draws)) == 8


def test_threads_and_atexit_end_before_the_process(sandbox: Sandbox, tmp_path: Path) -> None:
    program = tmp_path / "threads.py"
    program.write_text(
        "import atexit, threading, time\n"
        "atexit.register(print, 'atexit')\n"
        "threading.Thread(target=lambda: (time.sleep(0.3), print('thread'))).start()\n"
        "print('main')\n"
    )
    assert sandbox.run(sandbox.forked(1, str(program))).stdout == "main\nthread\natexit\n"


def test_torch_and_a_child_process_work_in_a_rank(sandbox: Sandbox, tmp_path: Path) -> None:
    program = tmp_path / "work.py"
    program.write_text(
        "import subprocess, torch\n"
        "x = torch.arange(6.0).reshape(2, 3)\n"
        "print((x @ x.T).tolist(), torch.get_num_threads())\n"
        "print(subprocess.run(['echo', 'child'], capture_output=True, text=True).stdout, end='')\n"
    )
    result = sandbox.run(sandbox.superpod(1, str(program)))
    assert result.stdout == "[[5.0, 14.0], [14.0, 50.0]] 1\nchild\n", result.stderr


def test_a_process_left_by_a_rank_does_not_outlive_the_run(sandbox: Sandbox, tmp_path: Path) -> None:
    program = tmp_path / "leave.py"
    program.write_text(
        "import subprocess\n"
        "null = subprocess.DEVNULL\n"
        "subprocess.Popen(['sleep', '300'], stdin=null, stdout=null, stderr=null)\n"
    )
    for command in (sandbox.superpod(1, str(program)), sandbox.forked(1, str(program))):
        assert sandbox.run(command).returncode == 0
        sandbox.assert_clean()


def test_one_process_without_mpirun_is_quiet_and_leaves_no_shared_segment(tmp_path: Path) -> None:
    """Fails without the options told in `emulator.transport`: Open MPI maps 16 MB that nobody removes."""
    program = tmp_path / "alone.py"
    program.write_text(
        "import os\nimport emulator\n\nemulator.init()\n"
        "print('sm_segment' in open('/proc/self/maps').read(), 'OMPI_MCA_btl' in os.environ)\n"
    )
    own = {**os.environ, "TMPDIR": str(tmp_path)}
    result = subprocess.run([PYTHON, str(program)], env=own, capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, "False False\n", "")


def test_ranks_of_a_plain_mpirun_say_nothing_of_ucx(sandbox: Sandbox, tmp_path: Path) -> None:
    """Open MPI's wheel looks for a UCX that is not there, and each rank used to tell. Fails without the
    options around `MPI_T_init_thread` in the template, which reads them for all ranks."""
    program = tmp_path / "init.py"
    program.write_text("import emulator\nemulator.init()\n")
    command = [word for word in sandbox.forked(2, str(program)) if word not in ("osc", "^ucx")]
    at = command.index("self,sm") + 1
    ran = sandbox.run(command[:at] + command[at + 1 :])  # the `--mca` of the two
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
