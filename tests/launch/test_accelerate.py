"""The accelerated start: for the pinned wheel only, proven at every start, given up on a wrong answer."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from sandbox import PROGRAMS, Sandbox

from launch import board, paths
from launch.cmd_doctor import _board

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(120)]
N = 12
EXCHANGE = """
import numpy as np
from mpi4py import MPI
c = MPI.COMM_WORLD
n, me = c.size, c.rank
big = np.full(300_000, me, np.int64)
got = np.empty_like(big)
c.Sendrecv(big, (me + 1) % n, recvbuf=got, source=(me - 1) % n)
assert (got == (me - 1) % n).all()
counts = np.arange(n, dtype=np.int64) + 100 * me
back = np.empty_like(counts)
c.Alltoall(counts, back)
assert (back == 100 * np.arange(n) + me).all()
half = c.Split(me % 2)
assert half.allreduce(1) == (n + 1 - me % 2) // 2
win = MPI.Win.Allocate_shared(4096, 1, comm=c)
win.Lock_all()
one = np.ones(1, np.int64)
win.Fetch_and_op(one, np.empty(1, np.int64), 0, 0, MPI.SUM)
win.Flush(0)
c.Barrier()
memory, _ = win.Shared_query(0)
assert np.frombuffer(memory, np.int64)[0] == n
win.Unlock_all()
print("right")
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "exchange.py"
    path.write_text(EXCHANGE)
    return str(path)


def run(sandbox: Sandbox, program: str, *options: str, **env: str) -> dict[str, object]:
    out = sandbox.pids_dir / "out.json"
    result = sandbox.run(sandbox.superpod(N, program, options=("--json", str(out), *options)), env=env)
    assert (result.returncode, result.stdout) == (0, "right\n" * N), result.stderr
    sandbox.assert_clean()
    return dict(json.loads(out.read_text()))


def test_on_by_default_and_answers(sandbox: Sandbox, program: str) -> None:
    result = run(sandbox, program)
    assert result["accelerated"] is True
    # a rank asks for each peer's locality, local rank and address, of which a few answers served as proofs
    assert result["board_answers"] > N * (N - 1)
    assert result["board_refuted"] is False


@pytest.mark.parametrize("how", ["option", "environment"])
def test_switched_off(sandbox: Sandbox, program: str, how: str) -> None:
    if how == "option":
        result = run(sandbox, program, "--no-accelerate")
    else:
        result = run(sandbox, program, SUPERPOD_ACCELERATE="0")
    assert (result["accelerated"], result["board_answers"]) == (False, 0)


@pytest.mark.parametrize("parts", ["g", "f", "s", "gf", "sd"])
def test_each_part_alone(sandbox: Sandbox, program: str, parts: str) -> None:
    result = run(sandbox, program, SUPERPOD_BOARD_PARTS=parts)
    assert (result["board_answers"] > 0) == ("g" in parts)


def test_a_wrong_answer_is_noticed_and_the_real_ones_are_used(sandbox: Sandbox, program: str) -> None:
    result = run(sandbox, program, SUPERPOD_BOARD_PARTS="gfsdx")
    assert (result["accelerated"], result["board_refuted"]) == (False, True)


def test_segments_of_another_size_are_left_to_open_mpi(sandbox: Sandbox, program: str) -> None:
    assert run(sandbox, program, OMPI_MCA_btl_sm_segment_size="33554432")["accelerated"] is True


def test_another_open_mpi_falls_back_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    assert board.why_not() == ""
    monkeypatch.setattr(board, "preloaded", lambda: True)
    monkeypatch.setattr(board, "pmix_version", lambda: "OpenPMIx 5.0.11rc1 (PMIx Standard: 4.2)")
    assert board.parts_for({}) == "gfsd"
    monkeypatch.setattr(board, "pmix_version", lambda: "OpenPMIx 6.0.0")
    assert board.parts_for({}) == ""
    monkeypatch.setattr(board.metadata, "version", lambda _: "5.0.12")
    assert "5.0.12" in board.why_not()
    assert _board().level == "note"


