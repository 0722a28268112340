"""Values that no command can use: one line, exit code 2, nothing started."""

import tempfile
from pathlib import Path

import pytest

from emulator.errors import UsageError
from emulator.solo import solo_device
from launch import paths, prepared, warm
from launch.cli import main
from launch.cmd_serve import listening
from launch.run import check_places

BEATS = ("--recovery", "in-place")
TOO_LARGE = str(1 << 64)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("replay", "-n", "4", *BEATS, "--heartbeat-period", "nan"), "--heartbeat-period nan"),
        (("replay", "-n", "4", *BEATS, "--heartbeat-timeout", "inf"), "--heartbeat-timeout inf"),
        (("chaos", *BEATS, "--heartbeat-period", "-1"), "--heartbeat-period -1"),
        (("chaos", "--limit-s", "0"), "--limit-s"),
        (("replay", "-n", "4", "--requests", "100000000000"), "at most 1,000,000"),
        (("eplb", "--policy", "foo"), "choose xdeepserve or deepseek"),
        (("eplb", "--tokens", "99999999999"), "--tokens"),
        (("run", "-n", "2", "/tmp"), "/tmp is a directory without __main__.py"),
        (("run", "-n", "2", "none.py"), "can't open file none.py"),
        (("run", "-n", "2", "--seed", TOO_LARGE, "/tmp"), f"--seed {TOO_LARGE}: a seed has 64 bits"),
        (("replay", "-n", "4", "--seed", TOO_LARGE), "a seed has 64 bits"),
        (("chaos", "--first-seed", TOO_LARGE), f"--first-seed {TOO_LARGE}: a seed has 64 bits"),
        (("bench", "ep", "-n", "2", "--seed", TOO_LARGE), "a seed has 64 bits"),
        (("bench", "foo"), "lat, bw, rate, coll, ep, serve"),
        (("bench", "lat", "--sizes", "0"), "--sizes 0: there is nothing to move; the least is 1 byte"),
        (
            ("bench", "coll", "--coll", "all_reduce", "--sizes", "8,0K"),
            "--sizes 0K: there is nothing to move",
        ),
        (("bench", "coll", "--coll", "all_reduce", "--real", "x"), "--real: 'x' is no size"),
        (("compare", "--op", ""), "--op '': it is empty: halo, dispatch, kv-transfer or pingpong"),
        (("compare", "--op", "pingpong", "--sizes", "0"), "--sizes 0: there is nothing to move"),
        (("bench", "serve", "--request-rate", "0"), "--request-rate 0.0: must be above 0"),
        (("bench", "serve", "--dataset-name", "sharegpt"), "--dataset-path"),
        (("eplb", "--batch", "0"), "--batch 0: at least 1 each"),
        (("eplb", "--batch", f"60,{1 << 63}"), "at most 65536 each"),
        (("eplb", "--context", f"{1 << 63}"), "--context"),
        (("eplb", "--slices", f"{1 << 63}"), "--slices"),
        (("eplb", "--redundant-experts", "-1"), "--redundant-experts"),
        (("eplb", "--set", "a.b=1", "--set", "a.b=2"), "--set a.b=2: a.b is set twice"),
        (("prices", "--set", "a.b=1", "--set", "a.b=2"), "--set a.b=2: a.b is set twice"),
        (("decode", "-n", "2", "--batch", f"{1 << 63}"), "at most 65536 sequences a die"),
        (("decode", "-n", "2", "--context", f"1:{1 << 63}"), "1 <= LOW <= HIGH <= 16777216 is needed"),
        (("bench", "ep", "--experts", f"{1 << 63}"), "--experts"),
        (("bench", "ep", "--library", ""), "--library '': it is empty"),
        (("bench", "ep", "--routing", "zipf", "--zipf-alpha", "nan"), "--zipf-alpha nan: choose 0"),
        (("bench", "ep", "--routing", "zipf", "--zipf-alpha", "1e308"), "--zipf-alpha 1e+308: choose 0"),
        (("bench", "ep", "--hot-experts", "5"), "--hot-experts 5: for --routing k-hot only, not uniform"),
        (("bench", "ep", "--zipf-alpha", "1"), "--zipf-alpha 1.0: for --routing zipf only, not uniform"),
        (("bench", "serve", "--num-prompts", f"{1 << 63}"), "--num-prompts"),
        (("bench", "serve", "--random-input-len", "0"), "--random-input-len 0"),
        (("bench", "serve", "--random-output-len", f"{1 << 63}"), "at most 1048576"),
        (("bench", "serve", "--random-range-ratio", "nan"), "--random-range-ratio nan must be in [0, 1)"),
        (("bench", "serve", "--time-scale", "nan"), "--time-scale nan: must be above 0"),
        (("bench", "serve", "--token-scale", "0"), "--token-scale 0: at least 1"),
        (("bench", "serve", "--max-output", "-1"), "--max-output -1: at least 1"),
        (("bench", "serve", "--extra-body", "[]"), "--extra-body []: must be a JSON object"),
        (("bench", "serve", "--dataset-name", "azure", "--dataset-path", "none.csv"), "no such file"),
        (("calibrate", "--case", "xccl:dispatch:low-latency:4:4", "--only", "p2p"), "--only is of published"),
        (("calibrate", "--case", "xccl:dispatch:low-latency:4:4", "--json", "x"), "--json is of published"),
        (("calibrate", "--serving", "--keep", "/proc/x"), "--keep /proc/x: cannot be made a folder"),
        (("compare", "--faults", "/dev/null", "--plot", "x.svg"), "--plot is of --op"),
        (("compare", "--faults", "/dev/null", "--paths", "mem"), "--paths is of --op"),
        (("compare", "--faults", "/dev/null", "--transport", "rma"), "--transport is of --op"),
        (("compare", "--faults", "/dev/null", "--sizes", "8,16"), "--sizes 8,16: with --faults one size"),
        (("compare", "--faults", "/dev/null", "--repeat", "-1"), "--repeat -1: 1 to 10000 transfers"),
        (("chaos", "--requests", f"{1 << 63}"), "--requests"),
        (("chaos", "--seeds", f"{1 << 63}"), "--seeds"),
        (("replay", "-n", "4", "--launch-jitter", "nan"), "--launch-jitter nan: a delay of 0 to 1e+09"),
        (("replay", "-n", "4", "--launch-jitter", "inf"), "--launch-jitter inf: a delay of 0 to 1e+09"),
    ],
)
def test_one_line_and_exit_code_2(
    words: tuple[str, ...], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([*words]) == 2
    error = capfd.readouterr().err
    assert said in error and "Traceback" not in error


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("knd = 1", ":1: the field 'kind' is missing"),
        ("at_ps = 1", "the field 'kind' is missing"),
        ('kind = "kill"\nrank = "foo"\nat_ps = 1', ":3: rank: a number or \"random\", got 'foo'"),
    ],
)
def test_a_plan_that_names_nothing(
    text: str, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(f"[[fault]]\n{text}\n")
    assert main(["chaos", "--plan", str(plan)]) == 2
    assert said in capfd.readouterr().err


def test_a_job_is_not_written_over_other_files(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """`--prepare model` wrote over the model's config.json. Fails also where results of an earlier job are
    kept, which a report told as the new job's."""
    job = ["replay", "-n", "2", "--no-memory-check", "--requests", "2", "--prepare"]
    other = tmp_path / "config.json"
    other.write_text("mine")
    assert main([*job, str(tmp_path)]) == main([*job, str(other)]) == 2
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 2 and f"--prepare {tmp_path}: it holds other files" in said[0]
    assert f"--prepare {other}: no job can be written there" in said[1] and other.read_text() == "mine"
    place = tmp_path / "job"
    place.mkdir()
    for name in ("plan.pickle", "machine.json", "results.jsonl"):
        (place / name).write_text("{}")
    prepared.check_place(place)
    assert main([*job, str(place)]) == 0
    assert not (place / "machine.json").exists() and not (place / "results.jsonl").exists()


@pytest.mark.parametrize("text", ["foo", "-5", "nan", "inf", ""])
def test_an_idle_time_that_is_none(text: str) -> None:
    with pytest.raises(UsageError, match="SUPERPOD_IDLE_S"):
        warm.idle_seconds({"SUPERPOD_IDLE_S": text})
    assert warm.idle_seconds({}) == 60.0


def test_a_pod_of_one_takes_no_fault_plan_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rehearsal is rank 0 of 1: the plan's rank 0 is another process, and must not be killed in it."""
    plan = tmp_path / "plan.toml"
    plan.write_text('[[fault]]\nkind = "kill"\nrank = 0\nat_op = 1\n')
    monkeypatch.setenv("SUPERPOD_FAULTS", str(plan))
    device = solo_device()
    assert not device.faults.active
    device.barrier()


def test_a_host_that_is_none() -> None:
    with (
        pytest.raises(UsageError, match="--host nohost.invalid: no such address"),
        listening("nohost.invalid", 0),
    ):
        pass


def test_places_a_run_cannot_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A removed directory: mpirun ended with 230. A report nobody can write: a traceback at the end."""
    check_places({"report": str(tmp_path / "report.json"), "trace": str(tmp_path)})
    with pytest.raises(UsageError, match="configuration: report none/x: there is no directory none"):
        check_places({"report": "none/x"})
    with pytest.raises(UsageError, match="configuration: trace none: there is no such directory"):
        check_places({"trace": "none"})
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(UsageError, match="the current directory has been removed"):
        check_places({})


def test_a_relative_place_for_temporary_files_is_made_absolute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open MPI, started elsewhere, looked for `./superpod-…` under /."""
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        monkeypatch.chdir(short)
        monkeypatch.setenv("TMPDIR", ".")
        assert paths.runtime_directory().parent == Path(short)
        monkeypatch.undo()
