"""Datatypes and buffer specifications against numpy: which bytes travel, in which order, and where to."""

import array

import numpy as np
import pytest

from memsem.basic_types import BASIC, BYTE, DOUBLE, INT
from memsem.bufspec import parse
from memsem.datatypes import DATATYPE_NULL, ORDER_FORTRAN, UNDEFINED, Datatype
from memsem.mpi_errors import ERR_ARG, ERR_BUFFER, ERR_TYPE, Exception  # noqa: A004
from memsem.status import Status

MATRIX = np.arange(24.0).reshape(4, 6)


def sent(spec):
    return parse(spec, False).pack().tobytes()


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        (MATRIX, MATRIX),
        (MATRIX.T, MATRIX),  # F order: memory order, as mpi4py sends it
        (np.float64(7), np.float64(7)),
        (np.array(5), np.array(5)),
        (MATRIX[:0], MATRIX[:0]),
        ([MATRIX, 3], MATRIX.reshape(-1)[:3]),
        ([MATRIX, (3, 2)], MATRIX.reshape(-1)[2:5]),
        ([MATRIX, DOUBLE], MATRIX),
        ([MATRIX, "d"], MATRIX),
        ([MATRIX, "f8"], MATRIX),
        ([MATRIX, 3, DOUBLE], MATRIX.reshape(-1)[:3]),
        ([MATRIX, (2, 20), DOUBLE], MATRIX.reshape(-1)[20:22]),
        ([MATRIX, 2, 20, DOUBLE], MATRIX.reshape(-1)[20:22]),
        ([MATRIX, 2, None, DOUBLE], MATRIX.reshape(-1)[:2]),
        ([MATRIX, None, 22, DOUBLE], MATRIX.reshape(-1)[22:]),
        ([MATRIX, 16, BYTE], MATRIX.reshape(-1)[:2]),
        ((MATRIX, 1), MATRIX.reshape(-1)[:1]),
        (np.array([1, 2], "M8[s]"), np.array([1, 2], "M8[s]")),
        (array.array("i", [1, 2, 3]), np.array([1, 2, 3], np.int32)),
    ],
)
def test_a_specification_names_its_bytes(spec, want):
    assert sent(spec) == want.tobytes(order="A")


def test_bytes_like_objects_are_bytes():
    for thing in (b"abc", bytearray(b"abc"), memoryview(b"abc"), np.frombuffer(b"abc", np.uint8)):
        buffer = parse(thing, False)
        assert buffer.pack().tobytes() == b"abc" and buffer.datatype is BYTE


@pytest.mark.parametrize(
    ("spec", "kind", "text"),
    [
        (3, TypeError, "expecting buffer or list/tuple"),
        ("text", TypeError, "expecting buffer or list/tuple"),
        (None, TypeError, "expecting buffer or list/tuple"),
        ([MATRIX], ValueError, "expecting 2 to 4 items"),
        ([MATRIX, 1, 2, 3, 4], ValueError, "expecting 2 to 4 items"),
        ([MATRIX, -1], ValueError, "negative count -1"),
        ([MATRIX, (1, -2)], ValueError, "negative displacement -2"),
        ([MATRIX, (1, 25)], ValueError, "displacement 25 out of bounds, number of datatype entries 24"),
        ([MATRIX, "zz"], KeyError, "cannot map 'zz'"),
        ([np.zeros(3, np.uint8), INT], ValueError, "buffer length 3 is not a multiple of datatype extent 4"),
        (np.array([object()]), KeyError, "cannot map 'O'"),
        (MATRIX[:, 1], BufferError, "not contiguous"),
        (np.zeros(2, ">i4"), BufferError, "non-native byte order"),
    ],
)
def test_a_bad_specification_is_refused_as_mpi4py_does(spec, kind, text):
    with pytest.raises(kind, match=text):
        parse(spec, False)


def test_memory_that_cannot_be_written_cannot_receive():
    frozen = np.zeros(2)
    frozen.flags.writeable = False
    for thing in (b"ab", frozen):
        parse(thing, False)
        with pytest.raises(BufferError, match="not writable"):
            parse(thing, True)


