"""Every rule of posts matters in the compiled core too: built with one of them broken, it is caught."""

import dataclasses
import shutil

import pytest
import test_posts_oracle
from test_broken_rules import broken_core

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
RULES = [
    "NO_FENCE",  # a fence orders nothing
    "NO_STRONG",  # a strong operation waits for none
    "SIGNAL_FREE",  # a signal passes the data of its stream
    "RNR_DELIVERS",  # a send without a receive counts as delivered
    "FLUSH_LOST",  # a failed stream forgets what is behind the failure
    "MATCH_ANY_ORDER",  # the latest that fits
    "GUARD_OPEN",  # any memory is open, any queue is there
    "LOOK_ONE_PLANE",  # lookahead knows the latencies of plane 0 only
]


SEEDS = range(150)


def caught(monkeypatch, module, **extra):
    """The first seed whose program shows the fault, or None."""
    patient = test_posts_oracle.config
    monkeypatch.setattr(
        test_posts_oracle, "config", lambda seed: dataclasses.replace(patient(seed), wall_deadline_s=3.0)
    )
    for seed in SEEDS:
        try:
            found, _ = test_posts_oracle.differences(
                seed, ("broken",), ({"jitter": 0.1},), module=module, threads=True, **extra
            )
        except RuntimeError as error:  # a rank failed
            found = str(error)
        if found:
            return seed, found
    return None


@pytest.mark.parametrize("rule", RULES)
def test_broken_core_is_caught(rule, monkeypatch, tmp_path, capfd):
    module, extra = broken_core(rule, tmp_path)
    found = caught(monkeypatch, module, **extra)
    capfd.readouterr()
    assert found, f"no program of {len(SEEDS)} noticed"
    print(f"{rule}: seed {found[0]}: {found[1]}")
