"""What the emulator shows is what the model allows, and all of the weak outcomes do show.

The suite has a sample of seeds; a thousand of them, where every weak outcome must show, are a sweep.

Seeds are 0 to SEEDS - 1, so a failure names the row and the outcome; run that row alone with `observe`.
"""

from __future__ import annotations

import os

import pytest
from litmus_ranks import ROWS, Observed, observe

from memsem.litmus import by_name
from memsem.litmus_ops import Litmus
from memsem.model import outcomes

NAMES = [litmus.name for litmus in ROWS]
FEW, SEEDS = int(os.environ.get("LITMUS_SEEDS", "60")), 1000


@pytest.fixture(scope="module")
def few() -> Observed:
    return observe(NAMES, FEW, first=5_000)


@pytest.fixture(scope="module")
def many() -> Observed:
    return observe(NAMES, SEEDS, timeout_s=600)


def check(litmus: Litmus, observed: Observed) -> None:
    forbidden = set(observed[litmus.name]) - outcomes(litmus)
    assert not forbidden, f"{litmus.name}: {[dict(pairs) for pairs in forbidden]} is not allowed"


@pytest.mark.multirank
@pytest.mark.parametrize("litmus", ROWS, ids=lambda litmus: litmus.name)
def test_a_few_seeds_show_nothing_forbidden(litmus: Litmus, few: Observed) -> None:
    assert sum(few[litmus.name].values()) == FEW
    check(litmus, few)


@pytest.mark.multirank
@pytest.mark.sweep
@pytest.mark.timeout(660)
@pytest.mark.parametrize("litmus", ROWS, ids=lambda litmus: litmus.name)
def test_observed_is_allowed(litmus: Litmus, many: Observed) -> None:
    assert sum(many[litmus.name].values()) == SEEDS
    check(litmus, many)


@pytest.mark.multirank
@pytest.mark.sweep
@pytest.mark.timeout(660)
@pytest.mark.parametrize(
    "litmus", [row for row in ROWS if row.verdict != "forbidden"], ids=lambda litmus: litmus.name
)
def test_what_is_allowed_is_seen(litmus: Litmus, many: Observed) -> None:
    seen = sum(n for pairs, n in many[litmus.name].items() if litmus.outcome(dict(pairs)))
    assert seen, f"{litmus.name}: not once in {SEEDS} seeds"


@pytest.mark.multirank
def test_natural_delivery_shows_nothing_forbidden_either() -> None:
    observed = observe(NAMES, 20, delivery="natural")
    for litmus in ROWS:
        check(litmus, observed)
    kept = by_name("2W+none")  # without the adversary two puts to one place keep their order (tests-sos #22)
    assert not any(kept.outcome(dict(pairs)) for pairs in observed[kept.name])
