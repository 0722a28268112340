"""Each rule of the model carries rows of the table: without it the named rows turn from forbidden to weak.

And what must hold whatever the rules: an outcome of whole operations is always allowed, and
more order never allows more.
"""

from __future__ import annotations

import dataclasses

import pytest

import memsem.model_events as rules
from memsem.litmus import by_name, every_litmus
from memsem.litmus_ops import Fence, Litmus
from memsem.model import outcomes, shows, verdict

CARRIED = {
    "_fenced": ["MP+fence", "S+fence", "2+2W+fence", "2W+fence", "zero+fence", "atomic+put+fence"],
    "_strong": ["MP+relaxed+strong", "S+relaxed+strong", "2+2W+relaxed+strong", "zero+strong"],
    "_queued": ["MP+rc", "SB+rc", "MP+rc+imm", "completion+rc"],
    "_held_by_flag": ["LB+wr-fence"],
    "_told_in_order": ["completion+rm+order"],
    "_sent_in_order": ["message+order"],
}
PAIRS = [(rule, row) for rule, rows in CARRIED.items() for row in rows]


@pytest.mark.parametrize(("rule", "row"), PAIRS)
def test_without_the_rule_the_row_is_allowed(rule: str, row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert verdict(by_name(row)) == "forbidden"
    monkeypatch.setattr(rules, rule, lambda later, earlier: False)
    assert verdict(by_name(row)) == "weak"


@pytest.mark.parametrize("litmus", every_litmus(), ids=lambda litmus: litmus.name)
def test_whole_operations_are_always_allowed(litmus: Litmus) -> None:
    assert outcomes(litmus, sequential=True) <= outcomes(litmus)


@pytest.mark.parametrize("litmus", every_litmus(), ids=lambda litmus: litmus.name)
def test_fences_everywhere_allow_no_more(litmus: Litmus) -> None:
    fenced = {name: tuple(x for op in ops for x in (op, Fence())) for name, ops in litmus.threads.items()}
    assert outcomes(dataclasses.replace(litmus, threads=fenced)) <= outcomes(litmus)


def test_a_wait_that_nothing_fulfils_is_stuck() -> None:
    litmus = by_name("zero+arrives")
    alone = dataclasses.replace(litmus, threads={"P0": (), "C": litmus.threads["C"]})
    assert all(dict(pairs)["stuck"] for pairs in outcomes(alone)) and shows(alone, outcomes(alone))
