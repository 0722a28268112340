"""`superpod replay` over real ranks: one answer from any number of them, one result from equal runs."""

import fnmatch
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks

from launch.cli import main
from serving.model.checkpoint import make_checkpoint
from serving.traces import read_trace

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(240)]
TIMEOUT_S = 200
EXECUTED_MOE_LAYERS, PRICED_MOE_LAYERS = 5, 58
TRACE = "".join(
    json.dumps({"timestamp": t, "input_length": n, "output_length": o, "hash_ids": list(range(-(-n // 512)))})
    + "\n"
    for t, n, o in [(0, 700, 4), (0, 3000, 3), (20, 64, 9), (400, 5000, 2), (30_000, 130, 1)]
)
BASE = ["--token-scale", "64", "--max-output", "4", "--no-memory-check", "--requests", "5"]


@pytest.fixture(scope="session")
def mini_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("model") / "mini"
    make_checkpoint(directory, "mini", seed=1)
    return str(directory)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.jsonl"
    path.write_text(TRACE)
    return str(path)


def command_environment() -> dict[str, str]:
    root = str(Path(__file__).parents[2])
    return os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": root,
    }


def command(
    *arguments: str, program: Sequence[str] = ("-m", "launch.cli")
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *program, "replay", *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=command_environment(),
    )


def run(tmp_path: Path, *arguments: str, expected: int = 0) -> dict[str, Any]:
    out = tmp_path / f"{hashlib.sha256(repr(arguments).encode()).hexdigest()[:8]}.json"
    done = command(*arguments, "--json", str(out))
    assert done.returncode == expected, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(out.read_text())
    return result


@pytest.mark.parametrize("sizes", [(1, 5), pytest.param((1, 2, 3, 5, 8), marks=pytest.mark.sweep)])
def test_answers_do_not_depend_on_the_ranks_and_equal_the_reference(
    sizes: tuple[int, ...], tmp_path: Path, trace: str, mini_model: str
) -> None:
    """1, 2, 3, 5 and 8 ranks: even and uneven splits, several experts a rank."""
    answers = set()
    for num_ranks in sizes:
        extra = ("--shared-experts", "placed") if num_ranks in (2, 5) else ()
        result = run(
            tmp_path,
            *BASE,
            "-n",
            str(num_ranks),
            "--trace",
            trace,
            "--model",
            mini_model,
            "--check-reference",
            *extra,
        )
        assert result["tokens_equal_reference"] is True
        assert all(result["invariants"].values())
        assert (result["ranks"], result["completed"], result["failed"]) == (num_ranks, 5, 0)
        assert result["output_tokens"] == 4 + 3 + 4 + 2 + 1
        assert result["truncated_outputs"] == 1
        assert result["host"]["pss_gb"] > 0.1
        assert 0 < result["host"]["startup_wall_s"] < result["host"]["wall_s"]
        assert result["priced_tokens"] == 700 + 3000 + 64 + 5000 + 130 + result["output_tokens"] - 5
        assert result["functional_tokens"] == 11 + 47 + 1 + 79 + 3 + result["output_tokens"] - 5
        answers.add((result["logits_sha256"], result["tokens_sha256"]))
        rows = result["priced_tokens"] * (9 if extra else 8)
        assert result["work"]["priced_rows_sent"] == rows * EXECUTED_MOE_LAYERS
        assert result["work"]["priced_bytes_sent"] == rows * PRICED_MOE_LAYERS * (7680 + 14_336)
        if num_ranks == 1:  # nobody to wait for but the next arrival
            assert result["virtual_time"]["waiting"]["mean_s"] - result["idle_s"] < 0.002
    assert len(answers) == 1


@pytest.mark.sweep
def test_results_are_equal_over_either_transport(tmp_path: Path, trace: str, mini_model: str) -> None:
    arguments = [*BASE, "-n", "4", "--trace", trace, "--model", mini_model]
    first = run(tmp_path, *arguments)
    rma = run(tmp_path, *arguments, "--transport", "rma")
    slower = run(tmp_path, *arguments, "--set", "ub.latency_inter_us=40", "--set", "ub.latency_intra_us=30")
    for result in (first, rma, slower):
        assert set(result.pop("host")) >= {"wall_s", "startup_wall_s", "pss_gb"}
    assert first == rma
    assert slower["logits_sha256"] == first["logits_sha256"]
    assert slower["trace_sha256"] != first["trace_sha256"]
    assert slower["virtual_duration_s"] > first["virtual_duration_s"]


def test_a_request_beyond_the_context_fails_alone(tmp_path: Path, mini_model: str) -> None:
    trace = tmp_path / "long.jsonl"
    long = {"timestamp": 0, "input_length": 163_840, "output_length": 1, "hash_ids": list(range(320))}
    trace.write_text(json.dumps(long) + "\n" + TRACE)
    arguments = [*BASE, "-n", "2", "--model", mini_model, "--check-reference"]
    result = run(tmp_path, *arguments, "--requests", "6", "--trace", str(trace), expected=2)
    assert (result["completed"], result["failed"]) == (5, 1)
    assert result["failures"][0]["request"] == 0
    assert "exceed the priced context of 163840" in result["failures"][0]["error"]
    assert result["tokens_equal_reference"] is True
    assert all(result["invariants"].values())


def test_a_wrong_answer_is_found(tmp_path: Path, trace: str, mini_model: str) -> None:
    """The ranks serve other weights than the reference: exit code 1, and the JSON says which requests."""
    other = tmp_path / "other"
    shutil.copytree(mini_model, other)
    with open(other / "model.safetensors", "r+b") as file:
        file.seek(-4096, os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 0x40]))
    program = tmp_path / "program.py"
    program.write_text(
        "import dataclasses, sys\n"
        "import serving.reference as r\n"
        "from launch.cli import main\n"
        "read = r.ReplayJob.read\n"
        f"other = dict(model_dir={str(other)!r})\n"
        "r.ReplayJob.read = lambda d: dataclasses.replace(read(d), **other)\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    out = tmp_path / "out.json"
    arguments = [*BASE, "-n", "2", "--trace", trace, "--model", mini_model, "--check-reference"]
    done = command(*arguments, "--json", str(out), program=[str(program)])
    assert done.returncode == 1, done.stdout + done.stderr
    assert "broken: tokens_equal_reference" in done.stderr
    result = json.loads(out.read_text())
    assert result["tokens_equal_reference"] is False
    assert result["requests_differing_from_reference"]


@pytest.mark.parametrize("name", ["cmd_replay", "cmd_replay_report", "prepared"])
def test_torch_is_not_imported_with_the_command(name: str) -> None:
    code = f"import launch.{name}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=command_environment()).returncode == 0


def test_the_command_holds_no_torch(tmp_path: Path, trace: str, mini_model: str) -> None:
    """Not after a whole run either, model made or given, reference or none."""
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        "from launch.cli import main\n"
        "code = main(sys.argv[1:])\n"
        "assert 'torch' not in sys.modules and 'libtorch' not in open('/proc/self/maps').read()\n"
        "sys.exit(code)\n"
    )
    base = [*BASE, "-n", "1", "--trace", trace]
    for extra in (["--model", mini_model, "--check-reference"], ["--prepare", str(tmp_path / "job")]):
        done = command(*base, *extra, program=[str(program)])
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_killed_command_leaves_nothing(trace: str, mini_model: str) -> None:
    """kill -9 of the command: ranks, reference, sockets and shared memory go."""
    with tempfile.TemporaryDirectory(prefix="sp", dir="/tmp") as base:
        arguments = [*BASE, "-n", "2", "--trace", trace, "--model", mini_model, "--check-reference"]
        environment = command_environment() | {"TMPDIR": base, "SUPERPOD_WARM": "0"}
        process = subprocess.Popen(
            [sys.executable, "-m", "launch.cli", "replay", *arguments],
            env=environment,
            stdout=subprocess.DEVNULL,
        )
        runtime = Path(base) / f"superpod-{os.getuid()}"
        # From the moment its fork server runs, somebody cleans up after a killed command at once.
        wait_for(lambda: any(holds(path.parent.name) for path in runtime.glob("run-*/socket")))
        names = [path.name for path in runtime.glob("run-*")]
        process.kill()
        process.wait()
        wait_for(lambda: not runtime.exists())
        wait_for(lambda: not any(name in os.listdir("/proc") or holds(name) for name in names))
        assert not [p for p in Path("/dev/shm").iterdir() if any(name in p.name for name in names)]


def test_a_killed_rank_ends_the_run_with_exit_code_1(mini_model: str) -> None:
    """The workload is long enough that the rank is killed in the middle of it."""
    with tempfile.TemporaryDirectory(prefix="sp", dir="/tmp") as base:
        arguments = ["-n", "2", "--model", mini_model, "--no-memory-check", "--requests", "400"]
        program = [sys.executable, "-m", "launch.cli", "replay", *arguments]
        environment = command_environment() | {"TMPDIR": base, "SUPERPOD_WARM": "0"}
        process = subprocess.Popen(program, env=environment, stderr=subprocess.PIPE, text=True)
        runtime = Path(base) / f"superpod-{os.getuid()}"
        # A rank that has opened its job's workload is on its way into the run.
        wait_for(lambda: bool(mapping(f"{runtime}/run-*/tokens.npy")))
        os.kill(mapping(f"{runtime}/run-*/tokens.npy")[0], signal.SIGKILL)
        _, error = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 1, error
        assert "the ranks ended with exit code" in error
        assert not runtime.exists()


def mapping(pattern: str) -> list[int]:
    """Ranks that map a file: processes whose parent and grandparent are the fork server's (a job's template,
    which may map it too, has the command as its grandparent)."""
    found = []
    for path in Path("/proc").glob("[0-9]*/maps"):
        try:
            pid, names = int(path.parent.name), path.read_text()
            parent = parent_of(pid)
            above = (parent, parent_of(parent))
            if any("forkserver" not in Path(f"/proc/{p}/cmdline").read_text() for p in above):
                continue
        except (OSError, ValueError):
            continue
        if any(fnmatch.fnmatch(line.split()[-1], pattern) for line in names.splitlines()):
            found.append(pid)
    return found


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def holds(name: str) -> bool:
    """Whether a process was started with this run's name among its arguments."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if name.encode() in path.read_bytes():
                return True
        except OSError:
            continue
    return False


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-n", "2", "--trace", "no-such-trace"], "no-such-trace cannot be read"),
        (["-n", "2", "--trace", "{corrupt}"], "line 2: not JSON"),
        (["-n", "2", "--trace", "{trace}", "--requests", "9"], "line 6: missing"),
        (["-n", "769"], "768"),
        (["-n", "2", "--set", "ub.latency_intre_us=4"], "did you mean .ub.latency_int"),
        (["-n", "8"], "GB"),
        (["-n", "2", "--token-scale", "48"], "must divide 512"),
        (
            ["-n", "2", "--no-memory-check", "--token-scale", "512", "--batched-tokens", "256"],
            "--token-scale|token scale",
        ),
        (["-n", "2", "--no-memory-check", "--priced-as", "deepseek-r2"], "deepseek-r1"),
        (["-n", "2", "--no-memory-check", "--shared-experts", "both"], "local or placed"),
        (["-n", "2", "--no-memory-check", "--redundant-experts", "257"], "the most is 256"),
        (["-n", "2", "--no-memory-check", "--layers-executed", "3"], "at least 4"),
        (["-n", "2", "--no-memory-check", "--model", "no-such-model"], "no-such-model"),
        (["-n", "2", "--no-memory-check", "--model", "{tiny}"], "routed experts"),
        (["-n", "2", "--no-memory-check", "--model", "{cut}"], "model.safetensors"),
        (["-n", "0"], "at least 1 rank"),
        (["-n", "2", "--transport", "tcp"], "shared, rma"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    trace: str,
    mini_model: str,
    tiny_model: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    corrupt, cut = tmp_path / "corrupt.jsonl", tmp_path / "cut"
    corrupt.write_text(TRACE.splitlines()[0] + "\n{oops\n")
    if "{cut}" in arguments:
        shutil.copytree(mini_model, cut)
        os.truncate(cut / "model.safetensors", (cut / "model.safetensors").stat().st_size - 100_000)
    paths = {"{corrupt}": str(corrupt), "{trace}": trace, "{tiny}": tiny_model, "{cut}": str(cut)}
    assert main(["replay", *[paths.get(a, a) for a in arguments]]) == 2
    error = capsys.readouterr().err
    assert error.startswith("superpod: error: ")
    assert error.count("\n") == 1
    assert re.search(words, error), error


@pytest.mark.sweep
def test_placement_is_shown(tmp_path: Path, trace: str, mini_model: str) -> None:
    done = command(
        *BASE, "-n", "2", "--trace", trace, "--model", mini_model, "--show-placement", "--requests", "1"
    )
    assert done.returncode == 0, done.stderr
    assert "Expert placement on 2 ranks" in done.stdout
    assert "0-127" in done.stdout and "128-255" in done.stdout


def test_the_fixture_trace_is_a_real_one(trace: str) -> None:
    assert [r.input_length for r in read_trace(trace)] == [700, 3000, 64, 5000, 130]


def test_the_benchmark_of_a_decode_step_runs(mini_model: str) -> None:
    """benchmarks/decode_step.py puts a rank together by itself: it must follow what a rank is made of."""
    script = Path(__file__).parents[2] / "benchmarks" / "decode_step.py"
    ran = run_ranks(2, script, args=("--model", mini_model, "--steps", "3", "--sequences", "2"))
    figures = json.loads(ran.stdout.strip().splitlines()[-1])
    assert (figures["ranks"], figures["sequences"]) == (2, 4) and figures["step_s_median"] > 0
