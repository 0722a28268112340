"""Windows: what moves, when it shows, and what is refused, at several sizes and under both transports."""

import pytest
from ranks import run_ranks

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(240)]
SIZES = [1, 2, 4, 8]
TRANSPORTS = ["shared", "rma"]

RING = """
import numpy as np, emulator
from memsem import Window
device = emulator.init()
me, n = device.rank, device.num_ranks
right, left = (me + 1) % n, (me - 1) % n
kinds = ["u1", "<f4", ">i8", "c16", "M8[s]", "?", [("a", "i4"), ("b", "f8")]]
windows = [Window.create(6, kind) for kind in kinds]
payload = np.random.default_rng(me).integers(0, 2, 64, dtype=np.uint8)
for window in windows:
    guard = window.local.tobytes()
    data = np.frombuffer(payload.tobytes(), window.dtype, 4)
    window.put_signal(right, data, 1, 0, 1)
    assert window.signal_wait_until(0, "ge", 1) == 1
    sent = np.random.default_rng(left).integers(0, 2, 64, dtype=np.uint8)
    want = np.frombuffer(sent.tobytes(), window.dtype, 4)
    assert window.local[1:5].tobytes() == want.tobytes()
    assert window.local[:1].tobytes() == guard[:window.dtype.itemsize]      # guards on both sides
    assert window.local[5:].tobytes() == guard[:window.dtype.itemsize]
    window.quiet()                  # a get may overtake my own put: its request is faster than a put
    assert window.get(right, 1, 4).tobytes() == data.tobytes()
    out = np.empty((2, 2), window.dtype)
    assert window.get(right, 1, out=out) is out and out.tobytes() == data.tobytes()
report(now=device.now_ps)
"""


@pytest.mark.parametrize("n", SIZES)
def test_ring_of_every_dtype_is_the_same_run_under_both_transports(n):
    shared, rma = (run_ranks(n, RING, transport=transport) for transport in TRANSPORTS)
    assert len(shared.reports) == len(rma.reports) == n
    assert shared.sha == rma.sha


ONE_BYTE = """
import numpy as np, emulator
from memsem import Window
device = emulator.init()
window = Window.create(100, np.uint8)
data = np.zeros(100, np.uint8)
data[77] = BYTE
window.put(0, data)
device.barrier()
"""


def test_the_hash_covers_payload_bytes():
    hashes = [run_ranks(2, ONE_BYTE.replace("BYTE", byte)).sha for byte in ("1", "2", "1")]
    assert hashes[0] == hashes[2] != hashes[1]


OLD_DATA = """
import numpy as np, emulator
from memsem import Window
device = emulator.init()
me = device.rank
window = Window.create(4, np.int64)
device.barrier()
start = device.now_ps
if me == 0:
    window.put_signal(1, np.arange(1, 5), 0, 0, 1)
    device.sleep_ps(50_000_000)
    window.put_signal(1, np.full(4, 9), 0, 1, 1)
    window.quiet()
else:
    seen = [int(window.load(0, 1)[0])]              # long before delivery
    device.compute(20_000_000)                      # delivery lies inside the region
    seen.append(int(window.local[0]))               # a plain view shows the last observation point
    seen.append(int(window.load(0, 1)[0]))
    device.compute(100_000_000)
    seen.append(int(window.local[0]))
    assert window.signal_wait_until(1, "eq", 1) == 1
    seen.append(int(window.local[0]))
    report(seen=seen)
"""


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_bytes_appear_at_observation_points_only(transport):
    ran = run_ranks(2, OLD_DATA, transport=transport)
    assert ran.reports[1]["seen"] == [0, 0, 1, 1, 9]


