"""A rank killed inside the engine's lock: its half-done entry is taken back byte for byte, survivors go on.

Broken builds these notice: BREAK_UNDO_SMALL (undo.c: stores of four bytes are not noted), and a library
without the journal (the run ends with a report instead).
"""

import dataclasses
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from harness import Shared
from test_closed_form import machine

from emulator.engine import ADD, GE
from emulator.engine.config import config_numbers
from emulator.engine.native_library import library_for, load

UNDO = library_for(True)
SETUP = Path(__file__).parents[2] / "setup.py"
pytestmark = pytest.mark.skipif(not UNDO, reason="the build with the undo journal is not there")


def going(n: int, **more):
    return dataclasses.replace(machine(n), keep_going=True, wall_deadline_s=15, **more)


def killed_at(lib, k: int, whole: int, act) -> bool:
    """Do `act` in a child that is killed at its k-th noted store; False if it did not come to that."""
    pid = os.fork()
    if not pid:
        lib.sp_undo_die(k, whole)
        act()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def busy_machine():
    """Three ranks with puts under way; ranks 0 and 2 have posted their rows of an exchange."""
    shared = Shared(going(3), "c")
    engines = [shared.attach(r) for r in range(3)]
    for engine in engines:
        for peer in range(3):
            engine.put(peer, 3000, word=peer, op=ADD, value=1)
        engine.compute(50, publish=True)
    for engine in (engines[0], engines[2]):
        engine.exchange_post(0, np.arange(3, dtype=np.int32), 64, 32)
        engine.compute(10**9, publish=True)
    return shared, engines


def differences(lib) -> tuple[int, set[int]]:
    """(how many kills, offsets of bytes that were not put back) over kills at every 23rd noted store.

    What the first kill leaves was written before the lock was taken: the rank's own row of its exchange.
    """
    shared, engines = busy_machine()
    now = np.frombuffer(shared.buf, dtype=np.uint8)
    before = now.copy()
    fields = 40 + 8 * len(
        config_numbers(shared.cfg)
    )  # magic, half, owner, dirty, fatal, rank, events, entries
    free = {*range(40), *range(fields + 16, fields + 32), *range(fields + 56, fields + 64)}
    journal = len(now) - 16 * 65536

    def act() -> None:
        engine = engines[1]
        engine.exchange_post(0, np.arange(3, dtype=np.int32), 64, 32)
        for peer in (0, 1, 2):
            engine.put(peer, 9000, word=1, op=ADD, value=2)
        engine.get(2, 100)
        engine.compute(10**8, publish=True)

    k, wrong = 0, set()
    while killed_at(lib, k, 1, act):
        assert lib.sp_undo_roll_back(now.ctypes.data) == 1
        changed = set(np.flatnonzero(now[:journal] != before[:journal]).tolist())
        free |= set() if k else changed
        wrong |= changed - free
        now[:] = before
        k += 23
    return k // 23, wrong


def test_every_half_done_entry_is_put_back():
    kills, wrong = differences(load(UNDO))
    assert kills >= 15 and not wrong, (kills, sorted(wrong)[:20])


def test_a_build_that_forgets_small_stores_is_noticed(tmp_path, monkeypatch):
    """BREAK_UNDO_SMALL; the compiler is called as the package's build does."""
    target = str(tmp_path / "broken.so")
    code = (
        "import sys; ns = {'__file__': sys.argv[1]}\n"
        "exec(open(sys.argv[1]).read().split('\\nsetup(')[0], ns)\n"
        "ns['FLAGS'][ns['UNDO']].append('-DBREAK_UNDO_SMALL')\n"
        "sys.exit(not ns['compile_native'](ns['UNDO'], sys.argv[2]))"
    )
    subprocess.run([sys.executable, "-c", code, SETUP, target], cwd=SETUP.parent, check=True)
    monkeypatch.setattr("emulator.engine.native.library_for", lambda _: target)
    assert differences(load(target))[1]


@pytest.mark.multirank
def test_survivors_go_on_after_a_kill_inside_the_lock():
    """Twelve runs of four ranks: rank 3 is killed at a random noted store; the others meet 40 times more."""
    seed = random.SystemRandom().randrange(1 << 30)
    print("seed", seed)
    draw, lib = random.Random(seed), load(UNDO)
    for _ in range(12):
        shared = Shared(going(4), "c")
        pids = [os.fork() or _be_rank(shared, r, lib, draw.randrange(3000)) for r in range(4)]
        assert os.waitstatus_to_exitcode(os.waitpid(pids[3], 0)[1]) == -signal.SIGKILL
        shared.attach(0).mark_dead(3)
        assert [os.waitpid(p, 0)[1] for p in pids[:3]] == [0, 0, 0], seed
        assert shared.attach(0).dead_ranks() == [3]


def _be_rank(shared: Shared, rank: int, lib, k: int) -> None:
    code = 1
    try:
        engine = shared.attach(rank)
        if rank == 3:
            lib.sp_undo_die(k, 0)
            while True:
                for peer in range(4):
                    engine.put(peer, 100, word=2, op=ADD, value=1)
                engine.quiet()
        for turn in range(1, 41):
            engine.put((rank + 1) % 3, 500, word=0, op=ADD, value=1)
            engine.put(3, 64, word=1, op=ADD, value=1)
            engine.wait([(0, GE, turn)])
        engine.finish()
        code = 0
    finally:
        os._exit(code)
