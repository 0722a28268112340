"""Atomics on window elements: every operation, width and engine; contended ones are the same on every run."""

import pytest
from ranks import run_ranks

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(240)]
CASES = [("shared", "c"), ("rma", "python"), ("rma", "c"), ("shared", "python")]

EACH = """
import numpy as np, emulator
from memsem import Window
device = emulator.init()
me, n = device.rank, device.num_ranks
for kind in (np.int32, np.uint32, np.int64, np.uint64):
    window = Window.create(8, kind)
    info = np.iinfo(kind)
    device.barrier()
    if me == 0:
        peer = n - 1
        assert window.fetch_add(peer, 1, info.max) == 0
        assert window.fetch_add(peer, 1, 1) == info.max          # wraps
        assert window.fetch(peer, 1) == info.min
        assert window.swap(peer, 2, 12) == 0 and window.swap(peer, 2, 10) == 12
        assert window.fetch_and(peer, 2, 6) == 10 and window.fetch_or(peer, 2, 9) == 2
        assert window.fetch_xor(peer, 2, 3) == 11 and window.fetch(peer, 2) == 8
        assert window.compare_swap(peer, 2, 7, 1) == 8           # not there: nothing changes
        assert window.compare_swap(peer, 2, 8, info.max) == 8
        assert window.compare_swap(peer, 2, info.max, 5) == info.max
        window.set(peer, 3, 40)
        window.quiet()
        window.add(peer, 3, 2)
        pending = [window.fetch_add_nbi(peer, 4, 3), window.swap_nbi(peer, 5, 9)]
        pending.append(window.compare_swap_nbi(peer, 6, 0, 4))
        assert pending[0].wait() == 0 and not pending[1].is_done
        window.quiet()
        assert [p.result for p in pending] == [0, 0, 0] and all(p.is_done for p in pending)
        assert window.fetch_add(0, 0, 6) == 0                    # on my own
    device.barrier()
    if me == n - 1:
        assert window.load().tolist() == [0 if n > 1 else 6, info.min, 5, 42, 3, 9, 4, 0]
report(ok=True)
"""


@pytest.mark.parametrize(("transport", "engine"), CASES)
@pytest.mark.parametrize("n", [1, 2])
def test_each_operation_on_each_type(n, transport, engine):
    """Shown to fail with a compare-and-swap that stores whatever it finds."""
    assert run_ranks(n, EACH, transport=transport, engine=engine).reports[0]["ok"]


CONTENDED = """
import numpy as np, emulator
from memsem import Window
device = emulator.init()
me, n = device.rank, device.num_ranks
window = Window.create(2, np.int64)
device.barrier()
old = [window.fetch_add(HOME, 0, 1) for _ in range(1000 // n)]
device.barrier()
report(old=old, end=int(window.get(HOME, 0, 1)[0]), now=device.now_ps)
"""


@pytest.mark.parametrize("home", [0, 3])
def test_a_thousand_contended_fetch_adds_are_the_same_on_every_run(home):
    """Over 8 ranks: all numbers once, the same ones for each rank in every run, with host jitter, both
    transports and both engines. Shown to fail with an element that an atomic finds changed by its poster."""
    program = CONTENDED.replace("HOME", str(home))
    first = run_ranks(8, program, transport="shared", engine="c")
    drawn = [old for rank in first.reports.values() for old in rank["old"]]
    assert sorted(drawn) == list(range(1000)) and first.reports[0]["end"] == 1000
    jitter = {"SUPERPOD_JITTER": "0.02,300,7"}
    for transport, engine, env in [("shared", "c", jitter), ("rma", "c", {}), ("shared", "python", {})]:
        again = run_ranks(8, program, transport=transport, engine=engine, env=env)
        assert again.reports == first.reports and again.sha == first.sha


MIXED = """
import numpy as np, emulator
from memsem import Window
device = emulator.init()
me, n = device.rank, device.num_ranks
window = Window.create(4, np.int32)
device.barrier()
if me == 1:                                              # put, then a fence, then an atomic on the same
    window.put(0, np.array([100], np.int32), 1)
    window.fence()
    old = window.fetch_add(0, 1, 1)
    window.add(0, 2, 5)                                  # an atomic, then a fence, then a put
    window.fence()
    window.put(0, np.array([7], np.int32), 2)
    window.quiet()
    report(old=old)
elif me == 0:
    device.sleep_ps(1_000_000_000)
    report(now=window.load().tolist())
"""


@pytest.mark.parametrize("delivery", ["natural", "adversarial"])
@pytest.mark.parametrize(("transport", "engine"), CASES[:2])
def test_a_fence_orders_atomics_and_puts(transport, engine, delivery):
    """memory_model.md: put, fence, fetch_add to one home. Shown to fail with a fence that does nothing."""
    for seed in range(3):
        ran = run_ranks(2, MIXED, transport=transport, engine=engine, delivery=delivery, seed=seed)
        assert ran.reports[1]["old"] == 100 and ran.reports[0]["now"] == [0, 101, 7, 0]


MANY = """
import numpy as np, emulator
from memsem import Window
device = emulator.init()
window = Window.create(1, np.uint32)
device.barrier()
for _ in range(1000):                                    # nobody looks: more than may be under way
    window.add((device.rank + 1) % device.num_ranks, 0, 3)
device.barrier()
report(sum=int(window.load()[0]))
"""


@pytest.mark.parametrize(("transport", "engine"), CASES[:2])
def test_a_thousand_atomics_that_nobody_waits_for(transport, engine):
    ran = run_ranks(2, MANY, transport=transport, engine=engine)
    assert [r["sum"] for r in ran.reports.values()] == [3000, 3000]


REFUSED = """
import numpy as np, emulator, pytest
from emulator.errors import DtypeError, OffsetError, UsageError
from memsem import Window
device = emulator.init()
window, floats, small = Window.create(4, np.uint32), Window.create(4), Window.create(4, np.int16)
def refused(kind, match, call, *args):
    before = device.now_ps
    with pytest.raises(kind, match=match) as caught:
        call(*args)
    assert device.now_ps == before and caught.value.rank == device.rank
refused(DtypeError, "the window holds uint8", floats.fetch_add, 0, 0, 1)
refused(DtypeError, "the window holds int16", small.add, 0, 0, 1)
refused(DtypeError, "-1 does not fit the window's uint32", window.fetch_add, 0, 0, -1)
refused(DtypeError, "1.5 does not fit", window.swap, 0, 0, 1.5)
refused(DtypeError, "4294967296 does not fit", window.compare_swap, 0, 0, 1 << 32, 0)
refused(OffsetError, "elements 4 to 5", window.fetch_add, 0, 4, 1)
refused(OffsetError, "elements -1 to 0", window.fetch, 0, -1)
refused(UsageError, "no rank 2", window.fetch, 2, 0)
report(ok=True)
"""


def test_misuse_is_named_and_costs_nothing():
    assert set(run_ranks(2, REFUSED).reports) == {0, 1}
