"""Ranks that wait are asleep, whether they block or poll: `benchmarks/idle.py`, smaller."""

import json

import pytest
from ranks import ROOT, run_ranks

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(120)]
RANKS, SECONDS = 16, 2


@pytest.mark.parametrize("engine", ["auto", "python"])
def test_waiting_costs_no_cpu_and_polling_few_wake_ups(engine: str) -> None:
    """The limits of 64 ranks and 10 s are 0.5 s of CPU in all and 10 wake-ups a rank. The program itself
    compares the virtual times with their closed form."""
    args = ("--seconds", str(SECONDS))
    ran = run_ranks(RANKS, ROOT / "benchmarks" / "idle.py", args=args, engine=engine)
    figures = json.loads(ran.stdout)
    print(figures)
    assert figures["ranks"] == RANKS
    assert figures["blocked_cpu_s"] < 0.5 * RANKS / 64
    assert 0 < figures["polling_wake_ups_most"] < 10
