"""A rank killed after it took the engine's lock, before it said who it is: nobody else passes for dead."""

import ctypes
import dataclasses
import os
import signal

import pytest
from harness import KINDS, Shared
from test_closed_form import machine

from emulator.engine import hostcalls


def lock_of(shared, engine) -> int:
    """Where the engine's lock is: in the core it is the first thing in the buffer."""
    buffer = ctypes.addressof(ctypes.c_char.from_buffer(shared.buf))
    return getattr(engine, "_lock", buffer)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("entered", [False, True], ids=["never entered", "the living entered before"])
def test_the_last_holder_is_not_taken_for_the_dead(kind, entered):
    """Shown to fail where a holder does not take its name back when it lets go (BREAK_OWNER): rank 0 was
    marked dead, by the next to enter; so was rank 0 of a twin that nobody had entered."""
    shared = Shared(dataclasses.replace(machine(3), keep_going=True, wall_deadline_s=15), kind)
    engines = [shared.attach(rank) for rank in range(3)]
    if entered:
        engines[0].compute(50, publish=True)
    pid = os.fork()
    if not pid:
        assert hostcalls.lock_mutex(lock_of(shared, engines[2]), 15) == 0
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    for rank in (1, 0):
        engines[rank].compute(50, publish=True)
        assert engines[rank].dead_ranks() == []
    engines[1].mark_dead(2)
    assert engines[0].dead_ranks() == [2]
