"""With the schedule fixed a faster machine is never slower; with a live one, what makes it slower is named.

Eight ranks, two dies a chip and two chips a node, so every distance occurs. The ranks serve a tiny model
priced like DeepSeek-R1 cut to nine layers.
"""

import itertools
import json
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from replays import Model, command, lines, make_model, serve
from replays import arguments as replay_words

from emulator.profile import load_profile
from launch.cli import main
from serving.model.checkpoint import make_checkpoint
from serving.model.config import preset_config
from serving.schedule import Schedule

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(300)]
RANKS = 8
SMALL_NODES = ("--set", "pod.chips_per_node=2")
BANDWIDTHS = [
    "die.hbm_gb_per_s",
    "ub.self_gb_per_s",
    "ub.read_chip_gb_per_s",
    "ub.read_intra_gb_per_s",
    "ub.read_inter_gb_per_s",
    "ub.write_chip_gb_per_s",
    "ub.write_intra_gb_per_s",
    "ub.write_inter_gb_per_s",
]
REQUESTS = [(0, 700, 4), (0, 3000, 3), (40, 64, 6), (90, 2600, 2), (400, 130, 3), (401, 1900, 2)]
Replay = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return make_model(tmp_path_factory.mktemp("monotone"))


@pytest.fixture
def replay(tmp_path: Path, model: Model) -> Replay:
    """Serve a trace, by default on eight ranks."""
    numbers = itertools.count()

    def run(trace: Path, *options: str, ranks: int = RANKS) -> dict[str, Any]:
        return serve(tmp_path / f"job{next(numbers)}", trace, model, ranks, *options)

    return run


def record(trace: Path, model: Model, path: Path) -> dict[str, Any]:
    """A live run of the command itself that writes its schedule to `path`."""
    return command(
        trace, model, RANKS, path.with_suffix(".result"), *SMALL_NODES, "--schedule-out", str(path)
    )


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text(lines(REQUESTS))
    return path


@pytest.mark.parametrize(
    "keys",
    [
        ("die.hbm_gb_per_s", "ub.read_inter_gb_per_s"),
        pytest.param(BANDWIDTHS, marks=pytest.mark.sweep),
    ],
    ids=["two", "all"],
)
def test_bandwidths_are_monotone_under_a_recorded_schedule(
    keys: Sequence[str], trace: Path, tmp_path: Path, replay: Replay, model: Model
) -> None:
    path = tmp_path / "schedule.json"
    live = record(trace, model, path)
    follow = (*SMALL_NODES, "--schedule-from", str(path))
    base = replay(trace, *follow)
    assert (
        base["schedule"]["followed"] == str(path) and base["schedule"]["sha256"] == live["schedule"]["sha256"]
    )
    assert (base["steps"], base["tokens_sha256"]) == (live["steps"], live["tokens_sha256"])
    assert base["idle_s"] == 0 and base["virtual_duration_s"] < live["virtual_duration_s"]
    profile, differing = load_profile("cloudmatrix384", None), 0
    for key in keys:
        now = float(profile.value(key))
        slow, fast = (replay(trace, *follow, "--set", f"{key}={now * f}") for f in (0.5, 2))
        assert slow["schedule"]["sha256"] == fast["schedule"]["sha256"] == base["schedule"]["sha256"]
        assert slow["logits_sha256"] == fast["logits_sha256"] == base["logits_sha256"]
        durations = [r["virtual_duration_s"] for r in (slow, base, fast)]
        print(key, durations)
        assert durations[0] >= durations[1] >= durations[2], (key, durations)
        differing += durations[0] > durations[2]
    assert differing >= len(keys) // 2, "hardly any bandwidth mattered: the test shows nothing"


def test_bandwidths_are_monotone_when_all_requests_are_there_at_once(tmp_path: Path, replay: Replay) -> None:
    """No recorded schedule: with every request at time 0 the live one is always the same."""
    trace = tmp_path / "at_once.jsonl"
    trace.write_text(lines([(0, prompt, output) for _, prompt, output in REQUESTS]))
    for key in ("die.hbm_gb_per_s", "ub.read_inter_gb_per_s"):
        now = float(load_profile("cloudmatrix384", None).value(key))
        runs = [replay(trace, *SMALL_NODES, "--set", f"{key}={now * factor}") for factor in (0.5, 1, 2)]
        assert len({run["schedule"]["sha256"] for run in runs}) == 1
        durations = [run["virtual_duration_s"] for run in runs]
        assert durations[0] > durations[1] > durations[2], (key, durations)


def test_latency_between_nodes_lengthens_runs_that_cross_them(tmp_path: Path, replay: Replay) -> None:
    trace = tmp_path / "at_once.jsonl"
    trace.write_text(lines([(0, prompt, output) for _, prompt, output in REQUESTS[:3]]))
    times = {
        (ranks, latency): replay(trace, *nodes, "--set", f"ub.latency_inter_us={latency}", ranks=ranks)[
            "virtual_duration_s"
        ]
        for ranks, nodes in ((RANKS, SMALL_NODES), (17, ()), (4, SMALL_NODES))
        for latency in (2, 8)
    }
    for ranks in (RANKS, 17):
        assert times[ranks, 2] < times[ranks, 8], times
    assert times[4, 2] == times[4, 8]  # one node: nothing crosses


