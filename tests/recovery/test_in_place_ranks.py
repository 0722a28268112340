"""Recovery in place on real ranks: every named death, one prepared model, a round each."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from emulator.faults import FaultPlan
from launch import paths
from launch.chaos.campaign import Campaign, prepared
from launch.recovery_options import Policy, recovery_times

pytestmark = pytest.mark.multirank

_S = 1_000_000_000_000
_MS = _S // 1000


def _kill(state: str, request: int = 9, count: int = 1, kind: str = "kill") -> dict[str, Any]:
    return {"kind": kind, "at_request": {"request": request, "state": state, "count": count}}


def _pages(state: str, count: int) -> dict[str, Any]:
    return {**_kill(state, 9, count, "page_fault"), "blocks": 3}


SCENARIOS: dict[str, tuple[list[dict[str, Any]], list[list[int]] | int]] = {
    "before its first token": ([_kill("prefill")], 1),
    "inside dispatch": ([_kill("dispatch", count=3)], 1),
    "inside combine": ([_kill("combine", count=2)], 1),
    "before sampling": ([_kill("sampling", count=2)], 1),
    "all tokens out, the end not told": ([_kill("finishing")], 1),
    "inside a lock": ([_kill("decode", count=2, kind="kill_in_lock")], 1),
    "two, one after the other": ([_kill("decode"), _kill("decode", 4, 2)], 2),
    "while the others recover": ([_kill("decode"), {"kind": "kill", "rank": 0, "at_ps": 9 * _S}], 2),
    "while the death is not declared": ([_kill("decode"), {"kind": "kill", "rank": 0, "at_ps": 2 * _S}], 2),
    "who took a request over dies too": ([_kill("decode", count=2), _kill("queued", 9, 1)], 2),
    "all but one": ([{"kind": "kill", "rank": r, "at_ps": (5 + r) * _MS} for r in (0, 1, 3, 4)], 4),
    "pages lost while it decodes": ([_pages("decode", 2)], 0),
    "pages lost inside combine": ([_pages("combine", 2)], 0),
    "pages lost between sampling and its end": ([_pages("sampling", 3), _pages("dispatch", 1)], 0),
    "pages lost, then the rank": ([_pages("decode", 1), _kill("decode", count=2)], 1),
    "the control process dies": ([{"kind": "control_death", "at_ps": 9 * _MS}], 1),
    "the control process and its standby": (
        [{"kind": "control_death", "at_ps": 9 * _MS}, {"kind": "control_death", "at_ps": 8 * _S}],
        2,
    ),
    "a link that flaps faster than the timer": (
        [
            {
                "kind": "link_flap",
                "link": "die:2",
                "at_ps": 9 * _MS,
                "period_ps": 7_000_000,
                "duration_ps": 20 * _MS,
            }
        ],
        0,
    ),
    "a link down, then a death": (
        [{"kind": "link_down", "link": "die:2", "at_ps": 9 * _MS, "duration_ps": 5 * _MS}, _kill("decode")],
        1,
    ),
    "the front end's ring is full": (
        [{"kind": "full_ring", "rank": 0, "at_ps": 6 * _MS, "duration_ps": 60 * _MS}],
        0,
    ),
    "queue pairs and NICs fail": (
        [
            {**_kill("sampling", 8, 1, "qp_error")},
            {"kind": "qp_error", "rank": 0, "at_ps": 12 * _MS},
            {"kind": "nic_down", "rank": 2, "at_ps": 9 * _MS, "duration_ps": 30 * _MS},
        ],
        0,
    ),
    "completions lost, twice, late": (
        [
            *({"kind": "completion_lost", "rank": r, "at_ps": 7 * _MS} for r in range(5)),
            *({"kind": "completion_duplicated", "rank": r, "at_ps": 10 * _MS} for r in range(5)),
            *(
                {"kind": "completion_late", "rank": r, "at_ps": 13 * _MS, "delay_ps": 9 * _MS}
                for r in range(5)
            ),
        ],
        0,
    ),
    "leaves and comes back": ([{**_kill("decode", 9, 1, "leave"), "duration_ps": 1 * _MS}], 0),
    "leaves, dies outside": (
        [{"kind": "leave", "rank": 3, "at_ps": 9 * _MS}, {"kind": "kill", "rank": 3, "at_ps": 20 * _S}],
        1,
    ),
    "one leaves, another dies": (
        [{"kind": "leave", "rank": 3, "at_ps": 9 * _MS}, {"kind": "kill", "rank": 2, "at_ps": 15 * _S}],
        1,
    ),
    "silent for less than the time-out": (
        [{"kind": "freeze", "rank": 2, "at_ps": 10 * _MS, "duration_ps": 2 * _S}],
        0,
    ),
    "silent for longer": ([{"kind": "freeze", "rank": 2, "at_ps": 10 * _MS, "duration_ps": 4 * _S}], 1),
    "all but one silent for long": (
        [{"kind": "freeze", "rank": r, "at_ps": 9 * _MS, "duration_ps": 60 * _S} for r in range(4)],
        4,
    ),
}
"""Faults, and how many ranks die of them."""


_STALE: list[list[dict[str, Any]]] = [
    [],
    [{"kind": "stale_heartbeat", "rank": 3, "at_ps": 9 * _MS, "duration_ps": 5 * _MS}],
    [{"kind": "stale_heartbeat", "rank": 3, "at_ps": 9 * _MS, "duration_ps": 60 * _MS}],
]
"""No fault; beats missing for less than the time-out of `_prompt_beats`; for longer."""


def _prompt_beats(campaign: Campaign) -> Campaign:
    """The same with beats every 2 ms and a time-out of 8 ms."""
    job = campaign.replay.job
    assert job.recovery is not None
    times = replace(job.recovery, period_ps=2 * _MS, timeout_ps=8 * _MS)
    beating = replace(campaign.replay, job=replace(job, recovery=times))
    return replace(campaign, replay=beating, runs=1000)


WIDER = (
    "the control process and its standby",
    "a link that flaps faster than the timer",
    "a link down, then a death",
    "the front end's ring is full",
    "queue pairs and NICs fail",
    "leaves, dies outside",
    "pages lost inside combine",
    "inside combine",
    "before sampling",
    "all but one",
    "one leaves, another dies",
)
"""Scenarios of the sweeps."""


def _held(campaign: Campaign, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Run scenarios, and hold against each what it says."""
    entries = {name: campaign.run(FaultPlan(SCENARIOS[name][0]))[0] for name in names}
    for name, entry in entries.items():
        assert entry["violations"] == [] and entry["exact"] == 12, name
        assert entry["restarts"] == [], name
        lost = [rank for change in entry["recoveries"] for rank in change["dead"]]
        assert len(lost) == len(set(lost)) == SCENARIOS[name][1], name
        for change in entry["recoveries"]:
            assert not change["dead"] or 1.9 * _S < change["detect_ps"] <= 4 * _S, name
    return entries


