"""What a run leaves that has ended by a time-out of its program."""

from pathlib import Path

import pytest
from sandbox import Sandbox

WAITING = """
import numpy as np
import emulator
from collectives import coll
from collectives.groups import Group
device = emulator.init()
world = Group.world(device)
coll.barrier(world)
world.timeout_ps = 5_000_000
if device.rank == 5:
    device.compute(500_000_000)
    raise SystemExit(0)
coll.all_to_all(world, np.ones(8 * 4096, np.float32), np.empty(8 * 4096, np.float32))
"""


@pytest.mark.parametrize("how", ["superpod", "mpirun"])
def test_a_run_that_ends_by_a_time_out_leaves_nothing(sandbox: Sandbox, how: str) -> None:
    """vLLM #46509: after a time-out its processes and shared memory stayed. Seven of eight ranks time out in
    a collective that one never enters, with rows under way, and nobody catches it. Mutation seen to fail
    here: the directory in /dev/shm is not removed at the end of a run, or of a job."""
    program = Path(sandbox.pids_dir / "waiting.py")
    program.write_text(WAITING)
    command = {"superpod": sandbox.superpod, "mpirun": sandbox.forked}[how]
    ended = sandbox.run(command(8, str(program)))
    assert ended.returncode == 1, ended.stderr
    assert "CollectiveTimeoutError" in ended.stderr and "rank 5 had not entered" in ended.stderr
    sandbox.assert_clean()
