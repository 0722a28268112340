"""The compiled row kernels equal their NumPy twins bit for bit."""

import numpy as np
import pytest

from emulator.errors import InternalError, UsageError
from emulator.rows import NumpyRows, Records, RowFormat, load_rows

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def compiled():
    try:
        return load_rows("c")
    except UsageError:
        pytest.skip("no compiled core in this checkout")


def _case(seed):
    rng = np.random.default_rng(seed)
    n, slots, topk = int(rng.integers(1, 9)), int(rng.integers(1, 5)), int(rng.integers(1, 5))
    tokens, hidden = int(rng.integers(0, 9)), int(rng.integers(1, 40))
    x = (rng.standard_normal((tokens, hidden)) * 10.0 ** int(rng.integers(-3, 4))).astype(np.float32)
    x[rng.random((tokens, hidden)) < 0.1] = 0
    ids = rng.integers(0, n * slots, (tokens * topk,))
    charge = rng.integers(1, 5, tokens).astype(np.int32) if seed % 2 else None
    return rng, n, slots, topk, tokens, hidden, x, ids, charge


def _blocks(n, capacity, form):
    return Records(np.zeros((-(-capacity // 4), n, 4, form.record_bytes), np.uint8))


def _everyone(block, n):
    chunks, _, chunk, size = block.view.shape
    return Records(np.broadcast_to(block.view, (chunks, n, chunk, size)))


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("int8", [False, True])
def test_both_versions_give_the_same_bits(compiled, seed, int8):
    _, n, slots, topk, tokens, hidden, x, ids, charge = _case(seed)
    form = RowFormat(hidden, slots, int8)
    results = []
    for kernels in (compiled, NumpyRows()):
        plan = kernels.plan(ids, slots, n, topk, charge, 99)
        block = _blocks(1, tokens * topk + 1, form)
        kernels.pack(block, form, x, plan.order, topk, ids, charge)
        got = kernels.unpack(_everyone(block, n), form, plan.counts, plan.first, ids.size)
        flat = block.view.reshape(-1)
        back = kernels.plan_back(plan.counts, plan.charged, got.place, 99)
        tags = np.where(plan.counts, 7, 0)
        counts, first, total = kernels.decode(plan.fields, tags, 7, 99, plan.counts)
        assert np.array_equal(first, plan.first) and total == ids.size
        assert np.array_equal(back.first, plan.first) and np.array_equal(back.fields, plan.fields)
        results.append((*plan, block.view, *got, counts, first))
        assert int(got.per_slot.sum()) == tokens * topk, f"seed {seed}"
        assert kernels.checksum(flat) == NumpyRows().checksum(flat)
        assert kernels.checksum(flat[:5]) == NumpyRows().checksum(flat[:5])
    for one, other in zip(*results, strict=True):
        assert one.dtype == other.dtype and np.array_equal(one, other), f"seed {seed}"


@pytest.mark.parametrize("seed", range(40))
def test_rows_arrive_by_slot_then_pair(seed):
    _, n, slots, topk, tokens, hidden, x, ids, charge = _case(seed)
    kernels, form = NumpyRows(), RowFormat(hidden, slots)
    plan = kernels.plan(ids, slots, n, topk, charge, 99)
    block = _blocks(1, tokens * topk + 1, form)
    kernels.pack(block, form, x, plan.order, topk, ids, charge)
    only = np.zeros(n, np.int32)
    only[n - 1] = plan.counts[n - 1]
    got = kernels.unpack(_everyone(block, n), form, only, plan.first, int(only.sum()))
    mine = [p for s in range(slots) for p in range(ids.size) if ids[p] == (n - 1) * slots + s]
    assert np.array_equal(got.rows, x[[p // topk for p in mine]]), f"seed {seed}"
    weight = np.ones(tokens, np.int64) if charge is None else charge
    assert got.charged_per_slot.sum() == plan.charged[n - 1] == sum(weight[p // topk] for p in mine)


@pytest.mark.parametrize("seed", range(20))
def test_combine_is_the_ordered_weighted_sum(compiled, seed):
    rng, n, slots, topk, tokens, hidden, x, ids, _ = _case(seed)
    form = RowFormat(hidden, slots)
    weights = rng.random((tokens, topk)).astype(np.float32)
    rows = rng.standard_normal((tokens * topk, hidden)).astype(np.float32)
    expected = np.zeros((tokens, hidden), np.float32)
    for t in range(tokens):
        for k in range(topk):
            term = weights[t, k] * rows[t * topk + k]
            expected[t] = term if k == 0 else expected[t] + term
    for kernels in (compiled, NumpyRows()):
        plan = kernels.plan(ids, slots, n, topk, None, 99)
        block = _blocks(1, tokens * topk + 1, form)
        kernels.pack(block, form, rows, plan.order, 1, None, None)
        out = kernels.combine(_everyone(block, n), hidden, plan.counts, plan.first, plan.order, weights)
        assert np.array_equal(out.view(np.uint32), expected.view(np.uint32)), f"seed {seed} {kernels.name}"


@pytest.mark.parametrize("kind", ["c", "python"])
def test_bad_slots_are_named(compiled, kind):
    kernels, form = load_rows(kind), RowFormat(4, 4)
    with pytest.raises(UsageError, match="pair 1 names slot 8"):
        kernels.plan(np.array([0, 8]), 4, 2, 1, None, 9)
    block = _blocks(1, 1, form)
    block.view[0, 0, 0, :4] = np.array([7], np.int32).view(np.uint8)
    one, zero = np.ones(1, np.int32), np.zeros(1, np.int32)
    with pytest.raises(InternalError, match="slot"):
        kernels.unpack(block, form, one, zero, 1)


def test_checksum_depends_on_position_and_length():
    kernels = NumpyRows()
    a = np.arange(32, dtype=np.uint8)
    assert kernels.checksum(a) != kernels.checksum(a[::-1].copy())
    assert kernels.checksum(a[:8]) != kernels.checksum(np.concatenate([a[:8], np.zeros(8, np.uint8)]))


@pytest.mark.parametrize("kind", ["c", "python"])
def test_fields_of_another_event_or_other_counts_are_found(compiled, kind):
    kernels = load_rows(kind)
    fields, tags = np.array([3, 0, 12], np.int32), np.array([5, 0, 5])
    counts, first, total = kernels.decode(fields, tags, 5, 9)
    assert counts.tolist() == [3, 0, 2] and first.tolist() == [0, 0, 1] and total == 5
    with pytest.raises(InternalError, match="event 6: rows of another event"):
        kernels.decode(fields, tags, 6, 9)
    with pytest.raises(InternalError, match="other rows than were dispatched"):
        kernels.decode(fields, tags, 5, 9, np.array([3, 1, 2], np.int32))
