"""The generator, the history checker and the shrinker, alone; broken histories are found."""

import io
from collections import Counter
from dataclasses import replace
from subprocess import TimeoutExpired
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from emulator.errors import UsageError
from emulator.faults import ALL_STATES, KINDS, STATES, FaultPlan
from emulator.faults.generate import INJECTED, TIMED, Moment, generate, timed
from emulator.faults.kinds import SERVING_STATES
from emulator.topology import Topology
from launch.chaos.history import check
from launch.chaos.report import OTHER, coverage, coverage_table, record, summary, summary_table
from launch.chaos.rounds import Life, Served, wait_for_end
from launch.chaos.shrink import shrink
from launch.cmd_chaos import parse_states
from serving.request import RequestSpec
from serving.restart import Ending, Round, endings_of, next_round, round_plan, round_specs

_POD = Topology(num_ranks=16, dies_per_chip=2, chips_per_node=8, nodes=48)
_KINDS = ("kill", "freeze", "slow", "gc_pause")


def _spec(request: int, arrival_ps: int = 0) -> RequestSpec:
    return RequestSpec(request, arrival_ps, np.arange(3), 3, 1, 2, False, 0)


def _work(blocks: int = 4) -> dict[str, int]:
    both = {f"{what}_{way}": 7 for what in _SUMS for way in ("sent", "received")}
    return {"kv_blocks_allocated": blocks, "kv_blocks_freed": 4, **both}


_SUMS = ("functional_rows", "functional_bytes", "priced_rows", "priced_bytes")
_ANSWERS = {i: ((i, i + 1), f"hash {i}") for i in range(3)}


def _good() -> Served:
    """Three requests on two ranks; rank 1 died after the first, the others were served again."""
    done = [
        Ending(i, int(i > 0), 0, _ANSWERS[i][0], (10 + 90 * (i > 0), 200), f"hash {i}", None)
        for i in range(3)
    ]
    result: dict[str, Any] = {"rank": 0, "work": _work(), "requests": [{"id": 0, "ends": 1}], "end_ps": 20}
    first = {"dead_ranks": [1], "ranks": 2, "faults": []}
    lives = [
        Life(Round(0, 0, (0, 1, 2), (0,)), [result], first, 0, "", [], 20),
        Life(
            Round(1, 90, (1, 2), ()), [result, {**result, "rank": 1}], {**first, "dead_ranks": []}, 0, "", []
        ),
    ]
    return Served(FaultPlan([{"kind": "kill", "rank": 1, "at_ps": 5}]), lives, done)


def _violations(served: Served, deadline_ps: int = 1000) -> list[str]:
    return check(served, [_spec(i) for i in range(3)], _ANSWERS, deadline_ps)


def test_a_good_history_has_no_violation() -> None:
    assert _violations(_good()) == []


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ("twice", "request 1 has 2 terminal states"),
        ("never", "request 2 has 0 terminal states"),
        ("wrong", "request 0 (rank 0) differs from the reference"),
        ("logits", "request 0 (rank 0) differs"),
        ("leak", "rank 0 allocated 5 KV blocks and freed 4"),
        ("rows", "priced_rows: 14 sent and 13 received"),
        ("hang", "round 1: hung"),
        ("failed", "round 1: a rank failed: Traceback (most recent call last): it"),
        ("silent", "1 of 2 living ranks reported"),
        ("left", "left superpod-x in /dev/shm"),
        ("late", "recovery is not bounded"),
        ("backwards", "token times run backwards"),
        ("doubled", "rank 0: requests [0] did not end exactly once"),
        ("unasked", "request 0 (rank 0) was aborted, which nobody asked for"),
        ("beginning", "request 0 (rank 0) was given [9] before its abort"),
    ],
)
def test_a_broken_history_is_found(broken: str, says: str) -> None:
    served = _good()
    ends, last = served.endings, served.lives[1]
    if broken == "twice":
        ends.append(ends[1])
    elif broken == "never":
        ends.pop()
    elif broken == "wrong":
        ends[0] = replace(ends[0], tokens=(9, 9))
    elif broken == "logits":
        ends[0] = replace(ends[0], logits_sha256="other")
    elif broken == "leak":
        last.results[0] = {**last.results[0], "work": _work(5)}
    elif broken == "rows":
        last.results[0] = {**last.results[0], "work": {**_work(), "priced_rows_received": 6}}
    elif broken == "hang":
        last.exit_code = None
    elif broken == "failed":
        last.stderr = "Traceback (most recent call last): it"
    elif broken == "silent":
        last.results.pop()
    elif broken == "left":
        last.leftovers.append("superpod-x")
    elif broken == "backwards":
        ends[0] = replace(ends[0], times_ps=(30, 20))
    elif broken == "unasked":
        ends[0] = replace(ends[0], aborted=True, tokens=(0,))
    elif broken == "beginning":
        ends[0] = replace(ends[0], aborted=True, tokens=(9,))
    elif broken == "doubled":
        last.results[0] = {**last.results[0], "requests": [{"id": 0, "ends": 2}]}
    found = _violations(served, 100 if broken == "late" else 1000)
    assert any(says in sentence for sentence in found), found