@pytest.mark.parametrize("spec", [[MATRIX, 25], [MATRIX, (5, 20)], [MATRIX, 2, 23, DOUBLE], [b"abc", 1, INT]])
def test_elements_past_the_end_are_refused_where_mpi_would_read_them(spec):
    with pytest.raises(Exception) as caught:
        parse(spec, False)
    assert caught.value.Get_error_class() == ERR_BUFFER


COLUMN = DOUBLE.Create_vector(4, 1, 6).Commit()


def test_a_column_of_a_matrix():
    assert (COLUMN.size, COLUMN.extent, COLUMN.Get_extent()) == (32, 19 * 8, (0, 152))
    assert sent([MATRIX.reshape(-1)[2:].copy(), 1, COLUMN]) == MATRIX[:, 2].tobytes()
    into = np.zeros((4, 6))
    flat = into.reshape(-1)[3:]
    parse([flat, 1, COLUMN], True).unpack(parse(np.arange(4.0), False).pack())
    assert np.array_equal(into[:, 3], np.arange(4.0)) and into.sum() == 6


def test_a_shorter_message_fills_the_first_places_only():
    into = np.full((4, 6), -1.0)
    parse([into, 1, COLUMN], True).unpack(parse(np.arange(2.0), False).pack())
    assert into[:, 0].tolist() == [0, 1, -1, -1] and (into[:, 1:] == -1).all()


@pytest.mark.parametrize("seed", range(30))
def test_indexed_and_struct_equal_numpy(seed):
    """Random blocks, also overlapping gaps and out of order; guard bytes between stay. Seed in the test's
    name."""
    rng = np.random.default_rng(seed)
    memory = rng.integers(0, 256, 4096, dtype=np.uint8)
    starts = rng.permutation(40)[: rng.integers(1, 8)] * 3
    lengths = rng.integers(0, 3, len(starts))
    kind = INT.Create_indexed(lengths.tolist(), starts.tolist()).Commit()
    one = np.concatenate([np.arange(4 * s, 4 * (s + n)) for s, n in zip(starts, lengths, strict=True)])
    count = int(rng.integers(0, 4))
    places = np.concatenate([one + i * kind.extent for i in range(count)] or [one[:0]]).astype(int)
    buffer = parse([memory, count, kind], False)
    assert buffer.nbytes == count * kind.size == places.size
    assert np.array_equal(buffer.pack(), memory[places])
    into = np.zeros(4096, np.uint8)
    parse([into, count, kind], True).unpack(buffer.pack())
    assert np.array_equal(np.flatnonzero(into), np.sort(places[memory[places] > 0]))


def test_constructors_agree_with_each_other():
    assert INT.Create_contiguous(3).places(2).tolist() == list(range(24))
    assert INT.Create_contiguous(3).is_contiguous and not COLUMN.is_contiguous
    vector, spelled = INT.Create_vector(2, 2, 5), INT.Create_indexed([2, 2], [0, 5])
    assert vector.places(2).tolist() == spelled.places(2).tolist()
    assert vector.extent == spelled.extent == INT.Create_hvector(2, 2, 20).extent == 28
    block = INT.Create_indexed_block(2, [0, 5])
    assert block.places(1).tolist() == vector.places(1).tolist()
    record = Datatype.Create_struct([1, 2], [0, 8], [INT, DOUBLE])
    assert (record.size, record.extent) == (20, 24)
    assert record.places(1).tolist() == [*range(4), *range(8, 24)]
    wide = INT.Create_resized(0, 12)
    assert wide.places(2).tolist() == [0, 1, 2, 3, 12, 13, 14, 15]
    assert wide.Get_true_extent() == (0, 4)


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_subarray_is_the_slice(order):
    cube = np.arange(60, dtype=np.int32).reshape((3, 4, 5), order=order)
    flag = 0 if order == "C" else ORDER_FORTRAN
    kind = INT.Create_subarray([3, 4, 5], [2, 2, 3], [1, 0, 2], flag).Commit()
    want = cube[1:3, 0:2, 2:5].reshape(-1, order=order)
    assert sent([cube, 1, kind]) == want.tobytes() and kind.extent == cube.nbytes


