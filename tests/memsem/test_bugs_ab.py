"""Public bug reports of other systems, tried on windows: MPI RMA (A) and symmetric memory (B).

Reports whose scenario is a subject of its own are tested there and name the report: strided copies
(open-mpi/ompi #6275), the freed range (open-mpi/ompi #10328), empty signals (openshmem-org/specification
#206), resets (hao-ai-lab/DistCA PR 75), overlapping teams (pytorch/pytorch #192581), creation
(pytorch/pytorch PR 196546), what quiet promises (microsoft/mscclpp #495), additive counters (NVIDIA/nvshmem
#84).
"""

import pytest
from ranks import run_ranks

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(300)]
CASES = [("shared", "c"), ("rma", "python")]

STATES = """
import numpy as np, emulator, pytest
from emulator.errors import UsageError
from memsem import OrderFlags, Window
device = emulator.init()
window = Window.create(4, np.int64)
for call in (window.fence, window.quiet, window.fence, window.fence, window.quiet, window.quiet):
    call()                                                   # in any order, with nothing under way too
device.barrier()
window.put(0, [1], order="strong")
window.fence()
window.quiet()
window.put(0, [2])
device.barrier()
window.quiet()
window.fence()
for words in ({"order": "stong"}, {"order": OrderFlags("weak")}, {"order": 3}, {"engine": "dna"},
              {"engine": "mte", "cores": 0}, {"engine": "dma", "cores": 2}, {"cores": 10**6}):
    before = device.now_ps
    with pytest.raises(UsageError) as caught:
        window.put(0, [1], **words)
    named = list(words.values())[-1]
    assert device.now_ps == before and str(getattr(named, "place", named)) in str(caught.value)
with pytest.raises(TypeError):
    window.put(0, [1], ordering="strong")                    # an unknown option is never ignored
report(ok=True)
"""


def test_fence_and_quiet_in_any_order_and_no_option_is_ignored():
    """open-mpi/ompi PR 1127. Shown to fail with unknown order words taken as none."""
    assert set(run_ranks(2, STATES).reports) == {0, 1}


THREADS = """
import threading
import numpy as np, emulator
from emulator.errors import UsageError
from memsem import Window
device = emulator.init()
window = Window.create(4, np.int64)
said = []
def other():
    for call in (lambda: window.put(0, [1]), lambda: window.get(0), window.quiet, window.fence, window.load,
                 lambda: window.fetch_add(0, 0, 1), lambda: window.signal_wait_until(0, "eq", 0),
                 lambda: window.put_batch(0, [1], 0), lambda: window.test(0, "eq", 0)):
        try:
            call()
            said.append("accepted")
        except UsageError as error:
            said.append(str(error).split(" (")[0])
before = device.now_ps
thread = threading.Thread(target=other)
thread.start()
thread.join()
assert device.now_ps == before
report(said=said)
"""


def test_a_second_thread_is_refused():
    """open-mpi/ompi #7813. Shown to fail without the check."""
    said = run_ranks(1, THREADS).reports[0]["said"]
    assert said == ["window: a rank's windows belong to the thread that made the first one"] * 9


MEMORY = """
import numpy as np, emulator, pytest
from emulator.errors import DtypeError, SizeError, StateError
from memsem import Window
device = emulator.init()
window = Window.create((2, 3), np.uint8)
fixed = np.arange(6, dtype=np.uint8)
fixed.flags.writeable = False
window.put(0, fixed)                                         # read-only is fine to read from
window.quiet()
assert window.local.reshape(-1).tolist() == [0, 1, 2, 3, 4, 5]
window.put(0, np.uint8(9), 5)                                # a scalar, and an array without dimensions
window.put(0, np.array(8, np.uint8), 4)
window.put(0, bytearray(b"ab"))
window.put(0, b"c", 2)
window.put(0, memoryview(b"d"), 3)
window.quiet()
assert window.local.reshape(-1).tolist() == [97, 98, 99, 100, 8, 9]
turned = np.asfortranarray(np.arange(6, dtype=np.uint8).reshape(2, 3))
window.put(0, turned)
window.quiet()
assert window.local.reshape(-1).tolist() == [0, 3, 1, 4, 2, 5]      # as it lies in memory
into = np.zeros((2, 3), np.uint8, order="F")
assert np.array_equal(window.get(0, out=into), turned)
spot = np.zeros((), np.uint8)
window.get(0, 1, out=spot)
assert spot == 3
for kind, call in [
    (StateError, lambda: window.get(0, out=fixed)),
    (StateError, lambda: window.get_nbi(0, 0, fixed)),
    (SizeError, lambda: window.put(0, np.arange(12, dtype=np.uint8)[::2])),
    (DtypeError, lambda: window.put(0, fixed.view(np.int8))),
    (DtypeError, lambda: window.put(0, fixed.astype(">u2"))),
    (DtypeError, lambda: window.put(0, ["a"])),
    (DtypeError, lambda: window.put(0, None)),
    (DtypeError, lambda: window.put(0, [256])),
]:
    with pytest.raises(kind) as caught:
        call()
    assert caught.value.rank == device.rank and "ps)" in str(caught.value)
report(ok=True)
"""


