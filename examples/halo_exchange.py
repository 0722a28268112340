"""A ring of cells in strips: exchange edges, average, ten times (on 2, 4, … 16 ranks)."""

import numpy as np

import emulator
from memsem import Window

emulator.init()
me, n = emulator.rank(), emulator.num_ranks()
sides = {"left": (me - 1) % n, "right": (me + 1) % n}
halo = Window.create((2, 2), np.float64)  # [step parity, from the left or the right]
cells = np.arange(me * 8, me * 8 + 8, dtype=np.float64)
emulator.barrier()
emulator.sleep_ps(100_000_000 - emulator.now_ps())  # all go on together, at 100 us and the call's 5 ns
for step in range(10):
    for side in ("left", "right") if me % 2 == 0 else ("right", "left"):  # the far neighbour first
        edge, place = (cells[:1], 1) if side == "left" else (cells[-1:], 0)
        halo.put_signal(sides[side], edge, 2 * (step % 2) + place, signal=place, value=step + 1)
    for signal in (0, 1) if me % 2 == 0 else (1, 0):
        halo.signal_wait_until(signal, "ge", step + 1)
    wide = np.concatenate([halo.local[step % 2, :1], cells, halo.local[step % 2, 1:]])
    emulator.compute(ps=2_000_000)
    cells = (wide[:-2] + wide[1:-1] + wide[2:]) / 3
took_ps = emulator.now_ps() - 100_005_000
# A step: 5 ns to post, 8 bytes over 1.2 us at 138 GB/s (58 ps), reading that signal, the other wait and its
# reading, 5 ns each, and 2 us of computing with its call. On one chip (2 ranks) 0.2 us at 210 GB/s (39 ps).
expected_ps = 10 * (5_000 + (1_200_058 if n > 2 else 200_039) + 15_000 + 2_005_000)
assert took_ps == expected_ps, (took_ps, expected_ps)
print(f"rank {me}: {took_ps} ps")
