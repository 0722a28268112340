"""Symmetric pieces come back: the same place again, words 0 again, mistakes found on every rank."""

import pytest
from ranks import run_ranks

REUSE = """
import numpy as np
import emulator
from emulator.engine.api import ADD, GE
from emulator.transport import Area
d = emulator.init()
other = 1 - d.rank
places = []
for turn in range(3):
    base, word, _ = d.symmetric.carve(Area.HEAP, 100, "piece", words=2)
    keep = d.symmetric.carve(Area.HEAP, 64, "keep", words=1)
    assert (d.read(word), d.read(word + 1)) == (0, 0)
    d.put(other, base, np.full(8, turn + 1, np.uint8), 8, word, ADD, 5)
    if d.rank == 0:  # rank 1 does not even look
        d.wait([(word, GE, 5)])
    d.symmetric.release(Area.HEAP, base, 100, "piece", word, 2)
    places.append([base, word, keep[0], keep[1]])
report(places=places, now=d.now_ps)
"""

MISTAKES = """
import emulator
from emulator.errors import UsageError
from emulator.transport import Area
d = emulator.init()
def refused(*arguments):
    try:
        d.symmetric.release(Area.HEAP, *arguments)
    except UsageError as error:
        return str(error)
base, word, _ = d.symmetric.carve(Area.HEAP, 128, "piece", words=2)
found = [refused(base + 64 * d.rank, 64, "piece"), refused(base + 128, 64, "piece")]
d.symmetric.release(Area.HEAP, base, 128, "piece", word, 2)
found.append(refused(base, 128, "piece"))
report(found=found)
"""


@pytest.mark.parametrize("transport", ["shared", "rma"])
def test_a_piece_is_carved_again_with_its_words_at_zero(transport: str) -> None:
    """Mutation: words not set back leave 5 in the next owner's signal."""
    ran = run_ranks(2, REUSE, transport=transport)
    places = ran.reports[0]["places"]
    assert places == ran.reports[1]["places"]
    assert len({(base, word) for base, word, _, _ in places}) == 1
    assert len({keep for _, _, keep, _ in places}) == 3


def test_mistakes() -> None:
    for report in run_ranks(2, MISTAKES).reports.values():
        apart, outside, twice = report["found"]
        assert "must be alike on all ranks" in apart
        assert "is not taken" in outside and "is not taken" in twice
