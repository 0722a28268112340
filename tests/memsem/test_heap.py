"""The symmetric heap: places, reuse, what is refused, and signals that belong to one owner at a time."""

import numpy as np
import pytest
from ranks import run_ranks

from emulator.errors import AlignmentError, DtypeError, OffsetError, SizeError, StateError
from emulator.solo import solo_device
from memsem.heap import SymmetricHeap
from memsem.window import Window

CASES = [("shared", "c"), ("rma", "python")]
multirank = pytest.mark.multirank


@pytest.fixture
def device():
    return solo_device(engine="python")


def test_pieces_are_aligned_and_do_not_overlap(device):
    seed = 20261129
    random = np.random.default_rng(seed)
    Window.create(3, np.uint8, device=device)  # the arena need not begin at 0
    heap, held = SymmetricHeap.create(1 << 16, 64, device), []
    for _ in range(300):
        if held and random.integers(0, 2):
            heap.free(held.pop(int(random.integers(0, len(held)))))
            continue
        size, align = int(random.integers(0, 700)), int(1 << random.integers(0, 10))
        try:
            piece = heap.alloc(size, align, signals=int(random.integers(0, 3)))
        except SizeError:
            continue
        assert piece.offset % max(align, 64) == 0, seed
        held.append(piece)
        spans = sorted((p.offset, p.offset + p.nbytes) for p in held if p.nbytes)
        assert all(a[1] <= b[0] for a, b in zip(spans, spans[1:], strict=False)), seed
        words = [w for p in held for w in range(p.first_word, p.first_word + p.num_signals)]
        assert len(words) == len(set(words)), seed
    for piece in held:
        heap.free(piece)
    assert heap.free_bytes == 1 << 16 and heap.pieces == 0
    assert heap.alloc(1 << 16).nbytes == 1 << 16  # one hole again


def test_calloc_clears_and_views_share_bytes(device):
    heap = SymmetricHeap.create(4096, device=device)
    piece = heap.alloc(64)
    view = piece.view(np.int32, (4, 4))
    view.store(0, np.full(16, 7, np.int32))
    assert piece.view().load().tolist() == [7, 0, 0, 0] * 16
    heap.free(piece)
    again = heap.calloc(64)
    assert again.offset == piece.offset and not again.view().load().any()


def test_what_is_refused(device):
    heap = SymmetricHeap.create(4096, 4, device)
    piece = heap.alloc(100, signals=2)
    view = piece.view(np.float32)
    assert view.size == 25 and view.num_signals == 2
    for kind, match, call in [
        (SizeError, "3968 are free", lambda: heap.alloc(5000)),
        (SizeError, "must not be negative", lambda: heap.alloc(-1)),
        (SizeError, "3 signals are needed, 2 are free", lambda: heap.alloc(1, signals=3)),
        (AlignmentError, "align 48 is no power of two", lambda: heap.alloc(1, 48)),
        (SizeError, "does not fit a piece of 100", lambda: piece.view(np.float64, 13)),
        (DtypeError, "no fixed bytes", lambda: piece.view(object)),
        (StateError, "not an allocated piece", lambda: SymmetricHeap.create(64, device=device).free(piece)),
    ]:
        before = device.now_ps
        with pytest.raises(kind, match=match) as caught:
            call()
        assert caught.value.rank == 0 and (kind is StateError or device.now_ps == before)
    assert heap.free_bytes == 3968


def test_a_freed_piece_is_out_of_range(device):
    """open-mpi/ompi #10328: the range ends with its memory. Shown to fail with a free that keeps it."""
    heap = SymmetricHeap.create(4096, 4, device)
    piece = heap.alloc(64, signals=1)
    view = piece.view()
    heap.free(piece)
    one = np.zeros(1, np.uint8)
    for call in (
        lambda: view.put(0, one),
        lambda: view.get(0),
        lambda: view.put_signal(0, one, 0, 0, 1),
        lambda: view.put_batch(0, one, 0),
        lambda: view.load(),
        lambda: view.local,
        lambda: view.signal_wait_until(0, "eq", 0),
        lambda: view.signal_read(0),
    ):
        with pytest.raises(OffsetError, match="has been freed"):
            call()
    with pytest.raises(StateError, match="has been freed"):
        piece.view()
    with pytest.raises(StateError, match="not an allocated piece"):
        heap.free(piece)