@pytest.fixture
def campaign() -> Iterator[Campaign]:
    """A pod of five with recovery in place."""
    own = paths.RunDirectory()
    try:
        yield prepared(own, 5, 12, 60.0, Policy(recovery_times("in-place")))
    finally:
        own.remove()
        os.close(own.lock_fd)


@pytest.mark.sweep
def test_more_faults_and_every_answer_is_the_references(campaign: Campaign) -> None:
    """Found by it: a request of a rank that left and then died answered twice."""
    _held(campaign, WIDER)


def test_whoever_dies_wherever_every_answer_is_the_references(campaign: Campaign) -> None:
    """Found by it: a roll back that keeps a token, an expert mask that is not updated, a request answered
    twice or by nobody, a rank that goes on with the old members, a frozen rank that comes back."""
    names = [name for name in SCENARIOS if name not in WIDER]
    entries = _held(campaign, names)
    calm_ps, beating = campaign.calm_ps, _prompt_beats(campaign)
    calm, short, long = (beating.run(FaultPlan(faults))[0] for faults in _STALE)
    again = campaign.run(FaultPlan(SCENARIOS["two, one after the other"][0]))[0]
    assert calm["violations"] == [] and calm_ps <= calm["last_token_ps"] <= 1.005 * calm_ps
    assert short["violations"] == [] and short["recoveries"] == []
    (stale,) = long["recoveries"]
    assert long["violations"] == [] and stale["dead"] == [3]
    assert 8 * _MS < stale["detect_ps"] < 40 * _MS and stale["recover_ps"] > 12 * _S
    same = entries["two, one after the other"]
    assert again["trace_sha256"] == same["trace_sha256"] and again["recoveries"] == same["recoveries"]
    struck = [entry["page_faults"] for name, entry in entries.items() if name.startswith("pages lost w")]
    assert struck and all(pages and pages[0]["pages"] for pages in struck), struck
    assert all(0 < entries[name]["recomputed"] <= 6 for name in names if name.startswith("pages lost b"))
    (fenced,) = entries["silent for longer"]["recoveries"]
    assert 3 * _S <= fenced["declared_ps"] < 3.1 * _S and 10 * _MS <= fenced["silent_ps"][0] < 100 * _MS


@pytest.mark.sweep
def test_a_host_that_stalls_ranks_is_no_silence(campaign: Campaign, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second call of a rank sleeps up to 40 ms of host time, beats come every 2 ms of virtual time: as
    under a 200-fold oversubscription nobody is declared dead, and the trace is the calm one. A rank that is
    silent in virtual time is found all the same."""
    beating = _prompt_beats(campaign)
    calm = beating.run(FaultPlan(_STALE[0]))[0]
    monkeypatch.setenv("SUPERPOD_JITTER", "0.5,40000,11")
    slow, stale = (beating.run(FaultPlan(_STALE[which]))[0] for which in (0, 2))
    assert slow["violations"] == [] and slow["recoveries"] == []
    assert slow["trace_sha256"] == calm["trace_sha256"]
    assert [change["dead"] for change in stale["recoveries"]] == [[3]]
