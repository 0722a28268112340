"""Strided copies and batches against numpy, and the batch against the loop it stands for."""

import pytest
from ranks import run_ranks

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(240)]
CASES = [("shared", "c"), ("rma", "python")]

STRIDES = """
import numpy as np, emulator
from memsem import Window
device = emulator.init()
me, n = device.rank, device.num_ranks
right = (me + 1) % n
seed = 20261129
random = np.random.default_rng(seed)                     # the same choices on every rank
for kind in ("u1", "<i4", "f8", "c16"):
    window = Window.create(300, kind)
    source = np.arange(300).astype(kind)
    for trial in range(6):
        block = int(random.integers(1, 5))
        far, near = (int(block + random.integers(0, 4)) for _ in range(2))
        count = int(random.integers(0, 200 // max(far, near)))
        offset, engine = int(random.integers(0, 50)), ("mte", "dma")[trial % 2]
        window.store(0, np.full(300, 99).astype(kind))
        device.barrier()
        window.iput(right, source, offset, far, near, count, block, engine=engine)
        device.barrier()
        want = np.full(300, 99).astype(kind)
        for i in range(count):
            want[offset + i * far : offset + i * far + block] = source[i * near : i * near + block]
        assert np.array_equal(window.local, want), (seed, kind, far, near, count, block)
        out = np.full(300, 77).astype(kind)
        assert window.iget(right, out, offset, near, far, count, block, engine=engine) is out
        back = np.full(300, 77).astype(kind)
        for i in range(count):
            back[i * near : i * near + block] = want[offset + i * far : offset + i * far + block]
        assert np.array_equal(out, back), (seed, kind, far, near, count, block)
        device.barrier()
report(ok=True)
"""


@pytest.mark.parametrize(("transport", "engine"), CASES)
def test_strided_copies_equal_numpy(transport, engine):
    """open-mpi/ompi #6275, PR 10138; also elements of 1 byte. Shown to fail with strides taken as bytes."""
    ran = run_ranks(3, STRIDES, transport=transport, engine=engine)
    assert [r["ok"] for r in ran.reports.values()] == [True] * 3


TRANSACTIONS = """
import numpy as np, emulator
from memsem import Window
device = emulator.init()
window = Window.create(64, np.uint8)
device.barrier()
if device.rank == 0:
    before = device.now_ps
    window.iput(1, np.zeros(8, np.uint8), 0, 1, 1)       # side by side: one operation
    one = device.now_ps - before
    window.iput(1, np.zeros(8, np.uint8), 0, 2, 1)       # apart: eight
    report(one=one, eight=device.now_ps - before - one, price=device.engine.config.call_price_ps)
device.barrier()
"""


def test_what_lies_side_by_side_travels_together():
    got = run_ranks(2, TRANSACTIONS).reports[0]
    assert got["one"] == got["price"] and got["eight"] == 8 * got["price"]


BATCH = """
import numpy as np, emulator
from memsem import Window
device = emulator.init()
me, n = device.rank, device.num_ranks
window = Window.create(4000, np.int64)
random = np.random.default_rng(me)
count = 1000
dsts, counts = random.integers(0, n, count), random.integers(0, 4, count)
if EQUAL:
    counts[:] = 1
offsets = random.permutation(1000) * 4
values = random.integers(1, 9, count)
src = random.integers(0, 1 << 60, int(counts.sum()))
device.barrier()
if BATCHED:
    window.put_batch(dsts, src, offsets, counts, signals=3, values=values, op="add", engine=ENGINE)
else:
    at = 0
    for i in range(count):
        piece = src[at : at + counts[i]]
        where = int(dsts[i]), piece, int(offsets[i]), 3, int(values[i])
        window.put_signal(*where, "add", engine=ENGINE)
        at += counts[i]
posted = device.now_ps
device.barrier()
report(posted=posted, sum=int(window.load().sum() % (1 << 61)), signal=window.signal_read(3))
"""


