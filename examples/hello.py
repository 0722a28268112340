"""Each rank puts 4 KB into its right neighbour's memory: the smallest program of windows."""

import numpy as np

import emulator
from memsem import Window

emulator.init()
me, n = emulator.rank(), emulator.num_ranks()
win = Window.create(1024, np.float32)
win.put((me + 1) % n, np.full(1024, me, np.float32))
emulator.barrier()
print(f"rank {me} has the bytes of rank {win.local[0]:.0f} at {emulator.now_ps()} ps")
emulator.finalize()