def test_without_the_compiled_board(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(board, "BOARD", tmp_path / "none.so")
    assert "no C compiler" in board.why_not()
    assert _board().value.startswith("fall-back")


def test_a_small_program_starts_with_every_rank_up(sandbox: Sandbox) -> None:
    out = sandbox.pids_dir / "out.json"
    command = sandbox.superpod(
        4, str(PROGRAMS / "finish.py"), "none", options=("--json", str(out), "--progress")
    )
    result = sandbox.run(command)
    facts = json.loads(out.read_text())
    assert (facts["ranks_up"], facts["exit_code"]) == (4, 0)
    assert 0 < facts["startup_wall_s"] < facts["wall_s"] + 30
    assert "4/4 ranks up" in result.stderr


SHARED = """
import ctypes
import emulator
device = emulator.init()
device.barrier()
print(ctypes.CDLL(None).descriptors_shared())
"""


@pytest.mark.parametrize(("parts", "most"), [("gfsd", N - 2), ("gfs", 0), ("gfd", 0), ("gfsdx", 0)])
def test_a_descriptor_is_shared_once_two_ranks_have_proven_its_place(
    sandbox: Sandbox, tmp_path: Path, parts: str, most: int
) -> None:
    (tmp_path / "shared.py").write_text(SHARED)
    command = sandbox.superpod(N, str(tmp_path / "shared.py"))
    result = sandbox.run(command, env={"SUPERPOD_BOARD_PARTS": parts})
    assert result.returncode == 0, result.stderr
    shared = {int(line) for line in result.stdout.split()}
    assert len(shared) == 1
    count = shared.pop()
    assert (count > 0) == (most > 0)
    assert count <= most * (N - 1)
    sandbox.assert_clean()


@pytest.mark.parametrize(
    ("where", "options"),
    [("k", ()), pytest.param("l", ("--keep-going",), marks=pytest.mark.sweep)],
    ids=["what it put", "a locality string"],
)
def test_a_rank_killed_while_it_publishes_holds_nobody_up(
    sandbox: Sandbox, tmp_path: Path, where: str, options: tuple[str, ...]
) -> None:
    """The board has no lock that could stay taken; a start that cannot end is ended."""
    (tmp_path / "shared.py").write_text(SHARED)
    command = sandbox.superpod(4, str(tmp_path / "shared.py"), options=options)
    result = sandbox.run(command, env={"SUPERPOD_BOARD_PARTS": f"gfsd{where}"})
    assert options or result.returncode
    assert len(result.stdout.split()) < 4
    sandbox.assert_clean()


HALF_WAY = """
import ctypes, os, signal, sys
board = ctypes.CDLL(sys.argv[1])
board.board_published.restype = board.board_locality.restype = ctypes.c_char_p
assert board.board_rows_new(4, b"l") == 0
if not (child := os.fork()):
    board.board_rows_rank(1)
    board.board_publish_locality(2, b"pmix.locstr", b"SK0")
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
signal.alarm(20)
board.board_rows_rank(3)
for rank in (2, 0, 0):
    board.board_publish_locality(rank, b"pmix.locstr", b"SK0")
print(board.board_locality(2), board.board_locality(0), board.board_locality(1))
for value in (b"old", b"newer"):
    board.board_publish(b"key", value, len(value))
entry = board.board_published(3, b"key")
print(entry, board.board_published(3, b"none"), board.board_published(2, b"key"))
"""


def test_what_a_killed_rank_had_half_written_is_never_there() -> None:
    """Fails with a row lock that the others wait for, as with a `board_publish_locality` that waits while
    `said` is SAYING, and where an entry counts before it is whole (`said` stored before `write_entry`)."""
    command = [sys.executable, "-c", HALF_WAY, str(paths.BOARD)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines() == ["None b'pmix.locstr' None", "b'key' None None"]
