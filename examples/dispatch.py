"""Mixture of experts: every token to two experts and back (2 ranks for the exact time, or more)."""

import numpy as np

import emulator
from collectives import EpCosts, ExpertExchange

device = emulator.init()
me, n, hidden = device.rank, device.num_ranks, 64
exchange = ExpertExchange(device, slots=1, hidden=hidden, max_tokens=n, topk=2)
emulator.barrier()
emulator.sleep_ps(100_000_000 - emulator.now_ps())  # all go on together, at 100 us
start_ps = emulator.now_ps()
x = np.random.default_rng(me).standard_normal((n, hidden)).astype(np.float32)
experts = np.stack([np.arange(n), (np.arange(n) + 1) % n], axis=1)  # token t to experts t and t + 1
handle = exchange.dispatch(x, experts, EpCosts(row_bytes=7680))
y = exchange.combine(handle, 2 * handle.rows, np.full((n, 2), 0.5, np.float32), EpCosts(row_bytes=14336))
took_ps = emulator.now_ps() - start_ps
assert np.array_equal(y, 2 * x)  # two halves of a doubled row
# On one chip: the call 5 ns, the other's record 0.2 us + 32 B / 210 GB/s (153 ps), its two rows 0.2 us +
# 2 x 7,680 B / 210 GB/s (73,143 ps), and the same way back with 14,336 B a row (136,534 ps).
expected_ps = (5_000 + 200_153 + 200_000 + 73_143) + (5_000 + 200_153 + 200_000 + 136_534)
assert n > 2 or took_ps == expected_ps, (took_ps, expected_ps)
print(f"rank {me}: {took_ps} ps")
