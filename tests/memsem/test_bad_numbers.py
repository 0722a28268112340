"""Numbers and types that no call takes: a named error that says who, when and what, and no time passes."""

import numpy as np
import pytest

from emulator.errors import UsageError
from emulator.solo import solo_device
from memsem import SymmetricHeap, Team, Window

x = np.arange(2)
CASES = {
    "charge huge": lambda w: w.put(0, x, charge_bytes=2**70),
    "charge huge dma": lambda w: w.put(0, x, charge_bytes=2**70, engine="dma"),
    "charge 2**61": lambda w: w.put(0, x, charge_bytes=2**61, engine="dma"),
    "charge float": lambda w: w.put(0, x, charge_bytes=1.5),
    "charge str": lambda w: w.put(0, x, charge_bytes="8"),
    "value huge": lambda w: w.put_signal(0, x, 0, 0, 2**64),
    "value huge dma": lambda w: w.put_signal(0, x, 0, 0, 2**64, engine="dma"),
    "value float": lambda w: w.put_signal(0, x, 0, 0, 1.5),
    "offset float": lambda w: w.put(0, x, 1.5),
    "offset str": lambda w: w.put(0, x, "1"),
    "offset float dma": lambda w: w.put(0, x, 1.5, engine="dma"),
    "rank float": lambda w: w.put(0.0, x),
    "rank str": lambda w: w.put("a", x),
    "rank None": lambda w: w.get(None),
    "signal float": lambda w: w.put_signal(0, x, 0, 0.5, 1),
    "count float": lambda w: w.get(0, 0, 1.5),
    "batch values": lambda w: w.put_batch(0, x, [0, 1], signals=0, values=2**70),
    "batch values f": lambda w: w.put_batch(0, x, [0, 1], signals=0, values=0.5),
    "batch charge": lambda w: w.put_batch(0, x, [0, 1], charge_bytes=2**70),
    "batch charge len": lambda w: w.put_batch(0, x, [0, 1], charge_bytes=[1, 2, 3]),
    "batch values len": lambda w: w.put_batch(0, x, [0, 1], signals=0, values=[1, 2, 3]),
    "batch signals len": lambda w: w.put_batch(0, x, [0, 1], signals=[1, 2, 3]),
    "batch rank": lambda w: w.put_batch(3, x, [0, 1]),
    "wait value": lambda w: w.signal_wait_until(0, "eq", 2**70),
    "wait value f": lambda w: w.signal_wait_until(0, "eq", 0.5),
    "wait timeout": lambda w: w.signal_wait_until(0, "eq", 5, timeout_ps=-1),
    "wait timeout f": lambda w: w.signal_wait_until(0, "eq", 5, timeout_ps=1.5),
    "test value": lambda w: w.test(0, "eq", 2**70),
    "reset": lambda w: w.reset(0, 2**70),
    "imm": lambda w: w.write_imm(0, x, 0, 1.5),
    "cmp None": lambda w: w.signal_wait_until(0, None, 5),
    "wait_any bad": lambda w: w.wait_until_any([0], "eq", "x"),
    "iput float stride": lambda w: w.iput(0, x, 0, 1.5),
    "iput count": lambda w: w.iput(0, x, 0, 1, 1, 1.5),
    "fetch offset": lambda w: w.fetch(0, 0.5),
    "load": lambda w: w.load(0.5),
    "shape float": lambda w: Window.create(1.5, device=w._device),
    "signals float": lambda w: Window.create(1, signals=1.5, device=w._device),
    "engine None-ish": lambda w: w.put(0, x, engine=3),
    "order": lambda w: w.put(0, x, order="stong"),
    "order object": lambda w: w.fetch_add(0, 0, 1, order=7),
    "engine": lambda w: w.put_batch(0, x, [0, 1], engine="dna"),
    "cores many": lambda w: w.get(0, cores=10**6),
    "cores of dma": lambda w: w.put(0, x, engine="dma", cores=2),
    "cores": lambda w: w.put(0, x, cores=1.5),
    "get offset str": lambda w: w.get(0, "1"),
    "load None": lambda w: w.load(None),
    "dtype": lambda w: Window.create(1, "x", device=w._device),
    "dtype number": lambda w: Window.create(1, 1.5, device=w._device),
    "shape huge": lambda w: Window.create(2**70, device=w._device),
    "shape product": lambda w: Window.create((2**40, 2**40), device=w._device),
    "shape of numpy": lambda w: Window.create((np.int64(2**62), np.int64(4)), device=w._device),
    "signals huge": lambda w: Window.create(1, signals=2**70, device=w._device),
    "heap": lambda w: SymmetricHeap.create("x", device=w._device),
    "heap float": lambda w: SymmetricHeap.create(1.5, device=w._device),
    "heap huge": lambda w: SymmetricHeap.create(2**70, device=w._device),
    "piece": lambda w: w._device.library["heap"].alloc(1.5),
    "color": lambda w: Team.world(w._device).split("x"),
    "color huge": lambda w: Team.world(w._device).split(2**70),
    "key": lambda w: Team.world(w._device).split(0, 1.5),
    "strided": lambda w: Team.world(w._device).split_strided(0, None, 1),
    "translate": lambda w: Team.world(w._device).translate("x", Team.world(w._device)),
    "out": lambda w: w.get(0, out=[1, 2]),
}


@pytest.fixture(scope="module")
def window():
    device = solo_device(engine="python")
    device.library["heap"] = SymmetricHeap.create(64, device=device)
    Team.world(device)
    return Window.create(10, np.int64, device=device)


@pytest.mark.parametrize("name", CASES)
def test_a_bad_number_is_named_and_costs_nothing(window, name):
    """Shown to fail, each, without its check: numbers that wrap, or numpy's own errors."""
    before = window._device.now_ps
    with pytest.raises(UsageError) as caught:
        CASES[name](window)
    assert "\n" not in str(caught.value) and window._device.now_ps == before
    assert (caught.value.rank, caught.value.now_ps) == (0, before) and str(before) in str(caught.value)
