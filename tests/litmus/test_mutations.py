"""Each rule is taken out of the implementation, and the rows named in docs/memory_model.md must fail.

The rule is swapped by the rank program before the machine starts; the product knows nothing of it.
"""

from __future__ import annotations

import pytest
from litmus_ranks import observe

from memsem.litmus import by_name
from memsem.model import outcomes

NO_FENCE = """
from memsem.operations import Operations
Operations.fence = lambda self: None
"""
NO_QUIET = """
from memsem.operations import Operations
Operations.quiet = lambda self: None
"""
SIGNAL_FREE = """
from emulator.delivery import Delivery, ORD_STREAM
cut = Delivery._cut
def free(self, part, rails, signal):
    cut(self, part, rails, signal)
    part["order"] &= ~ORD_STREAM
Delivery._cut = free
"""
ONE_RAIL = """
from emulator.delivery import Delivery
cut = Delivery._cut
def one(self, part, rails, signal):
    cut(self, part, rails, signal)
    part["stream"][: rails - 1] = 0
Delivery._cut = one
"""
NO_STRONG = """
from memsem.ordering import PLACES
PLACES["strong"] = PLACES["relaxed"]
"""
NO_WR_FENCE = """
from emulator.device import Device
post = Device.post
def unheld(self, posts, *more, **options):
    posts["rd_below"] = 0
    return post(self, posts, *more, **options)
Device.post = unheld
"""
SKIP_EMPTY = """
from memsem.signals import Signals
put_signal = Signals.put_signal
def skipping(self, dst, src, *more, **options):
    return put_signal(self, dst, src, *more, **options) if len(src) else None
Signals.put_signal = skipping
"""
MUTATIONS = {
    "fence": (NO_FENCE, ["MP+fence", "S+fence", "2+2W+fence", "zero+fence"]),
    "quiet": (NO_QUIET, ["SB+quiet", "R+quiet+quiet", "MP+quiet+two-homes", "WRC+message+quiet"]),
    "signal order": (SIGNAL_FREE, ["MP+put_signal", "chunked+own", "counter+all"]),
    "all rails": (ONE_RAIL, ["chunked+rails"]),
    "strong": (NO_STRONG, ["MP+relaxed+strong", "2+2W+relaxed+strong"]),
    "work request fence": (NO_WR_FENCE, ["LB+wr-fence"]),
    "empty signal": (SKIP_EMPTY, ["zero+arrives"]),
}
SEEDS = 400


@pytest.mark.multirank
@pytest.mark.parametrize("rule", MUTATIONS)
def test_without_the_rule_its_rows_fail(rule: str) -> None:
    patch, rows = MUTATIONS[rule]
    observed = observe(rows, SEEDS, patch=patch)
    for name in rows:
        litmus = by_name(name)
        shown = [dict(pairs) for pairs in observed[name] if litmus.outcome(dict(pairs))]
        assert shown, f"{name} holds without the rule"
        assert set(observed[name]) - outcomes(litmus)
