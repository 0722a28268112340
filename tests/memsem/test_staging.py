"""Staging: full pools, spill files, exited targets, many to one; none of it shows in virtual time."""

import pytest
from ranks import run_ranks

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(300)]
MIB = 1 << 20

GIGABYTE = """
import glob
import numpy as np, emulator
from memsem import Window
device = emulator.init()
window = Window.create(2 << 20, np.int64)               # 16 MB
device.barrier()
start = device.now_ps
if device.rank == 0:
    data = np.arange(2 << 20)
    for round in range(PUTS):
        data += 1
        window.put(1, data)
    window.put_signal(1, data[:0], 0, 0, 1)
    window.quiet()
    report(ps=device.now_ps - start)
else:
    window.signal_wait_until(0, "eq", 1)
    assert np.array_equal(window.local, np.arange(2 << 20) + PUTS)
    job = int(device.board.header[device.board.HEADER_JOB])
    report(ok=True, left=len(glob.glob(f"/dev/shm/superpod-{job:016x}-*")))
"""


def test_a_gigabyte_of_puts_to_a_rank_that_waits_for_a_later_signal():
    """64 puts of 16 MB: the pool takes none of them, and none may be applied before the poster goes on."""
    ran = run_ranks(2, GIGABYTE.replace("PUTS", "64"), heap_bytes=17 * MIB, timeout_s=200)
    assert ran.reports[1]["ok"] and ran.result["host"]["spilled"] == 64
    assert ran.reports[1]["left"] == 0  # each file is gone once applied


@pytest.mark.parametrize("transport", ["shared", "rma"])
def test_pool_size_does_not_show_in_virtual_time(transport):
    program = GIGABYTE.replace("PUTS", "6")
    small = run_ranks(2, program, heap_bytes=17 * MIB, staging_bytes=4096, transport=transport)
    large = run_ranks(2, program, heap_bytes=17 * MIB, staging_bytes=112 * MIB, transport=transport)
    assert small.result["host"]["spilled"] == 6 and large.result["host"]["spilled"] == 0
    assert small.sha == large.sha


EXITED = """
import numpy as np, emulator
from memsem import Window
device = emulator.init()
window = Window.create(1 << 16, np.uint8)
device.barrier()
if device.rank == 1:
    device.finish()                                      # early exit: issues nothing any more
    emulator.finalize()
else:
    data = np.zeros(1 << 16, np.uint8)
    for round in range(200):                             # 200 x 64 KB through a pool of 256 KB
        data[:] = round
        window.put(1, data)
        if round % 3 == 2:
            window.quiet()
    window.quiet()
    assert (window.get(1) == 199).all()
    report(ok=True)
"""


@pytest.mark.parametrize("transport", ["shared", "rma"])
def test_puts_to_an_exited_rank_are_applied_by_the_poster(transport):
    ran = run_ranks(2, EXITED, staging_bytes=MIB // 4, transport=transport)
    assert ran.reports[0]["ok"] and ran.result["host"]["spilled"] == 0


INCAST = """
import numpy as np, emulator
from memsem import Window
device = emulator.init()
me, n = device.rank, device.num_ranks
window = Window.create((n, 3000), np.int32)
device.barrier()
for round in range(4):
    if me:
        window.put_signal(0, np.full(3000, 100 * me + round, np.int32), me * 3000, 0, 1, "add")
if me == 0:
    window.signal_wait_until(0, "eq", 4 * (n - 1))
    assert np.array_equal(window.local[1:, 0], 100 * np.arange(1, n) + 3)
    assert (window.local[1:] == window.local[1:, :1]).all()
    report(now=device.now_ps)
"""


@pytest.mark.parametrize("transport", ["shared", "rma"])
@pytest.mark.parametrize("staging", [4096, 64 * 1024, 4 * MIB])
def test_all_but_one_to_one(transport, staging):
    ran = run_ranks(16, INCAST, staging_bytes=staging, transport=transport)
    assert ran.reports[0]["now"] == ran.result["virtual_ps"]


MANY_GETS = """
import numpy as np, emulator
from memsem import Window
from emulator.errors import UsageError
device = emulator.init()
me, n = device.rank, device.num_ranks
window = Window.create(5000, np.uint8)
window.store(0, np.full(5000, me, np.uint8))
device.barrier()
peer, base = (me + 1) % n, 0
handles = [device.start_get(peer, base, 5000, 5000) for _ in range(100)]     # far more than the pool holds
for handle in handles:
    assert (device.wait_get(handle) == peer).all()
extra = [device.start_get(peer, base, 8, 8) for _ in range(256)]
try:
    device.start_get(peer, base, 8, 8)
    raise SystemExit("257 gets under way were accepted")
except UsageError as error:
    assert "256 gets" in str(error)
for handle in reversed(extra):
    assert (device.wait_get(handle) == peer).all()
device.barrier()
report(ok=True)
"""


@pytest.mark.parametrize("transport", ["shared", "rma"])
def test_many_gets_under_way(transport):
    assert len(run_ranks(3, MANY_GETS, staging_bytes=16384, transport=transport).reports) == 3


FLOOD = """
import numpy as np, emulator, pytest
from memsem import Window
from emulator.errors import UsageError
device = emulator.init()
window = Window.create(4, np.uint8)
device.barrier()
if device.rank == 0:
    with pytest.raises(UsageError, match="64 puts and gets to rank 1 .* raise log_entries"):
        for _ in range(65):
            window.put(1, [1])
    window.quiet()
device.barrier()
report(ok=True)
"""


def test_a_flood_of_unobserved_puts_is_refused_before_the_log_overflows():
    assert len(run_ranks(2, FLOOD, log_entries=64).reports) == 2
