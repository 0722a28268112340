"""However `superpod chaos` ends, its mpirun and ranks end with it."""

import os
import signal
from pathlib import Path

import pytest
from sandbox import BIN, Sandbox, wait_for

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(280)]


@pytest.mark.parametrize("signum", [pytest.param(signal.SIGTERM, marks=pytest.mark.sweep), signal.SIGKILL])
def test_a_killed_chaos_leaves_no_rank(sandbox: Sandbox, signum: signal.Signals) -> None:
    """Fails on a build whose mpirun is not tied to the command. What kill -9 leaves of its files, the next
    run removes."""
    words = ["chaos", "-n", "4", "--requests", "60", "--seeds", "50", "--no-shrink"]
    command = sandbox.popen([str(BIN / "superpod"), *words])
    wait_for(lambda: sandbox.processes("prterun"), 180)
    (mpirun,) = sandbox.processes("prterun")[:1]
    os.kill(command.pid, signum)
    command.wait(60)
    wait_for(lambda: not Path(f"/proc/{mpirun}").exists())
    wait_for(lambda: not list(Path("/dev/shm").glob(f"superpod-*-prterun-*-{mpirun}@*")))
    if signum == signal.SIGKILL:
        program = sandbox.pids_dir / "nothing.py"
        program.write_text("")
        assert sandbox.run(sandbox.superpod(1, str(program))).returncode == 0
    sandbox.assert_clean()
