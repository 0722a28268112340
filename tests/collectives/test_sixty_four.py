"""One run of everything at 64 ranks: puts with signals, dispatch and combine, idle ranks, status words."""

import pytest
from ranks import run_ranks

pytestmark = [pytest.mark.multirank, pytest.mark.slow, pytest.mark.timeout(300)]

PROGRAM = """
import numpy as np, emulator
from collectives import EpCosts, ExpertExchange, IdleStep, StatusWords
from memsem import Window
device = emulator.init()
me, n = device.rank, device.num_ranks
window, status = Window.create((n, 4), np.int32), StatusWords(device)
for peer in range(n):                                    # everybody writes a row of everybody's window
    window.put_signal(peer, np.full(4, me, np.int32), me * 4, 0, 1, "add")
window.signal_wait_until(0, "eq", n)
assert (window.local == np.arange(n)[:, None]).all()
T, K, H = 4, 8, 128
exchange = ExpertExchange(device, 4, H, T, K)
for event in range(4):
    rng = np.random.default_rng([event, me])
    x = rng.standard_normal((T, H)).astype(np.float32)
    ids = np.stack([np.sort(rng.permutation(4 * n)[:K]) for _ in range(T)])
    w = rng.random((T, K)).astype(np.float32)
    handle = exchange.dispatch(x, ids)
    out = exchange.combine(handle, handle.rows, w)
    want = w[:, 0, None] * x
    for k in range(1, K):
        want += w[:, k, None] * x
    assert np.array_equal(out, want)
costs = EpCosts(7680)
if me == 5:                                              # one rank has a token, the others sleep or serve
    handle = exchange.dispatch(x[:1], np.array([[0, 1, 2, 3, 8, 9, 10, 11]]), costs)
    exchange.combine(handle, handle.rows, w[:1], costs)
else:
    index, handle = exchange.idle([IdleStep(False, costs), IdleStep(True, costs)])
    assert (index, len(handle.rows)) == ((0, 4) if me in (0, 2) else (1, 0))
    if not index:
        exchange.combine(handle, handle.rows, w[:0], costs)
clocks = status.exchange(device.now_ps)
report(clock=device.now_ps, latest=int(clocks.max()))
"""


def test_sixty_four_ranks():
    shared = run_ranks(64, PROGRAM, heap_bytes=1 << 20, timeout_s=250)
    assert len(shared.reports) == 64 and len({r["latest"] for r in shared.reports.values()}) == 1