def test_an_aborted_request_needs_the_beginning_of_its_answer_only() -> None:
    served = _good()
    served.endings[0] = replace(served.endings[0], aborted=True, tokens=(0,), logits_sha256="of one")
    specs = [_spec(0), _spec(1), _spec(2)]
    specs[0] = replace(specs[0], abort_ps=15)
    assert check(served, specs, _ANSWERS, 1000) == []
    entry = record(served, specs, _ANSWERS, [], 1)
    assert (entry["exact"], entry["aborted"], summary([entry])["exact_share"]) == (2, 1, 1.0)


def test_a_degraded_answer_is_never_exact() -> None:
    touched = {1: {"experts": [3], "from_output": 0}}
    entry = record(_good(), [_spec(i) for i in range(3)], _ANSWERS, [], 1, touched=touched)
    assert (entry["exact"], entry["degraded"][1]["as_reference_under_mask"]) == (2, True)


def test_only_a_round_that_does_not_come_on_hangs() -> None:
    """Found by it: a busy host taken for a hang; a hang that is never noticed."""
    said = iter([b"0", b"1", b"2", b"2"])
    waits = iter([TimeoutExpired("", 1)] * 9)

    def wait() -> int:
        raise next(waits)

    assert wait_for_end(wait, lambda: next(said)) is None and next(said, None) is None
    assert wait_for_end(lambda: 3, lambda: b"") == 3


def _moments() -> list[Moment]:
    """As of 24 requests on 16 ranks, one after the other through all states; few are in flight at first."""
    return [
        Moment(1000 * request + 10 * turn + count, request % 16, request, state, count, min(request, 12))
        for request in range(24)
        for turn, state in enumerate(STATES)
        for count in ((1, 2, 3) if state in ("dispatch", "combine", "decode") else (1,))
    ]


def test_generated_plans_are_valid_and_cover_every_kind_and_state() -> None:
    """Found by it: a kind that never meets a state; a first fault with few requests in flight; a link's fault
    after the run has left the calm one."""
    plans = [generate(seed, 16, tuple(KINDS), moments=_moments()) for seed in range(1000)]
    assert plans[5] == generate(5, 16, tuple(KINDS), moments=_moments())
    at = {(m.request, m.state, m.turn): m for m in _moments()}
    seen: Counter[tuple[str, str]] = Counter()
    for plan in plans:
        plan.resolve(16, _POD)
        met = [f.at_request for f in plan.faults if f.at_request is not None]
        first = met[0]
        assert first.request is not None and at[first.request, first.state, first.count].in_flight >= 8
        ran = timed(plan, _moments())
        ran.resolve(16, _POD)
        for fault, run in zip(plan.faults, ran.faults, strict=True):
            assert (run.at_ps is None) == (fault.at_ps is None and fault.kind not in TIMED)
            if fault.at_request is not None:
                seen[fault.kind, fault.at_request.state] += 1
    assert min(seen[kind, state] for kind in KINDS for state in STATES) >= 10
    assert sum(plan.kills for plan in plans) >= 400
    assert sum(len(plan.faults) > 1 for plan in plans) >= 200
    assert set(_KINDS) < set(INJECTED)


