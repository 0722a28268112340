"""Rank 3 is killed for good; the others hear of it at one virtual time and go on without it.

superpod run -n 8 --keep-going examples/killed_rank.py
"""

import os
import signal

import numpy as np

import emulator
from collectives import coll
from collectives.groups import Group
from emulator.errors import RankLostError

device = emulator.init()
world, total = Group.world(device), np.empty(1)
coll.all_reduce(world, np.ones(1), total)
if device.rank == 3:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    coll.all_reduce(world, np.ones(1), total)
except RankLostError as lost:
    heard_ps = device.now_ps
    living = Group.of(device, [rank for rank in range(world.size) if rank not in lost.ranks])
    coll.all_reduce(living, np.ones(1), total)
    print(f"rank {device.rank}: lost {list(lost.ranks)} at {heard_ps} ps, {total[0]:.0f} go on", flush=True)
