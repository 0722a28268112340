"""Where results go: refused before the work, written before the tables, and one line when it fails."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from sandbox import BIN

from launch import cli, outputs

INPUTS = {
    "a", "b", "compare_schedule", "dataset_path", "decode", "directory", "faults", "keep", "model", "plan",
    "prepare", "program", "schedule_from", "trace",
}  # fmt: skip
SUPERPOD = str(BIN / "superpod")


def commands() -> Iterator[Any]:
    cli._register([])
    yield from outputs._commands(typer.main.get_command(cli.app))


def test_every_path_of_every_command_is_an_input_or_an_output() -> None:
    """A new option that names a file is looked at by `add_output_checks`, or stands in the list above."""
    found = {p.name for c in commands() for p in c.params if "Path" in str(vars(p).get("type_descriptor"))}
    assert found, "this version of typer says what an option takes in another way"
    assert found == (INPUTS - {"program"}) | set(outputs.OUTPUTS)


OUTPUT_OPTIONS = [
    ("compare", "--op", "pingpong", "--json"),
    ("compare", "--op", "pingpong", "--plot"),
    ("bench", "lat", "--json"),
    ("bench", "coll", "--coll", "all_reduce", "--json"),
    ("bench", "ep", "--json"),
    ("bench", "serve", "--save-result"),
    ("calibrate", "--json"),
    ("calibrate", "--serving", "--json"),
    ("decode", "-n", "2", "--json"),
    ("eplb", "--json"),
    ("chaos", "--resume"),
    ("chaos", "--plot"),
    ("serve", "nowhere", "-n", "2", "--record"),
    ("replay", "-n", "2", "--schedule-out"),
    ("run", "-n", "2", "--trace-out"),
    ("trace", "export", "nowhere"),
]


@pytest.mark.parametrize("words", OUTPUT_OPTIONS, ids=" ".join)
@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("", "'': it is empty: "),
        ("-", "-: name a file; /dev/stdout is the output"),
        ("/proc", "/proc: that is a directory; name a file"),
        ("/proc/x", "/proc/x: cannot write a file there"),
    ],
)
def test_a_result_without_a_place_is_refused_before_the_work(
    words: tuple[str, ...], place: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Fails with `_guard` taken out of `add_output_checks`: `eplb` then computes for minutes first."""
    last = () if words[0] != "run" else ("app.py",)
    assert cli.main([*words, place, *last]) == 2
    error = capfd.readouterr().err
    assert said in error and error.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ("compare", "--op", "pingpong", "--json", "x.svg", "--plot", "x.svg"),
        ("chaos", "--json", "x.svg", "--plot", "./x.svg"),
        ("serve", "nowhere", "-n", "2", "--record", "x.svg", "--json", "x.svg"),
        ("replay", "-n", "2", "--json", "x.svg", "--trace-out", "x.svg"),
    ],
    ids=" ".join,
)
def test_two_results_in_one_file_are_refused(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main([*words]) == 2
    assert "writes that file; name another" in capfd.readouterr().err
    assert not list(tmp_path.iterdir())


def test_two_results_may_both_go_to_a_device() -> None:
    null = Path("/dev/null")
    outputs.check_outputs({"--json": null, "--plot": null})


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("words", [["--version"], ["prices"]], ids=" ".join)
def test_an_output_that_takes_nothing_is_one_line(words: list[str], buffered: bool) -> None:
    """Fails without `output_watched`: a traceback, and exit code 1 or 120."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    env |= {} if buffered else {"PYTHONUNBUFFERED": "1"}
    with open("/dev/full", "w") as full:
        p = subprocess.run([SUPERPOD, *words], stdout=full, stderr=subprocess.PIPE, env=env, timeout=60)
    assert p.stderr == b"superpod: error: the output cannot be written: No space left on device\n"
    assert p.returncode == 2


def test_an_output_whose_reader_has_left_is_quiet() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    p = subprocess.run([SUPERPOD, "prices"], stdout=writer, stderr=subprocess.PIPE, timeout=60)
    os.close(writer)
    assert (p.returncode, p.stderr) == (1, b"")


@pytest.mark.parametrize("closed", [1, 2])
def test_a_standard_file_that_is_closed(closed: int) -> None:
    command = ["sh", "-c", f"exec {SUPERPOD} prices --profile nowhere {closed}>&-"]
    p = subprocess.run(command, capture_output=True, timeout=60)
    assert p.returncode == 2 and p.stderr.count(b"\n") == 2 - closed


def test_complaints_nobody_can_hear_keep_their_exit_code() -> None:
    with open("/dev/full", "w") as full:
        p = subprocess.run([SUPERPOD, "prices", "--profile", "nowhere"], stderr=full, timeout=60)
    assert p.returncode == 2


def test_json_is_there_when_the_table_has_no_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails on a build that prints first."""
    from launch import cmd_eplb

    monkeypatch.setattr("serving.eplb.report.figures", lambda *_: {"made": "up"})
    monkeypatch.setattr(cmd_eplb, "_opened", lambda *_: _NoRouter())
    monkeypatch.setattr("serving.eplb.report.table", _no_reader)
    assert cli.main(["eplb", "-n", "16", "--json", str(tmp_path / "out.json")]) == 1
    assert json.loads((tmp_path / "out.json").read_text()) == {"made": "up"}


def _no_reader(*_: Any) -> None:
    from launch.standard_output import OutputError

    raise OutputError(BrokenPipeError())


class _NoRouter:
    class config:
        n_routed_experts, n_group, num_experts_per_tok = 256, 8, 8

    def __enter__(self) -> "_NoRouter":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_what_a_killed_command_leaves_is_the_next_ones_to_remove(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything temporary of a command lies in its run's directory. Fails with `tempfile` left as it is."""
    import tempfile

    from launch.workplace import job_directory

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with job_directory() as own:
        made = Path(tempfile.mkdtemp())
        assert own.path in made.parents
    assert not made.exists() and tempfile.tempdir is None
