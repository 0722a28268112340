"""kill -9 of whatever a run consists of, at random instants: nothing hangs, and nothing is left.

Fails where a directory in /dev/shm with a segment in it stays for ever (`_remove_unheld` that removes empty
ones only), as when the fork server and all of a job under the user's own mpirun are killed at once.
"""

import contextlib
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from sandbox import Sandbox, wait_for

pytestmark = [pytest.mark.multirank, pytest.mark.sweep, pytest.mark.timeout(1200)]
ROUNDS = 12
PROGRAM = """
import time
import emulator
device = emulator.init()
for _ in range(150):
    device.barrier()
    time.sleep(0.05)
"""


def victims(sandbox: Sandbox, rng: random.Random) -> tuple[str, list[int]]:
    """One process, all that were started from one command line, or everything."""
    found = sandbox.processes()
    how = rng.choice(["one", "one", "alike", "everything"])
    if how == "everything" or not found:
        return how, found
    chosen = rng.choice(found)
    if how == "one":
        return how, [chosen]
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{chosen}/cmdline").read_text().replace("\0", " ").split()[:4]
        return how, sandbox.processes("\0".join(words))
    return how, found


def shared(sandbox: Sandbox) -> list[Path]:
    """What there is in /dev/shm of the sandbox."""
    return [p for p in Path("/dev/shm").iterdir() if any(name in p.name for name in sandbox.names)]


def one_round(rng: random.Random, program: str) -> None:
    with Sandbox() as sandbox:
        path = sandbox.pids_dir / "program.py"
        path.write_text(program)
        launch, options = rng.choice(
            [(sandbox.superpod, ()), (sandbox.superpod, ("--no-accelerate",)), (sandbox.forked, ())]
        )
        running = sandbox.popen(
            launch(4, str(path), options=options),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        time.sleep(rng.uniform(0.1, 11.0))
        sandbox._note_names()
        how, killed = victims(sandbox, rng)
        print(launch.__name__, *options, how, len(killed), flush=True)
        for pid in rng.sample(killed, len(killed)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        running.wait(60)
        wait_for(lambda: not sandbox.processes())
        if how != "one":  # with the fork server nobody may be left to remove the files: a later run does
            for _ in range(3):  # the next, or the one after it: who is about to end may hold them still
                for directory in shared(sandbox):
                    os.utime(directory, (0, 0))
                assert sandbox.run(sandbox.superpod(1, "-m", "this")).returncode == 0
                if not shared(sandbox) and not sandbox._left_files():
                    break
            print(*sandbox.tmp.glob("superpod-*/*"), flush=True)
            wait_for(lambda: not shared(sandbox))
        if (
            how == "one" or launch != sandbox.forked
        ):  # Open MPI's own session of an mpirun that was killed stays
            sandbox.assert_clean()


def test_nothing_is_left_whatever_is_killed_whenever() -> None:
    seed = int(os.environ.get("SUPERPOD_TEST_SEED", time.time_ns() % 1_000_000))
    print(f"seed {seed} (SUPERPOD_TEST_SEED)")
    rng = random.Random(seed)
    for _ in range(ROUNDS):
        one_round(rng, PROGRAM)
