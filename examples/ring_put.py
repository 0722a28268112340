"""Each rank puts 4 KB to its right and waits for the 4 KB from its left (run it on 1 to 16 ranks)."""

import numpy as np

import emulator
from memsem import Window

device = emulator.init()
me, n = emulator.rank(), emulator.num_ranks()
left, right = (me - 1) % n, (me + 1) % n
window = Window.create(512, np.float64)
emulator.barrier()
emulator.sleep_ps(100_000_000 - emulator.now_ps())  # all go on together, at 100 us
start_ps = emulator.now_ps()
window.put_signal(right, np.full(512, me, np.float64), 0, signal=0, value=1)
assert window.signal_wait_until(0, "eq", 1) == 1
took_ps = emulator.now_ps() - start_ps
assert (window.local == left).all()

# The call, 5 ns; the flight; reading the signal, 5 ns. The flight: from myself 0.1 us + 4,096 B / 672 GB/s,
# from the other die of the chip 0.2 us + 4,096 B / 210 GB/s, from another chip 1.2 us + 4,096 B / 138 GB/s.
expected_ps = 10_000 + (106_096 if left == me else 219_505 if left // 2 == me // 2 else 1_229_682)
assert took_ps == expected_ps, (took_ps, expected_ps)
print(f"rank {me}: {took_ps} ps")