SNAPSHOT = """
import numpy as np, emulator
from memsem import Window
device = emulator.init()
me, n = device.rank, device.num_ranks
window = Window.create(4, np.int64)
device.barrier()
if me == 0:                       # the target: busy on the host and in virtual time, then writes
    window.store(0, [7, 7, 7, 7])
    device.compute(80_000_000)
    view = window.local[0]
    import time; time.sleep(HOST_SLEEP)
    assert window.local[0] == view == 7
    window.store(0, [8, 8, 8, 8])
    device.sleep_ps(10_000_000)
elif me == 1:                     # puts while the target computes
    device.sleep_ps(20_000_000)
    window.put(0, np.array([5, 6]), 1)
    window.quiet()
else:                             # reads before the put, after it, after the second store
    got = []
    for wait in (10_000_000, 25_000_000, 60_000_000):
        device.sleep_ps(wait)
        got.append(window.get(0).tolist())
    report(got=got)
"""


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("host_sleep", ["0", "0.3"])
def test_a_get_shows_its_own_instant_and_leaves_the_owner_alone(transport, host_sleep):
    ran = run_ranks(3, SNAPSHOT.replace("HOST_SLEEP", host_sleep), transport=transport)
    assert ran.reports[2]["got"] == [[7, 7, 7, 7], [7, 5, 6, 7], [8, 8, 8, 8]]


LATE_READER = """
import time
import numpy as np, emulator
from memsem import Window
device = emulator.init()
window = Window.create(COUNT, np.int64)
window.store(0, np.arange(1, COUNT + 1))
device.barrier()
if device.rank == 0:                                     # overwrites long after the response left
    device.sleep_ps(50_000_000)
    window.store(0, np.full(COUNT, 9))
    device.sleep_ps(200_000_000)
else:                                                    # asleep on the host while the owner goes on
    handle = device.start_get(0, 0, COUNT * 8, COUNT * 8)
    device.compute(100_000_000)
    time.sleep(0.5)
    got = device.wait_get(handle).view(np.int64)
    assert np.array_equal(got, np.arange(1, COUNT + 1))
    report(got=got[:4].tolist())
"""


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("count", [4, 1024])
def test_the_owner_keeps_what_a_late_reader_has_asked_for(transport, count):
    """Small into the reader's pool, large (more than the pool) into a file."""
    program = LATE_READER.replace("COUNT", str(count))
    ran = run_ranks(2, program, transport=transport, staging_bytes=4096)
    assert ran.reports[1]["got"] == [1, 2, 3, 4]


FULL_POOL = """
import time
import numpy as np, emulator
from memsem import Window
device = emulator.init()
window = Window.create((2, 4096), np.uint8)
device.barrier()
if device.rank == 0:                                     # busy on the host, delivered to meanwhile
    device.compute(100_000_000)
    time.sleep(0.5)
    before = window.local.max()
    assert (window.load() == np.repeat([1, 2], 4096)).all()
    report(before=int(before))
else:
    window.put(0, np.full(4096, 1, np.uint8))
    window.quiet()                                       # final, and the pool is full
    window.put(0, np.full(4096, 2, np.uint8), 4096)
    window.quiet()
"""


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_poster_with_a_full_pool_leaves_a_running_owner_alone(transport):
    ran = run_ranks(2, FULL_POOL, transport=transport, staging_bytes=4096)
    assert ran.reports[0]["before"] == 0 and ran.result["host"]["spilled"] == 1


EXACT = """
import numpy as np, emulator
from memsem import Window
device = emulator.init()
window = Window.create(1 << 16, np.uint8)
device.barrier()
c, rows = device.engine.config, []
for peer in PEERS:
    for size in SIZES if device.rank == 0 else []:
        start = device.now_ps
        window.put(peer, np.zeros(size, np.uint8))
        window.quiet()
        put_ps, start = device.now_ps - start, device.now_ps
        window.get(peer, 0, size)
        rows.append([peer, size, put_ps, device.now_ps - start])
report(rows=rows, price=c.call_price_ps, put=c.put_latency_ps, ack=c.ack_latency_ps,
       request=c.request_latency_ps, response=c.response_latency_ps,
       write=c.write_bytes_per_s, read=c.read_bytes_per_s)
"""


