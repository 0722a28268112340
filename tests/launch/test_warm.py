"""A private fork server forked from one that stays up is like one started from nothing.

Most of it is shown by the tests of launching, whose sandboxes are warm; here what they would not notice. A
build in which all host states share a server, or whose server does not end with its command, fails.
"""

import json
import os
import shutil
import signal
import subprocess

import pytest
from sandbox import PROGRAMS, Sandbox, parent_of, wait_for

from launch import warm

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(120)]

SHOW = """
import json, os, resource, sys
print(json.dumps([
    sorted(os.sched_getaffinity(0)), os.getpriority(os.PRIO_PROCESS, 0),
    resource.getrlimit(resource.RLIMIT_CORE),
    resource.getrlimit(resource.RLIMIT_FSIZE),
    os.environ.get("MINE"), os.getcwd(), sys.stdin.read(),
    os.umask(0o22), os.path.exists("/proc/self/fd/2"),
]))
"""


def narrowed() -> None:
    """In the child that becomes the command."""
    import resource

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.nice(3)
    os.umask(0o27)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 33, resource.RLIM_INFINITY))


def test_the_host_state_of_the_command_is_its_ranks(sandbox: Sandbox, alone: Sandbox) -> None:
    shown = []
    usual = sandbox.pids_dir / "usual.py"
    usual.write_text("print(1)\n")
    assert sandbox.run(sandbox.superpod(1, str(usual))).stdout == "1\n"
    for place in (sandbox, alone, sandbox):
        program = place.pids_dir / "show.py"
        program.write_text(SHOW)
        command = place.superpod(1, str(program))
        env = {"MINE": "yes"}
        ran = place.run(command, input="to rank 0", env=env, cwd="/usr", preexec_fn=narrowed)
        assert ran.returncode == 0, ran.stderr
        shown.append(json.loads(ran.stdout))
        place.assert_clean()
    assert shown[0] == shown[1] == shown[2]
    assert shown[0][1] == 3 and shown[0][4:7] == ["yes", "/usr", "to rank 0"]


def test_one_server_serves_runs_beside_each_other_and_after(sandbox: Sandbox) -> None:
    """Each run has a server of its own, all of one parent that stays; killing one run leaves the other."""
    hold = str(PROGRAMS / "hold.py")
    places = [Sandbox(sandbox.grounds) for _ in range(2)]
    running = [p.popen(p.superpod(2, hold, str(p.pids_dir)), start_new_session=True) for p in places]
    ranks = [p.rank_pids(2) for p in places]
    private = [parent_of(parent_of(pids[0])) for pids in ranks]
    standing = parent_of(private[0])
    assert private[0] != private[1] and standing == parent_of(private[1])
    running[0].kill()
    running[0].wait(60)
    wait_for(lambda: not any(os.path.exists(f"/proc/{p}") for p in ranks[0]))
    assert running[1].poll() is None and all(os.path.exists(f"/proc/{p}") for p in ranks[1])
    (places[1].pids_dir / "go").touch()
    out, error = running[1].communicate(timeout=60)
    assert running[1].returncode == 0, (out, error)
    again = sandbox.popen(sandbox.superpod(2, hold, str(sandbox.pids_dir)))
    assert parent_of(parent_of(parent_of(sandbox.rank_pids(2)[0]))) == standing
    again.send_signal(signal.SIGTERM)
    again.communicate(timeout=60)
    for place in places:
        shutil.rmtree(place.pids_dir)
    sandbox.assert_clean()


def test_its_memory_is_weighed(sandbox: Sandbox) -> None:
    out = sandbox.pids_dir / "out.json"
    nap = str(PROGRAMS / "nap.py")
    ran = sandbox.run(sandbox.superpod(4, nap, options=("--json", str(out))))
    assert ran.returncode == 0, ran.stderr
    assert json.loads(out.read_text())["pss_gb"] > 0.02


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("0", False), ("", False), (None, False)])
def test_it_is_asked_for(value: str | None, expected: bool) -> None:
    same = {k: v for k, v in os.environ.items() if k != warm.VARIABLE}
    given = same if value is None else same | {warm.VARIABLE: value}
    assert warm.wanted(given) is expected
    assert not warm.wanted(given | {"OMP_NUM_THREADS": "7", "PYTHONPATH": "/nowhere"})


def test_a_borrowed_server_that_never_says_who_it_is_times_out() -> None:
    import socket

    ours, theirs = socket.socketpair()
    server = warm.BorrowedServer(ours)
    assert server.pid is None
    server.kill()
    with pytest.raises(subprocess.TimeoutExpired):
        server.wait(0.05)
    theirs.close()
    server.wait(60)
