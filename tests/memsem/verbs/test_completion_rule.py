"""Design, section 8: every posted request ends exactly once. Held against the counts after every case of
every program, good and bad, under both transports and engines, with random host sleeps, and with adversarial
delivery; and nothing that a rank sees depends on any of the first three.
"""

import pytest
from verbs_runs import outcome, start

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(600)]
MODULES = ["good", "bad", "datagrams"]
VARIANTS = {
    "c": {},
    "rma": {"transport": "rma"},
    "jitter": {"jitter": "0.3,300,11"},
    "python": {"engine": "python"},
}


def rule_holds(ran):
    cases = [(rank, name, case) for rank, r in ran.reports.items() for name, case in r["cases"].items()]
    for rank, name, case in cases:
        tally, where = case["tally"], f"rank {rank}, {name}"
        assert case["violations"] == [], where
        sends = tally["signalled"] + tally["silent"] + tally["failed_sends"] + tally["discarded_sends"]
        recvs = tally["received"] + tally["failed_recvs"] + tally["discarded_recvs"]
        assert tally["posted_sends"] == sends and tally["posted_recvs"] == recvs, where
        ended = tally["signalled"] + tally["failed_sends"] + tally["received"] + tally["failed_recvs"]
        assert tally["completions"] == ended, where
    return len(cases)


@pytest.mark.parametrize("module", MODULES)
def test_every_request_ends_once(module):
    assert rule_holds(start(module)) >= 26


@pytest.mark.slow
@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "c"])
@pytest.mark.parametrize("module", MODULES)
def test_whatever_the_host_does(module, variant):
    """Statuses, order, data, counts and virtual times are equal to the bit."""
    ran = start(module, **VARIANTS[variant])
    rule_holds(ran)
    assert outcome(ran) == outcome(start(module))
    assert ran.sha == start(module).sha


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("module", MODULES)
def test_under_adversarial_delivery(module, seed):
    """Late packets and late reports, but the rule holds, and RC keeps its order."""
    ran = start(module, delivery="adversarial", seed=seed)
    rule_holds(ran)
    if module == "good":
        cases = ran.reports[0]["cases"]
        assert cases["doorbells"]["seen"]["order"] == list(range(10))
        assert cases["zero_bytes"]["seen"]["ids"] == [1, 2, 3, 4, 5]
        assert cases["both_ways"]["seen"] == 20
