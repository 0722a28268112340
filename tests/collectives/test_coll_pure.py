"""Reductions in rank order, pieces, descriptors and the selector: no ranks."""

import numpy as np
import pytest

from collectives import refs_coll as refs
from collectives.agreement import AGREED, KINDS, Descriptor, balance, differences, mark_of
from collectives.algorithms import ALGORITHMS
from collectives.buffers import fill_short
from collectives.pieces import put_pieces, take_pieces
from collectives.reduction import checked_op, fold, rounded, widened
from collectives.select import Link, checked, choose, estimate_ps, overrides
from collectives.store import SharedStore
from emulator.errors import DtypeError, UsageError

LINK = Link(2_000_000, 135 * 10**9)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int8", "int64", "uint8"])
def test_a_reduction_adds_in_rank_order(dtype):
    """Mutation: `reduce` of one column, which NumPy adds in pairs."""
    seed = 11
    print("seed", seed)
    rng = np.random.default_rng(seed)
    for ranks, count in ((1, 5), (2, 1), (9, 1), (200, 1), (130, 2), (17, 33)):
        x = rng.standard_normal((ranks, count)) * 10.0 ** rng.integers(-3, 4, (ranks, count))
        if dtype == "bfloat16":
            rows = rounded(x.astype(np.float32))
        else:
            rows = (x * 10).astype(np.int64).astype(dtype) if dtype[0] in "iu" else x.astype(dtype)
        wide = np.zeros((ranks, count + 3), rows.dtype)
        wide[:, :count] = rows
        for op in ("sum", "prod", "min", "max", "avg"):
            with np.errstate(all="ignore"):
                got, want = fold(wide[:, :count], op, dtype), refs.reduced(list(rows), op, dtype)
            assert got.dtype == want.dtype and got.tobytes() == want.tobytes(), (ranks, count, op)


def test_bfloat16_rounds_to_nearest_even_and_keeps_what_is_no_number():
    words = np.array(
        [0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x80000000], np.uint32
    )
    assert rounded(words.view(np.float32)).tolist() == [
        0x3F80,
        0x3F82,
        0x3F81,
        0x7F80,
        0x7FFF,
        0xFFFF,
        0x8000,
    ]
    bits = np.arange(65536, dtype=np.uint32).astype(np.uint16)
    back = rounded(widened(bits))
    number = ~np.isnan(widened(bits))
    assert (back[number] == bits[number]).all() and np.isnan(widened(back[~number])).all()


def test_operations_that_elements_have_not():
    checked_op("bxor", "int8", "all_reduce")
    for op, dtype in (("band", "float32"), ("bor", "bfloat16"), ("max", "complex64")):
        with pytest.raises(DtypeError):
            checked_op(op, dtype, "all_reduce")
    with pytest.raises(UsageError, match="'maximum' is not one of .*nearest: max"):
        checked_op("maximum", "int8", "reduce")