def test_a_live_anomaly_is_named(tmp_path: Path, replay: Replay, model: Model) -> None:
    """A faster machine that takes longer.

    The second request arrives in the first one's step, the third when that step has ended on the fast
    machine but not on the slow one. So the slow one prefills both in one step, the fast one in two.
    """
    fast = ("--set", "ub.read_inter_gb_per_s=328", "--set", "ub.read_intra_gb_per_s=334")
    alone = tmp_path / "alone.jsonl"
    alone.write_text(lines([(0, 2000, 1)]))
    ends = [1e3 * replay(alone, *SMALL_NODES, *o)["virtual_duration_s"] for o in (fast, ())]
    assert ends[1] - ends[0] > 0.1
    trace, path = tmp_path / "three.jsonl", tmp_path / "slow.json"
    trace.write_text(lines([(0, 2000, 1), (1, 2000, 1), (sum(ends) / 2, 2000, 1)]))
    slow = record(trace, model, path)
    compare = (*SMALL_NODES, "--compare-schedule", str(path))
    quick = replay(trace, *compare, *fast)
    print(slow["virtual_duration_s"], quick["virtual_duration_s"], quick["schedule"]["compared"])
    assert quick["virtual_duration_s"] > slow["virtual_duration_s"]
    compared = quick["schedule"]["compared"]
    assert compared["first_difference"] == {
        "step": 1,
        "rank": 1,
        "request": 2,
        "here": None,
        "there": {"request": 2, "tokens": 32, "priced_tokens": 2000},
    }
    assert compared["anomaly"].startswith("a faster machine (ub.read_inter_gb_per_s, ub.read_intra_gb_per_s)")
    same = replay(trace, *compare)["schedule"]["compared"]
    assert (same["first_difference"], same["anomaly"]) == (None, None)


def edited(change: Callable[[dict[str, Any]], None]) -> Callable[[str], str]:
    def edit(text: str) -> str:
        fields = json.loads(text)
        change(fields)
        return json.dumps(fields)

    return edit


BROKEN = {
    "not a file of replay --schedule-out": lambda text: text[: len(text) // 2],
    "format": edited(lambda f: f.update(format="other")),
    "rank 1: request 1 is not served to its end": edited(lambda f: f["rows"].pop(-1)),
    "does not give each of 2 requests": edited(lambda f: f.update(assigned=[0])),
    "is not served here": edited(lambda f: f.update(assigned=[1, 0])),
    "a step is missing": edited(lambda f: f["rows"][0].__setitem__(0, 9)),
    "32 tokens are worth 2000, not 1999": edited(lambda f: f["rows"][1].__setitem__(4, 1999)),
    "has 32 tokens, not 33": edited(lambda f: f["rows"][1].__setitem__(3, 33)),
    "has a request twice": edited(
        lambda f: f.update(rows=[[0, 0, 0, 1, 64], [0, 0, 0, 1, 64], f["rows"][1]])
    ),
}
SCHEDULE = {"assigned": [0, 1], "rows": [[0, 0, 0, 2, 100], [0, 1, 1, 32, 2000]]}


@pytest.fixture
def recorded(tmp_path: Path, model: Model) -> tuple[list[str], Path]:
    """Arguments of a two-rank replay, and a schedule that fits it."""
    trace, path = tmp_path / "two.jsonl", tmp_path / "two.json"
    trace.write_text(lines([(0, 100, 1), (0, 2000, 1)]))
    arguments = replay_words(trace, model, 2)
    folder = tmp_path / "job"
    assert main([*arguments, "--prepare", str(folder)]) == 0
    plan = pickle.loads((folder / "plan.pickle").read_bytes())
    rows = np.array(SCHEDULE["rows"], np.int32)
    Schedule("", plan.identity, np.array([0, 1], np.int32), rows, {}, "", 0).write(path)
    return arguments, path


@pytest.mark.parametrize("words", BROKEN)
def test_a_damaged_schedule_is_bad_input(
    words: str, recorded: tuple[list[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, path = recorded
    prepare = ["--schedule-from", str(path), "--prepare", str(tmp_path / "other")]
    assert main([*arguments, *prepare]) == 0
    path.write_text(BROKEN[words](path.read_text()))
    capsys.readouterr()
    assert main([*arguments, *prepare]) == 2
    error = capsys.readouterr().err
    assert error.startswith("superpod: error: schedule ") and error.count("\n") == 1
    assert words in error


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["-n", "3"], "recorded with -n 2, this run has 3"),
        (["--seed", "4"], "recorded with --seed 0, this run has 4"),
        (["--token-scale", "32"], "recorded with --token-scale 64, this run has 32"),
        (["--requests", "1"], "recorded with --requests 2, this run has 1"),
        (["--max-seqs", "5"], "recorded with --max-num-seqs 96, this run has 5"),
        (["--batched-tokens", "512"], "recorded with --max-num-batched-tokens 2048, this run has 512"),
        (["--trace", "{other}"], "recorded with another trace"),
        (["--model", "{model}"], "recorded with another model"),
        (["--schedule-from", "no-such-file"], "schedule no-such-file cannot be read"),
        (["--schedule-out", "no-such-directory/x"], "there is no directory no-such-directory"),
        (["--json", "no-such-directory/x"], "there is no directory no-such-directory"),
    ],
)
@pytest.mark.parametrize("option", ["--schedule-from", "--compare-schedule"])
def test_a_schedule_of_another_run_is_bad_input(
    option: str,
    changes: list[str],
    words: str,
    recorded: tuple[list[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments, path = recorded
    other, deeper = tmp_path / "other.jsonl", tmp_path / "deeper"
    other.write_text(lines([(0, 100, 1), (0, 2001, 1)]))
    make_checkpoint(deeper, preset_config("tiny").model_copy(update={"num_hidden_layers": 4}), seed=5)
    names = {"{other}": str(other), "{model}": str(deeper)}
    given = [*arguments, option, str(path), *[names.get(word, word) for word in changes]]
    capsys.readouterr()
    assert main(given) == 2
    error = capsys.readouterr().err
    assert error.startswith("superpod: error: ") and error.count("\n") == 1
    assert words in error
