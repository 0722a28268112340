"""Slow dies, pauses and late launches: whose time they take, and that all others wait for it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from local_pod import AddingClock
from ranks import BIN, MCA, MPIRUN, ROOT
from replays import arguments, lines, make_model

from emulator.errors import UsageError
from launch.cli import main
from serving.job import read_results
from serving.series import write_series
from serving.stragglers import StragglerClock, Stragglers, parse_stragglers

MS = 10**9


def clock_of(rank: int, *, slow: Any = (), pauses: Any = (), launch_ps: int = 0) -> StragglerClock:
    return StragglerClock(AddingClock(), rank, Stragglers(tuple(slow), tuple(pauses), launch_ps), seed=3)


def test_only_the_rank_that_is_named_falls_behind() -> None:
    """Mutations: a factor of every rank; a pause that comes again; one before its time; label lost."""
    for rank, factor in ((1, 2.5), (0, 1)):
        clock = clock_of(rank, slow=[(1, 2.5)], pauses=[(1, 3 * MS, 100 * MS)])
        ends = []
        for _ in range(4):
            clock.compute(MS, label=7)
            ends.append(clock.now_ps)
        pause = 100 * MS if rank == 1 else 0  # begins with the first computing from 3 ms on
        want = [factor, 2 * factor, 3 * factor + pause / MS, 4 * factor + pause / MS]
        assert ends == [round(MS * end) for end in want]
        assert {label for label, _ in clock._clock.charged} == {7}  # type: ignore[attr-defined]


def test_launches_come_late_by_their_mean_and_by_seed() -> None:
    one, again = clock_of(2, launch_ps=50_000), clock_of(2, launch_ps=50_000)
    for _ in range(2_000):
        one.compute(1_000)
        again.compute(1_000)
    assert one.now_ps == again.now_ps
    assert (one.now_ps / 2_000 - 1_000) == pytest.approx(50_000, rel=0.08)


@pytest.mark.parametrize(
    ("slow", "pauses", "launch_us", "says"),
    [
        (["3"], [], 0, "--slow-die 3: give RANK=FACTOR"),
        (["3=0"], [], 0, "the factor must be above 0"),
        (["3=nan"], [], 0, "give RANK=FACTOR"),
        ([], ["1=5"], 0, "--gc-pause 1=5: give RANK=SECONDS:MS"),
        ([], ["1=-1:5"], 0, "the time must not be negative"),
        ([], ["1=1:0"], 0, "the length above 0"),
        ([], [], -1, "--launch-jitter -1"),
    ],
)
def test_what_is_no_straggler_is_refused(
    slow: list[str], pauses: list[str], launch_us: float, says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        parse_stragglers(slow, pauses, launch_us)


def test_a_rank_that_is_not_there_is_refused() -> None:
    given = parse_stragglers(["0=2"], ["4=0.5:100"], 0)
    assert given == Stragglers(((0, 2.0),), ((4, 500 * MS, 100 * MS),))
    with pytest.raises(UsageError, match="no rank 4; take one of 0 to 3"):
        given.check(4)
    assert parse_stragglers([], [], 0) is None


KNOBS = {
    "plain": (),
    "pause": ("--gc-pause", "1=0.06:100"),
    "slow": ("--slow-die", "1=2"),
    "late": ("--launch-jitter", "50"),
}


def serve_all(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The same four requests on two ranks under each knob, on one start of the ranks: results by knob."""
    model = make_model(folder)
    (folder / "trace").write_text(lines([(0, 640, 6)] * 4))
    for name, words in KNOBS.items():
        assert main(arguments(folder / "trace", model, 2, "--prepare", str(folder / name), *words)) == 0
    config = json.loads((folder / "plain" / "config.json").read_text())
    memory = {key: value for key, value in config.items() if key.endswith("_bytes")}
    (folder / "all").mkdir()
    config |= write_series(folder / "all", [folder / name for name in KNOBS], [memory] * len(KNOBS))
    environment = os.environ | {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "SUPERPOD_CONFIG": json.dumps(config),
    }
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    mpirun = [*MPIRUN, *root, *MCA, "-n", "2", "superpod-rank", "-m", "serving", str(folder / "all")]
    subprocess.run(mpirun, env=environment, check=True, timeout=90, start_new_session=True)
    return {name: read_results(folder / name) for name in KNOBS}


def times(results: list[dict[str, Any]]) -> list[list[int]]:
    """Of each request's tokens, from the first token of the pod, ps."""
    requests = sorted((r for rank in results for r in rank["requests"]), key=lambda r: int(r["id"]))
    first = min(request["times_ps"][0] for request in requests)
    return [[ps - first for ps in request["times_ps"]] for request in requests]


@pytest.mark.multirank
def test_what_one_rank_takes_longer_all_wait_for(tmp_path: Path) -> None:
    """A pause of 100 ms on rank 1 is one of 100 ms, to the picosecond, in all answers of both ranks from then
    on; a die of half the speed halves everybody's. Mutation: stragglers on a clock of their own, which
    the exchanges do not see; pauses that count from the start of the pod instead of the job."""
    found = serve_all(tmp_path)
    plain, paused, slow, late = (times(found[name]) for name in KNOBS)
    assert [len(rank["requests"]) for rank in found["plain"]] == [2, 2]
    assert {ps for request in plain for ps in request} and len(plain) == 4
    shifts = [[a - b for a, b in zip(*both, strict=True)] for both in zip(paused, plain, strict=True)]
    assert shifts == [[0, 0, 0, 0, 100 * MS, 100 * MS]] * 4
    attention = {name: [rank["time_ps"]["attention"] for rank in found[name]] for name in KNOBS}
    assert attention["slow"][0] == attention["plain"][0]
    assert attention["slow"][1] == pytest.approx(2 * attention["plain"][1], rel=1e-4)
    assert all(1.8 < a[-1] / b[-1] <= 2 for a, b in zip(slow, plain, strict=True))
    assert all(b[-1] < a[-1] < 1.2 * b[-1] for a, b in zip(late, plain, strict=True))
    waited = [rank["time_ps"]["waiting"] for rank in found["pause"]]
    assert waited[0] - waited[1] > 99 * MS, "who waited was the other"