def test_other_states_are_drawn_only_where_they_are_asked_for() -> None:
    everywhere = [
        Moment(9000 + i, i % 16, 10 + i % 14, state, 1, 9) for i, state in enumerate(ALL_STATES * 3)
    ]
    plans = [generate(seed, 16, _KINDS, moments=everywhere, states=SERVING_STATES) for seed in range(40)]
    met = Counter(f.at_request.state for plan in plans for f in plan.faults if f.at_request is not None)
    assert set(met) == set(SERVING_STATES) and min(met.values()) >= 10
    assert parse_states("all") == ALL_STATES and parse_states(None) == STATES
    with pytest.raises(UsageError, match="no state is called 'aborted'; nearest: abort"):
        parse_states("aborted")


def test_shrinking_keeps_only_what_fails() -> None:
    plan = generate(9, 16, _KINDS)
    assert len(plan.faults) == 3
    kind = plan.faults[1].kind
    small = shrink(plan, lambda p: any(f.kind == kind for f in p.faults))
    assert [f.kind for f in small.faults] == [kind] and small.faults[0].factor in (None, 2.0)
    assert shrink(plan, lambda p: p == plan) == plan


def test_a_restart_serves_what_has_not_ended_and_keeps_what_has() -> None:
    life = Round(0, 0, (0, 1, 2), (0, 1))
    entry = {"tokens": [1], "times_ps": [5], "logits_sha256": "h"}
    lost = {**entry, "id": 1, "rank": 0, "ends": 1, "error": "lost with another rank: 3"}
    noted = {**entry, "id": 0, "rank": 3, "ends": 1, "error": None}
    open_ = {**entry, "id": 2, "rank": 0, "ends": 0, "error": None}
    ended = endings_of(life, [{"rank": 0, "requests": [lost, open_]}], [noted, {**noted, "id": 1, "rank": 0}])
    assert [e.request for e in ended] == [0]  # rank 0 reported: what it noted does not count twice
    later = next_round(life, ended, fired=[0], down_ps=100)
    assert later == Round(1, 100, (1, 2), (1,))
    specs = round_specs(later, [_spec(0), _spec(1, 40), _spec(2, 140)])
    assert [(s.request_id, s.arrival_ps) for s in specs] == [(0, 0), (1, 40)]
    plan = FaultPlan(
        [
            {"kind": "kill", "rank": 1, "at_ps": 5},
            {"kind": "kill", "at_request": {"request": 2, "state": "decode"}},
        ]
    )
    (moved,) = round_plan(later, plan).faults
    assert moved.at_request is not None and moved.at_request.request == 1


def test_a_record_counts_what_was_in_flight() -> None:
    served = _good()
    served.lives[0].machine = {
        "dead_ranks": [1], "ranks": 2,
        "faults": [{"fault": 0, "kind": "kill", "fired": 1, "rank": 1, "fired_ps": 5, "undone_ps": None}],
    }  # fmt: skip
    entry = record(served, [_spec(i) for i in range(3)], _ANSWERS, [], 100)
    assert entry["exact"] == 3 and entry["recomputed"] == 2 and entry["faults"][0]["in_flight"] == 3
    assert summary([entry])["plans_with_a_kill"] == 1.0
    assert coverage([entry])["kill"]["time or operation"] == 1


@pytest.mark.parametrize("states", [STATES, ALL_STATES])
def test_the_tables_fit_a_terminal_of_80_columns(states):
    """Fails on a table that rich has to cut: names of kinds end in `…`, and three of them look alike."""
    kinds = ("completion_duplicated", "completion_late", "completion_lost", "kill")
    matrix = {kind: dict.fromkeys([*states, OTHER], 1000) for kind in kinds} | {"loss": {OTHER: 0}}
    shown = _printed(coverage_table(matrix))
    assert "…" not in shown and max(map(len, shown.splitlines())) <= 80
    assert all(kind in shown.replace("_\n", "_") or kind.partition("_")[2] in shown for kind in kinds)
    assert "none of: loss" in shown
    numbers = _printed(
        summary_table({"exact_share": 1.0, "plans_that_never_fired": [], "mean_detection_s": None})
    )
    assert "100.0 %" in numbers and "none" in numbers and "None" not in numbers and "[]" not in numbers


def _printed(table):
    console = Console(width=80, file=io.StringIO())
    console.print(table)
    return console.file.getvalue()
