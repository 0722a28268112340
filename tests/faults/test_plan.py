"""Plans: what is read is what was written, and what is wrong is refused with line and nearest name."""

import json
from pathlib import Path

import pytest

from emulator.errors import UsageError
from emulator.faults import KINDS, AtRequest, Fault, FaultPlan
from emulator.faults.read import parse_plan
from emulator.topology import Topology

_POD = Topology(num_ranks=32, dies_per_chip=2, chips_per_node=8, nodes=48)
_GOOD = """\
seed = 7
[[fault]]
kind = "freeze"
rank = 3
at_ps = 1_000_000
duration_ps = 50_000_000

[[fault]]
kind = "kill"
at_request = {request = 5, state = "decode", count = 2}

[[fault]]
kind = "link_degraded"
link = "plane:5/3"
at_ps = 120
factor = 2.5
"""


def test_a_plan_reads_back_from_toml_and_from_json(tmp_path: Path) -> None:
    plan = parse_plan(_GOOD)
    assert plan.seed == 7 and [f.kind for f in plan.faults] == ["freeze", "kill", "link_degraded"]
    assert parse_plan(plan.to_toml()) == plan
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan.as_dict(), indent=1))
    assert FaultPlan.load(file) == plan and plan.kills and not plan.without(1).kills


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ('"freeze"', '"freze"', 3, "unknown kind 'freze'; nearest: freeze"),
        ("duration_ps", "duraton_ps", 6, "unknown field of freeze 'duraton_ps'; nearest: duration_ps"),
        ('"decode"', '"decoding"', 10, "unknown state 'decoding'; nearest: decode"),
        ("at_ps = 120", "at_ps = -1", 15, "at_ps"),
        ("rank = 3", 'rank = "three"', 4, "rank: "),
        ("factor = 2.5", "", 12, "link_degraded needs factor"),
        ("at_ps = 120", "", 12, "needs one of at_ps, at_op, at_request"),
        ("at_ps = 120", "at_op = 1", 15, "give at_ps instead of at_op"),
        ("seed", "sed", 1, "unknown field 'sed'; nearest: seed"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(old: str, new: str, line: int, says: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_plan(_GOOD.replace(old, new, 1), "plan.toml")
    assert f"plan.toml:{line}: " in str(error.value) and says in str(error.value), error.value


def test_json_faults_have_lines_too() -> None:
    text = '{"fault": [\n {"kind": "kill", "rank": 1, "at_ps": 5},\n {"kind": "kil", "rank": 1, "at_ps": 5}]}'
    with pytest.raises(UsageError, match="p.json:3: unknown kind 'kil'; nearest: kill"):
        parse_plan(text, "p.json", is_json=True)


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ({"kind": "kill", "rank": 40}, "no rank 40; nearest: 31"),
        ({"kind": "link_down", "link": "die:32"}, "nearest: die:31"),
        ({"kind": "link_down", "link": "plane:3/7"}, "nearest: plane:3/6"),
        ({"kind": "link_down", "link": "l1:2"}, "nearest: l1:1"),
        ({"kind": "link_down", "link": "dye:2"}, "nearest: die:N"),
        ({"kind": "link_down", "link": "plane:3"}, "not of the form plane:N/P"),
    ],
)
def test_places_the_run_does_not_have_are_refused(place: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError) as error:
        FaultPlan([{**place, "at_ps": 0}]).resolve(32, _POD)
    assert says in str(error.value) and "fault 0" in str(error.value)


def test_places_are_refused_with_their_line() -> None:
    text = '[[fault]]\nkind = "kill"\nrank = 1\nat_ps = 0\n\n[[fault]]\nat_ps = 0\nrank = 32\nkind = "kill"\n'
    with pytest.raises(UsageError, match="^p.toml:8: fault 1 .kill.: the run has no rank 32; nearest: 31"):
        parse_plan(text, "p.toml").resolve(32, _POD)
    text = '{"fault": [\n {"kind": "loss", "rate": 0.1, "at_ps": 0,\n  "link": "l1:2"}]}'
    with pytest.raises(UsageError, match="^p.json:3: fault 0 .loss.: link 'l1:2'"):
        parse_plan(text, "p.json", is_json=True).resolve(32, _POD)
    with pytest.raises(
        UsageError, match="p.toml:3: .*unknown field of at_request 'reqest'; nearest: request"
    ):
        parse_plan('[[fault]]\nkind = "kill"\nat_request = {reqest = 1, state = "decode"}', "p.toml")


def test_random_places_follow_from_the_seed_alone() -> None:
    faults = [Fault(kind="kill", rank="random", at_ps="random", within_ps=1000) for _ in range(20)]
    first, again = (FaultPlan(faults, seed=3).resolve(32, _POD) for _ in range(2))
    other = FaultPlan(faults, seed=4).resolve(32, _POD)
    assert first == again != other
    assert all(isinstance(f.rank, int) and isinstance(f.at_ps, int) and f.at_ps < 1000 for f in first)
    assert len({f.rank for f in first}) > 5


def test_a_fault_at_any_request_names_its_rank() -> None:
    with pytest.raises(UsageError, match="kill needs rank"):
        FaultPlan([{"kind": "kill", "at_request": {"state": "decode"}}])
    assert Fault(kind="kill", rank=1, at_request=AtRequest(state="decode")).rank == 1


def test_every_kind_has_an_owner_and_says_how_it_is_undone() -> None:
    assert len(KINDS) == 21 and all(row.owner and row.undo for row in KINDS.values())