def test_pieces_there_and_back():
    seed = 5
    print("seed", seed)
    rng = np.random.default_rng(seed)
    flat = rng.integers(0, 256, 60_000).astype(np.uint8)
    for unit, largest in ((1, 20), (4, 200), (8, 3000), (1, 6000)):
        sizes = rng.integers(0, largest // unit + 1, 9) * unit
        starts = (np.arange(9) * 6600 // unit + rng.integers(0, 9, 9)) * unit
        want = np.concatenate([flat[a : a + s] for a, s in zip(starts, sizes, strict=True)])
        assert np.array_equal(take_pieces(flat, starts, sizes), want)
        out = np.zeros_like(flat)
        put_pieces(out, starts, sizes, want)
        assert np.array_equal(take_pieces(out, starts, sizes), want) and out.sum() == want.sum()


def test_units_of_all_ranks_lie_where_others_look(tmp_path):
    """Odd sizes, several chunks, a rest; two parities and a second region apart."""
    stores = [SharedStore(f"{tmp_path}/group", 3, rank) for rank in range(3)]
    for unit, count in ((1, 5), (3, 40_000), (70_000, 3), (8, 1), (0, 4)):
        first = [store.units(unit, count) for store in stores]
        second = [store.units(unit, 1, after=units) for store, units in zip(stores, first, strict=True)]
        data = [(np.arange(unit * count) * 7 + rank * 3).astype(np.uint8) for rank in range(3)]
        for rank in range(3):
            first[rank].publish(4, data[rank])
            first[rank].publish(5, data[rank] ^ 255)
            second[rank].publish(4, data[rank][:unit])
        for index in {0, count // 2, count - 1}:
            want = np.stack([d[index * unit : (index + 1) * unit] for d in data])
            assert np.array_equal(first[1].column(4, index), want)
            assert np.array_equal(first[1].column(5, index), want ^ 255)
            assert np.array_equal(first[2].of_rank(4, 1, index), want[1])
        assert np.array_equal(second[0].column(4, 0), np.stack([d[:unit] for d in data]))


@pytest.mark.parametrize(("ranks", "unit"), [(2, 40_000), (11, 6_001), (17, 70_000), (19, 7_680)])
def test_blocks_that_cross_lie_where_their_targets_look(tmp_path, ranks, unit):
    """Groups and chunks that are full and not, a unit past a chunk, both parities, a strided buffer.

    Seen to fail with a group's run taken for a target's, and with the rest of the sources left out.
    """
    stores = [SharedStore(f"{tmp_path}/group", ranks, rank) for rank in range(ranks)]
    crossed = [store.crossed(unit) for store in stores]
    data = np.random.default_rng(3).integers(0, 256, (ranks, ranks, unit)).astype(np.uint8)
    for source, here in enumerate(crossed):
        here.publish(6, data[source].reshape(-1))
        here.publish(7, data[source].reshape(-1) ^ 255)
    for target, here in enumerate(crossed):
        out, wide = np.empty((ranks, unit), np.uint8), np.empty((ranks, 2 * unit), np.uint8)[:, ::2]
        here.take(6, out)
        here.take(7, wide)
        assert np.array_equal(out, data[:, target]) and np.array_equal(wide, data[:, target] ^ 255)


@pytest.mark.parametrize("missing", [1, 2, 3, 4, 7])
def test_units_that_end_short_are_padded_with_zeros(tmp_path, missing):
    """The last unit may be short, or some units missing: what is left over of an earlier call is not seen."""
    stores = [SharedStore(f"{tmp_path}/group", 2, rank) for rank in range(2)]
    for unit, count in ((3, 5), (2731, 40)):
        units = [store.units(unit, count) for store in stores]
        for rank in range(2):
            units[rank].publish(0, np.full(unit * count, 255, np.uint8))
            units[rank].publish(0, np.full(unit * count - missing, 7 + rank, np.uint8))
        whole = np.concatenate([units[0].column(0, index) for index in range(count)], axis=1)
        want = np.full((2, unit * count), 7, np.uint8)
        want[1], want[:, unit * count - missing :] = 8, 0
        assert np.array_equal(whole, want)
        for strided in (False, True):
            out = np.zeros((unit * count - missing, 2), np.uint8)[:, 0]
            out = out if strided else out.copy()
            fill_short(out, np.ascontiguousarray(whole).reshape(2, count, unit)[0])
            assert (out == 7).all()


def table(*rows):
    return np.array([Descriptor(3, **row) for row in rows], np.int64)


def test_differences_name_ranks_and_what_differs():
    same = {"kind": 2, "dtype": 11, "length": 8, "op": 0}
    assert differences(table(same, same), [4, 7]) is None
    text = differences(table(same, {**same, "length": 9}, same), [4, 7, 5])
    assert text == "the ranks disagree on the count: ranks 4-5: 8; rank 7: 9"
    text = differences(table(same, {**same, "kind": KINDS.index("barrier")}), [0, 1])
    assert text == "the ranks disagree on the operation: rank 0: all_reduce; rank 1: barrier"


def test_marks_differ_with_every_field_that_must_be_equal():
    base = Descriptor(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
    marks = {mark_of(base._replace(**{name: 99})) for name in Descriptor._fields[1:AGREED]}
    assert len(marks | {mark_of(base)}) == AGREED
    assert mark_of(base._replace(number=77, balance=5)) == mark_of(base)


def test_balance_is_zero_exactly_when_every_pair_agrees():
    rng = np.random.default_rng(3)
    counts = rng.integers(0, 5, (6, 6))
    every = np.arange(6)

    def total(sent, expected):
        owed = [balance(me, every, sent[me]) - balance(every, me, expected[:, me]) for me in range(6)]
        return sum(owed) % 2**64

    assert total(counts, counts) == 0
    for s, t in ((0, 1), (5, 2)):
        other = counts.copy()
        other[s, t] += 1
        assert total(counts, other) != 0
        other[t, s] -= 1  # sums by rank are as before
        assert total(counts, other) != 0


def test_the_selector_takes_the_least_estimate_and_says_why():
    world, one_node = tuple(rank // 16 for rank in range(384)), (0,) * 8
    assert choose("all_to_all", 64, world, LINK).name == "full-mesh"
    assert choose("all_reduce", 64, world, LINK).name == "one-shot"
    assert choose("all_reduce", 1 << 20, world, LINK).name == "full-mesh"
    assert choose("broadcast", 8, one_node, LINK).name == "direct"
    assert choose("broadcast", 1 << 20, world, LINK).name == "binomial"
    assert choose("all_to_all_v", 0, world, LINK).name == "full-mesh"
    choice = choose("all_gather", 1 << 10, one_node, LINK)
    assert choice.reason.startswith("estimates in us: full-mesh 2.06, ")
    for kind, names in ALGORITHMS.items():
        if not kind.endswith("_v"):
            for name in names:
                assert estimate_ps(kind, name, 100, world, LINK) > 0


def test_overrides_are_read_and_checked():
    assert overrides("all_reduce:ring, barrier:dissemination") == {
        "all_reduce": "ring",
        "barrier": "dissemination",
    }
    assert overrides("") == {}
    with pytest.raises(UsageError, match="nearest: all_reduce"):
        overrides("allreduce:ring")
    with pytest.raises(UsageError, match="'rings' is not one of .*nearest: ring"):
        checked("all_reduce", "rings")
