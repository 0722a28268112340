"""Programs that fork, thread or end in ways a rank does not expect: said, and never a hang."""

import pytest
from sandbox import Sandbox

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(120)]
N = 4
START = """import os, sys, threading
import numpy as np
import emulator
device = emulator.init()
me = device.rank
"""

FORKED = """
child = os.fork()
if child == 0:
    for call in (device.barrier, emulator.barrier, emulator.init, lambda: emulator.sleep_ps(1)):
        try:
            call()
        except emulator.errors.UsageError as error:
            print("refused:", error, flush=True)
    sys.exit(0)   # runs what a rank does at exit, in a process that is none
assert os.waitpid(child, 0)[1] == 0
device.barrier()
print(f"rank {me} went on")
"""
THREADS = """
def meet():
    try:
        device.barrier()
    except emulator.errors.StateError as error:
        print("refused:", error, flush=True)
        device_free.set()
device_free = threading.Event()
if me == 0:   # the others come only when one of the two is in the call and the other was refused
    both = [threading.Thread(target=meet) for _ in range(2)]
    [t.start() for t in both]
    device_free.wait()
    open(sys.argv[1], "w").close()
    [t.join() for t in both]
else:
    import time
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    device.barrier()
print(f"rank {me} went on")
"""
NUMBERS = """
emulator.sleep_ps(np.int64(5))
device.compute(np.int32(5))
for call in (emulator.sleep_ps, device.compute):
    for wrong in (1.5, "1", None if call is emulator.sleep_ps else 2.0):
        try:
            call(wrong)
        except emulator.errors.UsageError as error:
            print("refused:", error, flush=True)
"""


def run(sandbox: Sandbox, text: str, *words: str) -> tuple[int, str, str]:
    program = sandbox.pids_dir / "program.py"
    program.write_text(START + text)
    result = sandbox.run(sandbox.superpod(N, str(program), *words), timeout=60)
    sandbox.assert_clean()
    return result.returncode, result.stdout, result.stderr


def test_a_process_forked_from_a_rank_is_none(sandbox: Sandbox) -> None:
    """Fails without `_forked`: the child's barrier counts as its parent's, and its exit waits for ever."""
    code, out, err = run(sandbox, FORKED)
    assert (code, err) == (0, "")
    assert out.count("refused: this process was forked from a rank") == N
    assert out.count("refused:") == 4 * N and out.count("went on") == N


def test_two_threads_of_a_rank_in_calls_at_once(sandbox: Sandbox) -> None:
    """Fails without `_enter`: both wait, and the run hangs."""
    code, out, err = run(sandbox, THREADS, str(sandbox.pids_dir / "refused"))
    assert (code, err) == (0, "")
    assert out.count("refused: another thread of this rank is in a call") == 1
    assert out.count("went on") == N


def test_durations_are_whole_numbers(sandbox: Sandbox) -> None:
    """Fails with `_amount` as it was: ctypes.ArgumentError."""
    code, out, err = run(sandbox, NUMBERS)
    assert (code, err) == (0, "")
    assert out.count("must be a whole number") == 6 * N


def test_abort_ends_all_ranks_with_its_code(sandbox: Sandbox) -> None:
    """Fails with an Abort that ends the engine alone: tracebacks of InternalError, exit code 1."""
    text = "from memsem import mpi\nprint('said')\nmpi.COMM_WORLD.Abort(7) if me == 1 else device.barrier()\n"
    code, out, err = run(sandbox, text)
    assert code == 7 and "Traceback" not in err and "MPI_ABORT was invoked on rank 1" in err
    assert "said" in out