def test_unusual_memory():
    """mpi4py/mpi4py #166: read-only, without dimensions, Fortran order, bytes."""
    assert run_ranks(1, MEMORY).reports[0]["ok"]


LARGE = """
import numpy as np, emulator
from memsem import Window
device = emulator.init()
me = device.rank
window = Window.create(16, np.uint8)
device.barrier()
if me == 0:
    size, rows = 4_000_000_001, []                           # over 2**31 and 2**32, logically
    c, before = device.engine.config, device.engine.statistics().bytes_by_class[0].sum()
    start = device.now_ps
    window.put(1, np.arange(16, dtype=np.uint8), charge_bytes=size)
    window.quiet()
    put = device.now_ps - start
    window.put_batch(1, np.arange(16, dtype=np.uint8), 8 * np.arange(2), 8, charge_bytes=[size, 1])
    window.quiet()
    start = device.now_ps
    window.get(1, charge_bytes=size)
    got = device.now_ps - start
    moved = int(device.engine.statistics().bytes_by_class[0].sum() - before)
    cls = device.engine.link_class(1)
    report(put=put, got=got, moved=moved, size=size, price=c.call_price_ps, wire=int(device.ledger.wire[0]),
           fixed=c.put_latency_ps[cls] + c.ack_latency_ps[cls], write=c.write_bytes_per_s[cls],
           way=c.request_latency_ps[cls] + c.response_latency_ps[cls], read=c.read_bytes_per_s[cls])
device.barrier()
"""


@pytest.mark.parametrize("engine", ["c", "python"])
def test_more_than_two_gigabytes_are_charged_exactly(engine):
    """open-mpi/ompi #5383, CommBench #2. Shown to fail with sizes as 32-bit numbers."""
    got = run_ranks(2, LARGE, engine=engine).reports[0]
    assert got["put"] == got["price"] + got["fixed"] + -(-got["size"] * 10**12 // got["write"])
    assert got["got"] == got["price"] + got["way"] + -(-got["size"] * 10**12 // got["read"])
    assert got["moved"] == 3 * got["size"] + 1 and got["wire"] >= got["moved"]


STORM = """
import numpy as np, emulator
from memsem import Window
device = emulator.init()
me, n = device.rank, device.num_ranks
window = Window.create((n, 1), np.int64, signals=2)
device.barrier()
for seed in range(SEEDS):
    random = np.random.default_rng((seed, me))
    rounds = 4
    for _ in range(rounds):
        for peer in random.permutation(n).tolist():
            if random.integers(0, 4) == 0:
                device.sleep_ps(int(random.integers(1, 3_000_000)))
            if random.integers(0, 2):
                window.write_notify(peer, [seed], me, 1, seed)
            window.put_signal(peer, [seed], me, 0, 1, "add")
    window.signal_wait_until(0, "ge", (seed + 1) * rounds * n)
    assert (window.local == seed).all(), seed
    device.barrier()
    assert (window.local == seed).all() and window.signal_read(0) == (seed + 1) * rounds * n, seed
report(now=device.now_ps)
"""


def test_a_storm_of_notices_loses_none():
    """hw-native-sys/simpler #2239, at 16 ranks. Shown to fail with a delivery that does not look at waits."""
    got = run_ranks(16, STORM.replace("SEEDS", "6"), timeout_s=200).reports
    assert len(got) == 16


@pytest.mark.slow
@pytest.mark.parametrize(("n", "seeds"), [(16, 100), pytest.param(64, 4, marks=pytest.mark.sweep)])
def test_a_long_storm(n, seeds):
    assert len(run_ranks(n, STORM.replace("SEEDS", str(seeds)), timeout_s=280).reports) == n


DEAD = """
import os, signal, time
import numpy as np, emulator
from emulator.errors import RankLostError
from memsem import Window
device = emulator.init()
window = Window.create(4, "i8")
device.barrier()
if device.rank == 1:
    window.put_signal(0, [1, 2, 3, 4], 0, 0, 1)
    device.quiet()
    os.kill(os.getpid(), signal.SIGKILL)
window.signal_wait_until(0, "eq", 1)
time.sleep(1)                                                # the launcher's part: notice it and say so
before = device.now_ps
device.mark_dead(1)
said = []
for call in (
    lambda: window.put(1, [1]), lambda: window.put(1, [1], engine="dma", order="strong"),
    lambda: window.put_nbi(1, [1]), lambda: window.put_batch([0, 1], [1, 2], 0), lambda: window.get(1),
    lambda: window.get_nbi(1, 0, np.zeros(4, "i8"), engine="dma"), lambda: window.fetch_add(1, 0, 1),
    lambda: window.write_imm(1, [1], 0, 5), lambda: window.iput(1, [1, 2], 0, 2),
):
    try:
        call()
        said.append(None)
    except RankLostError as error:
        said.append(list(error.ranks))
window.put(0, [7])                                           # the others are still served
window.quiet()
report(said=said, kept=window.local.tolist())
"""


@pytest.mark.parametrize("engine", ["c", "python"])
def test_operations_on_a_dead_peer_are_errors(engine):
    """openucx/ucx PR 11629: every form raises at the call and the survivor goes on."""
    got = run_ranks(2, DEAD, keep_going=True, check=False, engine=engine).reports[0]
    assert got == {"said": [[1]] * 9, "kept": [7, 2, 3, 4]}
