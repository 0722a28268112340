"""Calls as users make them, beside gloo: the same results at odd world sizes; a group after a death."""

import pytest
from ranks import ROOT, run_ranks

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(200)]
PROGRAMS = ROOT / "tests" / "dist" / "programs"


def lines(size, backend):
    out = run_ranks(size, PROGRAMS / "attack.py", args=(backend,)).stdout.splitlines()
    found = dict(line.rsplit(" ", 1) for line in out if line)
    assert len(found) == len(out) and not len(found) % size
    return found


@pytest.mark.parametrize("size", [3, 5])
def test_what_comes_of_every_call_is_what_gloo_says(size):
    """Every reduction, dtype and shape (zero elements, scalars), views of many kinds, uneven splits, objects,
    groups made in another order on each rank, messages, meshes, a second start. Shown to fail with strides
    ignored (tensors.landing) and with MAX taken for SUM."""
    ours, gloo = lines(size, "superpod"), lines(size, "gloo")
    assert ours.keys() == gloo.keys()
    known = {name for name, text in gloo.items() if text != "none"}
    assert len(known) > 0.8 * len(gloo)
    assert {name for name in known if ours[name] != gloo[name]} == set()


def test_survivors_of_a_death_make_a_new_group():
    """Shown to fail where a group made before the death is not refused: the second call waits."""
    ran = run_ranks(4, PROGRAMS / "death.py", keep_going=True, check=False)
    assert ran.stdout.count("all as expected") == 3, ran.stderr