REUSE = """
import time
import numpy as np, emulator
from memsem import SymmetricHeap
device = emulator.init()
me, n = device.rank, device.num_ranks
heap = SymmetricHeap.create(1 << 12, 4, device)
for round in range(30):
    if me == round % n:
        device.sleep_ps(3_000_000)                           # who is late differs
    piece = heap.alloc(64, signals=2)
    window = piece.view(np.int64)
    window.put_signal((me + 1) % n, [100 * round + me], 0, 0, 1)     # at once
    window.put_signal((me - 1) % n, [100 * round + me], 1, 1, 1)
    assert window.wait_until_all([0, 1], "eq", 1, timeout_ps=10**9), round
    assert window.local[:2].tolist() == [100 * round + (me - 1) % n, 100 * round + (me + 1) % n]
    heap.free(piece)
report(ok=True)
"""


@multirank
@pytest.mark.parametrize("delivery", ["natural", "adversarial"])
@pytest.mark.parametrize(("transport", "engine"), CASES)
def test_a_first_signal_is_not_lost_and_a_last_one_not_inherited(transport, engine, delivery):
    """pytorch/pytorch PR 196546: clearing the words and the first signal. Shown to fail with the words
    not cleared."""
    ran = run_ranks(3, REUSE, transport=transport, engine=engine, delivery=delivery)
    assert [r["ok"] for r in ran.reports.values()] == [True] * 3


UNLIKE = """
import emulator, pytest
from emulator.errors import UsageError
from memsem import SymmetricHeap
device = emulator.init()
heap = SymmetricHeap.create(4096, 4, device)
piece = heap.alloc(64)
with pytest.raises(UsageError, match="heap: alloc must be alike on all ranks"):
    heap.alloc(64 + device.rank)
report(ok=True)
"""


@multirank
def test_ranks_that_ask_for_different_things_are_told():
    assert len(run_ranks(2, UNLIKE).reports) == 2


WINDOWS = """
import numpy as np, emulator, pytest
from emulator.errors import OffsetError, StateError
from memsem import SymmetricHeap, Window
device = emulator.init()
me, n = device.rank, device.num_ranks
right = (me + 1) % n
for round in range(20):                                      # far more than fit side by side
    window = Window.create(1 << 17, np.int64, signals=100)
    window.put_signal(right, [round], 5, 99, 1)
    assert window.signal_wait_until(99, "eq", 1, timeout_ps=10**9) == 1
    assert window.local[5] == round
    out = np.zeros(1, np.int64)
    window.get_nbi(right, 5, out)                            # completed by free
    window.free()
    assert out[0] == round
    with pytest.raises(OffsetError, match="has been freed"):
        window.get(0)
    with pytest.raises(OffsetError, match="has been freed"):
        window.free()
view = SymmetricHeap.create(64).alloc(8).view()
with pytest.raises(StateError, match="ends with the piece"):
    view.free()
pending = Window.create(4, np.int64).put_nbi(right, [1])
device.exchange(0, None, 0)                                  # meets, and completes nothing
seen = pending.is_done
device.barrier()
assert pending.is_done
report(ok=True, seen=seen)
"""


@multirank
@pytest.mark.parametrize(("transport", "engine"), CASES)
def test_windows_are_given_back(transport, engine):
    """open-mpi/ompi #10328 for windows. Shown to fail with a free that leaves the range open."""
    ran = run_ranks(2, WINDOWS, transport=transport, engine=engine, heap_bytes=1 << 21)
    assert [r["ok"] for r in ran.reports.values()] == [True] * 2
