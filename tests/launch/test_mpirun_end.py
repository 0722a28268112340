"""An mpirun that stays when its ranks have ended (PRRTE 3 does at times) does not keep the command."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from sandbox import Sandbox

from launch.mpirun import find_mpirun
from launch.mpirun_end import Overdue

STAYS = """#!/bin/sh
trap '' TERM
'{mpirun}' "$@"
exec sleep 1000
"""
RUN = """
import sys
from launch import mpirun, mpirun_end, run

mpirun.find_mpirun = lambda: sys.argv[1]
mpirun_end.Overdue.__init__.__defaults__ = (1.0,)
print(run.run_job(2, [sys.argv[2]]).exit_code)
"""


def test_the_command_ends_when_mpirun_does_not(sandbox: Sandbox, tmp_path: Path) -> None:
    """Fails where `_Job.watch` does not ask `Overdue`: the command stays for ever."""
    stays, program = tmp_path / "mpirun", tmp_path / "program.py"
    stays.write_text(STAYS.format(mpirun=find_mpirun()))
    stays.chmod(0o755)
    program.write_text("print('hello')\n")
    ran = sandbox.run([sys.executable, "-c", RUN, str(stays), str(program)])
    assert ran.stdout.split() == ["hello", "hello", "1"]
    told = "all ranks have ended, but mpirun has not, and is ended; their exit codes are not known"
    assert ran.stderr == f"superpod: error: {told}\n"
    sandbox.assert_clean()


def test_an_mpirun_without_ranks_yet_or_with_some_is_not_overdue() -> None:
    command = ["sh", "-c", "read go; sleep 1000; :"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    assert child.stdin is not None
    try:
        overdue = Overdue(child.pid, patience_s=0.0)
        assert not overdue()
        child.stdin.close()
        deadline_s = time.monotonic() + 3
        while time.monotonic() < deadline_s:
            assert not overdue()
            time.sleep(0.05)
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
