"""Areas of XCCL point to point: published sizes, places that never overlap, who may talk to whom."""

import numpy as np
import pytest

from collectives.xccl.layout import ACK, FIELD_BYTES, TAIL, Geometry, Pairs, metadata_fields
from emulator.errors import UsageError


def test_the_metadata_area_is_the_published_one():
    """384 x 2 x 48 x 2 = 73,728 fields of 32 B: 2.25 MiB of the 4 MB the paper reserves."""
    assert metadata_fields(768, 48) == 73_728
    area = Geometry(rings=768, cores=48, slots=1, chunk_bytes=32, slot_bytes=0).metadata_bytes
    assert area == 73_728 * FIELD_BYTES == 2_359_296


def test_fields_and_slots_do_not_overlap():
    """Broken build: `field` without the direction, or `slot` without the metadata area before it."""
    g = Geometry(rings=3, cores=5, slots=7, chunk_bytes=64, slot_bytes=16)
    taken = np.zeros(g.nbytes, np.int32)
    for ring in range(3):
        for direction in (TAIL, ACK):
            start = g.field(ring, direction)
            taken[start : start + 5 * FIELD_BYTES] += 1
        for slot in range(7):
            taken[g.slot(ring, slot) :][:16] += 1
    assert (taken == 1).all()


def test_what_passes_the_end_of_a_ring_goes_on_at_its_beginning():
    g = Geometry(rings=2, cores=1, slots=4, chunk_bytes=8, slot_bytes=8)
    ring = g.slot(1, 0)
    assert g.pieces(1, 2, 2, 16) == [(ring + 16, 16)]
    assert g.pieces(1, 3, 3, 20) == [(ring + 24, 8), (ring, 12)]
    assert g.pieces(1, 4 * 9 + 3, 3, 5) == [(ring + 24, 5)]  # tail pointers count for ever
    assert g.pieces(0, 0, 1, 0) == [(g.slot(0, 0), 0)]


def test_pairs_find_each_others_rings():
    pairs = Pairs.of(6, [(3, 0), (1, 0), (0, 4), (1, 0)])
    assert (pairs.sources(0), pairs.targets(1), pairs.sources(5), pairs.most) == ([1, 3], [0], [], 2)
    everyone = Pairs.of(3, None)
    assert everyone.sources(1) == everyone.targets(2) == [0, 1, 2] and everyone.most == 3


@pytest.mark.parametrize("bad", [[(0, 6)], [(-1, 0)], [(1, 2, 3)]])
def test_pairs_of_ranks_that_do_not_exist_are_refused(bad):
    with pytest.raises(UsageError, match="names no two ranks of 0 to 5"):
        Pairs.of(6, bad)
