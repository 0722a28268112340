"""Exchanges that go on among the living: rank 2 dies in the third, rank 1 while the others recover."""

import os
import signal

import numpy as np

import emulator
from emulator.errors import MembershipChanged
from emulator.testing import report

device = emulator.init()
device.engine.subscribe()
device.barrier()
device.compute(1000 * (device.rank + 1))
seen, living, channel, steps = [], list(range(device.num_ranks)), 2, 0
tags = np.empty(0, np.int64)
while steps < 6:
    if (device.rank == 2 and steps == 2) or (device.rank == 1 and seen):
        device.engine.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        tags = device.exchange(channel, None, 0, 32, tag=device.rank).tags
        steps += 1
    except MembershipChanged as change:
        seen.append([device.now_ps, list(change.ranks), change.epoch])
        living = [rank for rank in living if rank not in change.ranks]
        device.open_group(channel, np.array(living, np.int32))
report(seen=seen, now=device.now_ps, tags=tags.tolist())
emulator.finalize()