def test_put_and_get_are_exact_per_distance():
    links, sizes = {0: 0, 1: 1, 2: 2, 16: 3}, [0, 1, 65536]
    got = run_ranks(17, EXACT.replace("PEERS", str(list(links))).replace("SIZES", str(sizes))).reports[0]
    for peer, size, put_ps, get_ps in got["rows"]:
        link = links[peer]
        write, read = (-(-size * 10**12 // got[key][link]) for key in ("write", "read"))
        # the put's own call; the call of quiet falls into its flight; the ack follows the last byte
        assert put_ps == got["price"] + got["put"][link] + write + got["ack"][link]
        assert get_ps == got["price"] + got["request"][link] + got["response"][link] + read
    assert len(got["rows"]) == 12


REFUSED = """
import numpy as np, emulator, pytest
from emulator.errors import UsageError
from memsem import Window
device = emulator.init()
window = Window.create((2, 5), np.float32)
array = np.arange(20, dtype=np.float32)
def refused(match, call, *args, **kw):
    with pytest.raises(UsageError, match=match) as caught:
        call(*args, **kw)
    assert "\\n" not in str(caught.value)
refused("not contiguous", window.put, 0, array[::2])
refused("not contiguous", window.put, 0, array.reshape(4, 5)[:2, :2])
refused("not contiguous", window.get, 0, 0, out=array[::2])
refused("elements 8 to 11 are not within the 10", window.put, 0, array[:3], 8)
refused("elements -1 to 2", window.put, 0, array[:3], -1)
refused("elements 4 to 11", window.get, 0, 4, 7)
refused("elements 0 to 11", window.load, 0, 11)
refused("no rank 2; ranks are 0 to 1", window.put, 2, array[:3])
refused("no rank -1", window.get, -1)
refused("float64, the window float32", window.put, 0, np.zeros(3))
refused("no signal 8", window.put_signal, 0, array[:1], 0, 8, 1)
refused("op 'sett' .* did you mean 'set'", window.put_signal, 0, array[:1], 0, 0, 1, "sett")
refused("cmp '>=' is not one of eq, ne", window.signal_wait_until, 0, ">=", 1)
refused("must not be negative", window.put, 0, array[:1], 0, charge_bytes=-1)
refused("values do not fit", Window.create(4, np.uint8).put, 0, [256])
refused("values do not fit", Window.create(4, np.int64).put, 0, [0.5])
refused("no fixed bytes", Window.create, 4, object)
refused("raise heap_bytes", Window.create, 1 << 40)
refused("raise words_per_rank", Window.create, 4, signals=10_000)
refused("alike on all ranks; rank . asks for .* rank ", Window.create, 4 + device.rank)
refused("window .* .i1.*window .* .u1", Window.create, 4, np.uint8 if device.rank else np.int8)
turned = np.asfortranarray(array[:10].reshape(2, 5))     # contiguous in memory: taken as mpi4py takes it
window.put(device.rank, turned)
window.quiet()
assert np.array_equal(window.local.reshape(-1), turned.reshape(-1, order="A"))
window.put_signal(0, array[:0], 10, 0, 5, "add")          # zero bytes at the very end still signal
device.barrier()
if device.rank == 0:
    assert window.signal_wait_until(0, "eq", 10) == 10
    assert window.signal_wait_until(0, "eq", 11, timeout_ps=5) is None
    assert not window.test(0, "lt", 10) and window.test(0, "le", 10) and window.signal_read(0) == 10
report(ok=True)
"""


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_misuse_is_named_and_costs_nothing(transport):
    assert set(run_ranks(2, REFUSED, transport=transport).reports) == {0, 1}


BEFORE_INIT = """
import emulator
from emulator.errors import UsageError
try:
    emulator.rank()
except UsageError as error:
    assert "emulator.init() first" in str(error)
    report(ok=True)
"""


def test_calls_before_init_are_refused():
    assert run_ranks(1, BEFORE_INIT, launcher="plain").reports[0]["ok"]
