"""What a rank keeps of operations nobody asks about any more: nothing."""

import numpy as np

from emulator.solo import solo_device
from memsem import Window
from memsem.operations import MAX_TRACKED, Operations


def test_puts_that_nobody_holds_are_not_kept_and_those_held_are_known_done_after_one_wait():
    """A program that signals and never calls quiet used to keep an object for every put."""
    device = solo_device()
    window, ops = Window.create(8, np.int64, device=device), Operations.of(device)
    held = [window.put_nbi(0, np.zeros(1, np.int64)) for _ in range(MAX_TRACKED + 100)]
    for _ in range(500):
        window.put_nbi(0, np.zeros(1, np.int64))
    assert len(ops._untracked) == 100
    held[-1].wait()
    assert all(pending.is_done for pending in held) and not ops._untracked
