"""The command line: one-line errors with exit code 2, and nothing started for them."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from sandbox import BIN, Sandbox

from emulator.errors import UsageError
from launch import cli, outputs, run

SUPERPOD = str(BIN / "superpod")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run", "-n", "769", "app.py"], "768 dies"),
        (
            ["replay", "-n", "32", "--prepare", "job", "--json", "out.json"],
            "--json: a prepared replay has no result",
        ),
        (["run", "-n", "0", "app.py"], "at least 1 rank"),
        (["run", "-n", "four", "app.py"], "valid integer"),
        (["run", "app.py"], "--np"),
        (["replay", "--requests", "4"], "-n is missing"),
        (["replay", "-n", "32", "--max-num-batched-tokens", "8192"], "where an exchange takes 5792"),
        (["run", "-n", "2"], "name a program"),
        (["run", "-n", "2", "--pod", "nosuchpod", "app.py"], "nosuchpod"),
        (["run", "-n", "2", "--set", "ub.latency_intr_us=4", "app.py"], "ub.latency_intra_us"),
        (["run", "-n", "2", "--set", "ub.latency_intra_us", "app.py"], "key=value"),
        (["run", "-n", "2", "--set", "a=1", "--set", "a=2", "app.py"], "twice"),
        (["run", "-n", "2", "--transport", "pigeon", "app.py"], "shared, rma"),
        (["run", "-n", "2", "--clock", "wall", "--dilation", "0", "app.py"], "--dilation 0"),
        (["run", "-n", "2", "--clock", "sundial", "app.py"], "virtual"),
        (["run", "-n", "2", "--trace-out", "/nonexistent/t.json", "app.py"], "/nonexistent/t.json"),
        (["run", "-n", "2", "--json", "/nonexistent/r.json", "app.py"], "/nonexistent/r.json"),
        (["run", "-n", "2", "--nosuchoption", "app.py"], "--nosuchoption"),
        (["run", "-n", "2", "--json", "/tmp", "app.py"], "that is a directory"),
        (["run", "-n", "2", "--seed", "-1", "app.py"], "'--seed': Input should be greater"),
        (["replay", "-n", "2", "--seed", "-1"], "'--seed': Input should be greater"),
        (["replay", "-n", "2", "--trace-out", "/nonexistent/t.json"], "no directory /nonexistent"),
        (["replay", "-n", "2", "--max-seqs", "0"], "--max-num-seqs 0 must be at least 1"),
        (["make-checkpoint", "/nonexistent/m", "--seed", "-1"], "'--seed': Input should be greater"),
        (["nosuchcommand"], "nosuchcommand"),
        (["trace", "diff", "/nonexistent/a", "/nonexistent/b"], "/nonexistent/a"),
    ],
)
def test_misuse_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], expected: str
) -> None:
    monkeypatch.setattr(run._Job, "start_server", lambda *_: pytest.fail("something was started"))
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("superpod: error: ")
    assert err.count("\n") == 1
    assert expected in err


def _all_commands(group: Any, path: str = "superpod") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _all_commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def test_ranks_machine_and_settings_have_one_name_in_every_command() -> None:
    """Failed while `bench coll` took --ranks and no --np, `run` the other way round, `prices` no --pod."""
    cli._register([])
    found = {path: [p.opts for p in c.params] for path, c in _all_commands(typer.main.get_command(cli.app))}
    ranks = {path for path, options in found.items() if ["-n", "--np", "--ranks"] in options}
    assert ranks == {
        f"superpod {name}"
        for name in ("run", "replay", "decode", "serve", "chaos", "compare", "eplb", "bench coll", "bench ep")
    }
    for path, options in found.items():
        words = {word for opts in options for word in opts}
        assert path in ranks or not words & {"--np", "--ranks"}, path
        assert "--pod" in words or not words & {"--profile", "--set"}, path


def test_usage_names_the_command_as_it_is_typed(capsys: pytest.CaptureFixture[str]) -> None:
    """Fails without `_Pair.format_usage`, where `bench` is followed by two blanks."""
    assert cli.main(["bench", "lat", "--help"]) == 0
    usage = capsys.readouterr().out.partition("\n")[0]
    assert usage.endswith(" bench [OPTIONS] {lat|bw|rate}") and "  " not in usage


def test_no_arguments_show_the_help_and_no_empty_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    out, err = capsys.readouterr()
    assert "Usage" in out + err
    assert "error" not in out + err


def test_a_result_that_cannot_be_written_is_one_line() -> None:
    with pytest.raises(UsageError, match="--json /dev/full: cannot be written: No space left"):
        outputs.write_out("--json", Path("/dev/full"), "x" * 100)


def test_misuse_of_the_installed_command_leaves_nothing(sandbox: Sandbox) -> None:
    result = sandbox.run([SUPERPOD, "run", "-n", "769", "app.py"])
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    sandbox.assert_clean(0)


def test_version_and_help(sandbox: Sandbox) -> None:
    assert sandbox.run([SUPERPOD, "--version"]).stdout.startswith("superpod ")
    assert "make-checkpoint" in sandbox.run([SUPERPOD, "--help"]).stdout


@pytest.mark.parametrize("command", [["run"], ["doctor"], ["trace"], ["make-checkpoint"], ["replay"]])
def test_every_command_has_help(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    assert cli.main([*command, "--help"]) == 0
    assert "Usage" in capsys.readouterr().out


def test_make_checkpoint_twice_gives_the_same_bytes_and_refuses_to_overwrite(tmp_path: Path) -> None:
    def make(name: str, *more: str) -> int:
        words = ["make-checkpoint", str(tmp_path / name), "--preset", "tiny", "--seed", "3"]
        return cli.main([*words, *more])

    assert (make("a"), make("b")) == (0, 0)
    names = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert "config.json" in names
    assert all((tmp_path / "a" / n).read_bytes() == (tmp_path / "b" / n).read_bytes() for n in names)
    assert make("a") == 2
    assert make("a", "--overwrite") == 0


def test_make_checkpoint_unknown_preset(sandbox: Sandbox, tmp_path: Path) -> None:
    result = sandbox.run([SUPERPOD, "make-checkpoint", str(tmp_path / "x"), "--preset", "maxi"])
    assert result.returncode == 2
    assert "mini" in result.stderr


def test_ctrl_c_while_commands_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails where only a command that has begun is interrupted without a traceback."""

    def interrupted(words: list[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_register", interrupted)
    assert cli.main(["doctor"]) == 130


def test_doctor_reports_this_machine(sandbox: Sandbox) -> None:
    result = sandbox.run([SUPERPOD, "doctor", "--json"])
    report = json.loads(result.stdout)
    names = {f["name"] for f in report["findings"]}
    assert {"cores", "memory", "shared memory", "open files", "MPI", "C compiler", "engine core"} <= names
    assert {"rank stub", "accelerated start", "timer slack"} <= names
    assert result.returncode == (0 if report["ok"] else 1)
    assert sandbox.run([SUPERPOD, "doctor"]).stdout.count("│") > 20
    sandbox.assert_clean(0)


def test_doctor_writes_its_findings_where_it_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fails where --json takes no file, or a file that cannot be written is found out about at the end."""
    out = tmp_path / "found.json"
    assert cli.main(["doctor", "--json", str(out)]) in (0, 1)
    assert {"cores", "MPI"} <= {found["name"] for found in json.loads(out.read_text())["findings"]}
    capsys.readouterr()
    assert cli.main(["doctor", "--json", str(tmp_path)]) == cli.main(["doctor", str(out)]) == 2
    directory, no_flag = capsys.readouterr().err.splitlines()
    assert "--json" in directory and "directory" in directory and f"--json {out}" in no_flag


def test_every_command_there_is_can_be_asked_for() -> None:
    modules = {f"launch.{path.stem}" for path in Path(cli.__file__).parent.glob("cmd_*.py")}
    assert set(cli._COMMANDS.values()) == modules


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/proc/x.json", "cannot write a file there"),  # permissions alone would allow it to root
        ("none/x.json", "there is no directory none"),
        (".", "that is a directory"),
        ("fifo", ""),
        ("new.json", ""),
        ("old.json", ""),
    ],
)
def test_where_a_result_cannot_go_is_refused_before_anything_runs(
    path: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo")
    Path("old.json").write_text("kept")
    if words:
        with pytest.raises(UsageError, match=words):
            outputs.check_writable("--json", Path(path))
    else:
        outputs.check_writable("--json", Path(path))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["fifo", "old.json"]
    assert Path("old.json").read_text() == "kept"


@pytest.mark.parametrize("words", [[], ["replay"], ["serve"], ["bench"], ["bench", "ep"], ["trace"]])
def test_help_shows_names_and_sentences_whole_at_80_columns(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fails with typer's tables, which cut `--max-num-batched-tokens` to `--max-num-batc…`."""
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main([*words, "--help"]) == 0
    told = capsys.readouterr().out
    assert not any(line.endswith(("…", "...")) for line in told.splitlines()[1:])
    assert max(len(line) for line in told.splitlines()) <= 80
    if words == ["replay"]:
        assert "--max-num-batched-tokens" in told
