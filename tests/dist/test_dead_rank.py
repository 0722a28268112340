"""The torch backend after a death."""

import pytest
from ranks import ROOT, run_ranks

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(200)]
PROGRAMS = ROOT / "tests" / "dist" / "programs"


def test_survivors_of_a_death_make_a_new_group():
    """Shown to fail where a group made before the death is not refused: the second call waits."""
    ran = run_ranks(4, PROGRAMS / "death.py", keep_going=True, check=False)
    assert ran.stdout.count("all as expected") == 3, ran.stderr
