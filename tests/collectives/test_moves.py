"""Copying rows: compiled as by NumPy, whatever the shape; a view it does not know is left to NumPy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.moves import move_rows, mover_of
from collectives.pieces import Bytes
from emulator.solo import solo_device

DEVICE = solo_device()
COMPILED = DEVICE.compiled is not None


@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(0, 2300)),
    gaps=st.tuples(st.integers(0, 3), st.integers(0, 200)),
    offsets=st.tuples(st.integers(0, 70), st.integers(0, 70)),
    nd=st.integers(1, 3),
    inward=st.booleans(),
)
def test_rows_are_copied_as_by_numpy(
    shape: tuple[int, int, int], gaps: tuple[int, int], offsets: tuple[int, int], nd: int, inward: bool
) -> None:
    """Fails if a tail of a row is left out, or rows with gaps are taken for one."""
    planes, rows, nbytes = shape
    row = nbytes + gaps[1]
    plane = (rows + gaps[0]) * row
    rng = np.random.default_rng(nbytes)
    flat = rng.integers(
        0, 256, offsets[1] + nbytes * (rows if nd > 1 else 1) * (planes if nd > 2 else 1), np.uint8
    )
    room = rng.integers(0, 256, offsets[0] + planes * plane + row, np.uint8)
    got, expected = (room, flat), (room.copy(), flat.copy())
    index = (0,) * (3 - nd)

    def cut(room: Bytes) -> Bytes:
        start = room[offsets[0] :]
        return np.lib.stride_tricks.as_strided(start, (planes, rows, nbytes), (plane, row, 1))[index]

    move_rows(cut(expected[0]), expected[1][offsets[1] :], inward)
    mover_of(DEVICE)(cut(got[0]), got[1][offsets[1] :], inward)
    assert np.array_equal(got[0], expected[0])
    assert np.array_equal(got[1], expected[1])


@pytest.mark.skipif(not COMPILED, reason="needs the compiled core")
def test_what_the_compiled_copy_does_not_know_is_left_alone() -> None:
    compiled = DEVICE.compiled.move_rows
    view, flat = np.zeros((4, 8), np.uint8), np.ones(32, np.uint8)
    for wrong in (
        (view.astype(np.int8), flat, True),
        (view[:, ::2], flat[:16], True),
        (view, flat[:31], True),
        (view, flat.reshape(2, 2, 8)[:, :1], True),
        (view, flat.tolist(), True),
        (view, flat),
    ):
        assert compiled(*wrong) is None
    assert not view.any()
    assert compiled(view, flat, True) is True
    assert view.all()
