"""Every rule of posts matters: each wrong one is noticed, by random programs and by a test in closed form."""

import dataclasses

import pytest
import test_posts_oracle
from mutations import BROKEN, broken_twin

SEEDS = range(150)
CLOSED = {
    "NO_FENCE": "test_order.py::test_order_bits",
    "NO_STRONG": "test_order.py::test_order_bits",
    "SIGNAL_FREE": "test_order.py::test_order_bits test_match.py::test_non_overtaking",
    "RNR_DELIVERS": "test_retry.py::test_receiver_not_ready",
    "FLUSH_LOST": "test_retry.py::test_which_failures_are_reported",
    "MATCH_ANY_ORDER": "test_match.py::test_first_fit_in_order",
    "GUARD_OPEN": "test_retry.py::test_region",
}


def caught(monkeypatch, rule):
    """The first seed whose program shows the fault, or None."""
    impatient = test_posts_oracle.config

    def config(seed):
        return dataclasses.replace(impatient(seed), wall_deadline_s=3.0)

    monkeypatch.setattr(test_posts_oracle, "config", config)
    for seed in SEEDS:
        try:
            found, _ = test_posts_oracle.differences(
                seed, ("broken",), ({"jitter": 0.1},), module=broken_twin(rule), threads=True
            )
        except RuntimeError as error:  # a rank failed
            found = str(error)
        if found:
            return seed, found
    return None


def test_the_frame_itself_is_sound(monkeypatch):
    """The same way of running, nothing broken: no difference. (So what is caught below is the rule.)"""
    monkeypatch.setattr("test_broken_posts.SEEDS", range(20))
    assert caught(monkeypatch, None) is None


@pytest.mark.parametrize("rule", BROKEN)
def test_broken_rule_is_caught(rule, monkeypatch, capfd):
    found = caught(monkeypatch, rule)
    capfd.readouterr()
    assert found, f"no program of {len(SEEDS)} noticed"
    print(f"{rule}: seed {found[0]}: {found[1]}")


@pytest.mark.parametrize("rule", CLOSED)
def test_broken_rule_fails_a_closed_form(rule, monkeypatch):
    """The tests that name the rule, run on the broken engine."""
    import harness

    whole = harness.Shared

    def broken(cfg, kind, *args, **extra):
        return whole(cfg, kind, broken_twin(rule))

    monkeypatch.setattr(harness, "Shared", broken)
    with pytest.raises(AssertionError):
        run_closed(rule)


def run_closed(rule):
    """Run every case of the tests of a rule."""
    import importlib

    for name in CLOSED[rule].split():
        module, test = name.split(".py::")
        function = getattr(importlib.import_module(module), test)
        for arguments in cases(function):
            function("python", **arguments)


def cases(function):
    """The arguments of a test by its own parametrize marks."""
    found = [{}]
    for mark in getattr(function, "pytestmark", []):
        if mark.name != "parametrize":
            continue
        names = [name.strip() for name in mark.args[0].split(",")]
        rows = [row if len(names) > 1 else (row,) for row in mark.args[1]]
        found = [old | dict(zip(names, row, strict=True)) for old in found for row in rows]
    return found