@pytest.mark.parametrize("n", [2**28 + 1, 2**31, 2**32 + 3])
def test_counts_beyond_32_bits_stay_exact(n):
    """Messages above 2 GB, as in ompi #5383 and CommBench #2."""
    assert INT.Create_contiguous(1).span(n) == (0, 4 * n)
    status = Status()
    status.Set_elements(DOUBLE, n)
    assert status.Get_count(DOUBLE) == n and status.Get_count() == 8 * n


def test_counts_of_a_status():
    status = Status()
    status.count = 24
    record = Datatype.Create_struct([1, 1], [0, 4], [INT, DOUBLE])
    assert (status.Get_count(), status.Get_count(INT), status.Get_count(DOUBLE)) == (24, 6, 3)
    assert status.Get_count(record) == 2 and status.Get_elements(record) == 4
    status.count = 16
    assert status.Get_count(record) == UNDEFINED and status.Get_elements(record) == 3
    status.count = 5
    assert status.Get_count(INT) == UNDEFINED == status.Get_elements(INT)


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: INT.Create_vector(-1, 1, 1), ERR_ARG),
        (lambda: INT.Create_contiguous(1 << 40), ERR_ARG),
        (lambda: INT.Create_vector(1 << 30, 1, 2), ERR_ARG),
        (lambda: INT.Create_vector(1 << 20, 1, 1 << 40), ERR_ARG),
        (lambda: INT.Create_contiguous(1.5), ERR_ARG),
        (lambda: INT.Create_hvector(2, 1, "x"), ERR_ARG),
        (lambda: INT.Create_indexed([1], [1 << 70]), ERR_ARG),
        (lambda: INT.Create_resized(0, 1.5), ERR_ARG),
        (lambda: INT.Create_subarray([1 << 40], [1], [0]), ERR_ARG),
        (lambda: INT.Create_subarray([4, 4], [1], [0]), ERR_ARG),
        (lambda: Datatype.Create_struct([1 << 40], [0], [INT]), ERR_ARG),
        (lambda: INT.Create_indexed([1, 2], [0]), ERR_ARG),
        (lambda: INT.Create_subarray([4], [3], [2]), ERR_ARG),
        (lambda: DATATYPE_NULL.Create_contiguous(2), ERR_TYPE),
        (lambda: INT.Free(), ERR_TYPE),
        (lambda: parse([MATRIX, 1, DOUBLE.Create_contiguous(2)], False), ERR_TYPE),
        (lambda: parse([MATRIX, 1, DATATYPE_NULL], False), ERR_TYPE),
    ],
)
def test_bad_datatypes_have_their_error(make, code):
    with pytest.raises(Exception) as caught:
        make()
    assert caught.value.Get_error_class() == code == int(caught.value)


def test_a_freed_datatype_is_refused():
    kind = INT.Create_contiguous(2).Commit()
    parse([np.zeros(4, np.int32), 2, kind], False)
    kind.Free()
    with pytest.raises(Exception, match="MPI_ERR_TYPE"):
        parse([np.zeros(4, np.int32), 2, kind], False)


def test_basic_types_have_the_sizes_of_their_numpy_twins():
    twins = {"INT8_T": "i1", "SHORT": "i2", "INT": "i4", "LONG": "i8", "FLOAT": "f4", "DOUBLE": "f8"}
    twins |= {"C_DOUBLE_COMPLEX": "c16", "C_BOOL": "?", "UNSIGNED_LONG": "u8", "LONG_DOUBLE": "g"}
    for name, code in twins.items():
        assert BASIC[name].size == BASIC[name].extent == np.dtype(code).itemsize
        assert parse(np.zeros(1, code), False).datatype.size == np.dtype(code).itemsize