@pytest.mark.parametrize("engine", ["c", "python"])
@pytest.mark.parametrize(("mover", "equal"), [("mte", True), ("mte", False), ("dma", False)])
def test_a_batch_is_the_loop_it_stands_for(engine, mover, equal):
    """Same bytes, times and trace. Shown to fail with a picosecond more for each of a batch."""
    program = BATCH.replace("ENGINE", repr(mover)).replace("EQUAL", str(equal))
    loop, batch = (run_ranks(2, program.replace("BATCHED", b), engine=engine) for b in ("False", "True"))
    assert loop.reports == batch.reports
    assert loop.sha == batch.sha


GETS = """
import numpy as np, emulator
from memsem import Window
device = emulator.init()
me, n = device.rank, device.num_ranks
window = Window.create(1000, np.int32)
window.store(0, (np.arange(1000) + 10000 * me).astype(np.int32))
device.barrier()
random = np.random.default_rng(5)
srcs, counts = random.integers(0, n, 300), random.integers(0, 5, 300)     # more than may be under way
offsets = random.integers(0, 995, 300)
out = np.zeros(int(counts.sum()), np.int32)
window.get_batch(srcs, out, offsets, counts)
want = np.concatenate([np.arange(c) + o + 10000 * s for s, o, c in zip(srcs, offsets, counts)])
assert np.array_equal(out, want)
report(ok=True)
"""


@pytest.mark.parametrize("mover", ["mte", "dma"])
@pytest.mark.parametrize(("transport", "engine"), CASES)
def test_a_batch_of_gets(transport, engine, mover):
    ran = run_ranks(3, GETS, transport=transport, engine=engine, engine_default=mover)
    assert ran.reports[2]["ok"]


REFUSED = """
import numpy as np, emulator, pytest
from emulator.errors import DtypeError, OffsetError, SizeError, StateError, UsageError
from memsem import Window
device = emulator.init()
window = Window.create(10, np.int32)
data = np.arange(10, dtype=np.int32)
def refused(kind, match, call, *args, **kw):
    before = device.now_ps
    with pytest.raises(kind, match=match) as caught:
        call(*args, **kw)
    assert "\\n" not in str(caught.value) and device.now_ps == before
    return caught.value
refused(SizeError, "strides 1 and 1 must be at least the block of 2", window.iput, 0, data, 0, 1, 1, 2, 2)
refused(SizeError, "strides 0 and 1", window.iput, 0, data, 0, 0, 1)
refused(SizeError, "11 blocks asked for, an array of 10 with stride 1 has", window.iput, 0, data, count=11)
refused(OffsetError, "elements 0 to 19 are not within the 10", window.iput, 0, data, 0, 2)
refused(OffsetError, "elements -1 to 9", window.iget, 0, data, -1)
refused(StateError, "read-only", window.iget, 0, np.frombuffer(bytes(40), np.int32))
refused(UsageError, "no rank 2", window.iput, 2, data)
refused(SizeError, "3 elements, the array 10", window.put_batch, [0, 1, 0], data, [0, 1, 2])
refused(SizeError, "ranks, offsets and counts", window.put_batch, [0, 1, 0], data, [0, 1])
refused(SizeError, "integers are needed", window.put_batch, [0.5], data[:1], [0])
error = refused(OffsetError, "piece 1: elements 8 to 11", window.put_batch, 0, data[:6], [0, 8], 3)
assert (error.rank, error.now_ps, error.value) == (device.rank, device.now_ps, 8)
refused(OffsetError, "no signal 9", window.put_batch, 0, data[:2], [0, 1], signals=[0, 9])
refused(SizeError, "charge_bytes must be integers from 0", window.put_batch, 0, data[:1], 0, charge_bytes=-1)
refused(UsageError, "'sub' is not one of set, add", window.put_batch, 0, data[:1], 0, signals=0, op="sub")
window.put_batch([], data[:0], [])                       # nothing at all is fine
window.iput(0, data[:0], 10)
report(ok=True)
"""


def test_misuse_is_named_and_costs_nothing():
    assert set(run_ranks(2, REFUSED).reports) == {0, 1}
