"""Traces: exported without loss, and the first difference found where it is."""

import json
from pathlib import Path

import numpy as np
import pytest
from sandbox import BIN, Sandbox

from emulator.engine.api import KIND_GET, KIND_PUT, PORT_EGRESS, PORT_INGRESS, RECORD_DTYPE
from emulator.errors import UsageError
from emulator.tracing import TRACE_DTYPE, Op
from launch import cli, tracefile

CALLS = [
    [(0, 1000, 64, 7, 1, Op.PUT), (1000, 1500, 0, 0, -1, Op.QUIET)],
    [(0, 1200, 0, 0, -1, Op.WAIT), (1200, 5200, 0, 0, -1, Op.COMPUTE)],
]
PORTS = [
    (0, 5, 0, 640, 64, 0, 1, PORT_EGRESS, KIND_PUT),
    (600, 6, 700, 1200, 64, 1, 0, PORT_INGRESS, KIND_GET),
    (100, 5, 100, 700, 64, 1, 0, PORT_INGRESS, KIND_PUT),
]


def write(
    directory: Path, calls: list[list[tuple[int, ...]]] = CALLS, ports: list[tuple[int, ...]] = PORTS
) -> Path:
    directory.mkdir()
    for rank, records in enumerate(calls):
        np.array(records, TRACE_DTYPE).tofile(directory / f"rank-{rank}.trace")
    np.array(ports, RECORD_DTYPE).tofile(directory / "ports.trace")
    return directory


def test_export_keeps_everything(tmp_path: Path) -> None:
    directory, out = write(tmp_path / "a"), tmp_path / "a.json"
    assert tracefile.export(directory, out) == 7
    events = json.loads(out.read_text())["traceEvents"]
    assert {e["args"]["name"] for e in events if e["ph"] == "M"} >= {
        "rank 0",
        "rank 1",
        "calls",
        "egress",
        "ingress",
    }
    put = next(e for e in events if e["name"] == "put" and e["cat"] == "calls")
    assert (put["pid"], put["ts"], put["dur"]) == (0, 0.0, 0.001)
    assert put["args"] == {"index": 0, "start_ps": 0, "end_ps": 1000, "peer": 1, "bytes": 64, "checksum": 7}
    assert tracefile.first_difference(directory, out) is None
    ingress = [e for e in tracefile.read(out) if e.track == "ingress"]
    assert [(e.index, e.start_ps, e.name) for e in ingress] == [(0, 100, "put"), (1, 700, "get")]


@pytest.mark.parametrize("exported", [False, True])
def test_diff_finds_the_first_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], exported: bool
) -> None:
    other = [CALLS[0], [(0, 1200, 0, 0, -1, Op.WAIT), (1201, 5201, 0, 0, -1, Op.COMPUTE)]]
    later = [*PORTS, (9000, 9, 9000, 9100, 1, 0, 1, PORT_EGRESS, KIND_PUT)]
    a, b = write(tmp_path / "a"), write(tmp_path / "b", other, later)
    if exported:
        for d in (a, b):
            tracefile.export(d, d.with_suffix(".json"))
        a, b = a.with_suffix(".json"), b.with_suffix(".json")
    assert cli.main(["trace", "diff", str(a), str(a)]) == 0
    assert capsys.readouterr().out == "the traces are equal\n"
    assert cli.main(["trace", "diff", str(a), str(b)]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert "rank 1 calls #1: compute 1200..5200 ps" in first
    assert "rank 1 calls #1: compute 1201..5201 ps" in second


def test_diff_of_a_shorter_track(tmp_path: Path) -> None:
    found = tracefile.first_difference(write(tmp_path / "a"), write(tmp_path / "b", [CALLS[0][:1], CALLS[1]]))
    assert found is not None
    assert (found[0].name if found[0] else None, found[1]) == ("quiet", None)


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"traceEvents": [{"ph": "X"}]}'])
def test_what_is_no_trace_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(UsageError, match="not a trace"):
        list(tracefile.read(path))


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    directory = write(tmp_path / "a")
    path = directory / "rank-1.trace"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(UsageError, match=r"rank-1\.trace: cut short"):
        list(tracefile.read(directory))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no trace directory"):
        list(tracefile.read(tmp_path / "empty"))


@pytest.mark.multirank
def test_a_run_writes_its_trace_and_two_runs_are_equal(sandbox: Sandbox, tmp_path: Path) -> None:
    program = tmp_path / "app.py"
    program.write_text(
        "import numpy as np\nimport emulator\nfrom memsem import Window\n"
        "emulator.init()\nme, n = emulator.rank(), emulator.num_ranks()\n"
        "w = Window.create(8, np.float64)\nemulator.barrier()\n"
        "w.put_signal((me + 1) % n, np.ones(8), 0, signal=0, value=1)\n"
        "w.signal_wait_until(0, 'eq', 1)\nemulator.compute(ps=1000 * (me + 1))\n"
    )
    outs = [str(tmp_path / f"{x}.json") for x in "ab"]
    for out in outs:
        result = sandbox.run(sandbox.superpod(2, str(program), options=("--trace-out", out)))
        assert result.returncode == 0, result.stderr
    events = list(tracefile.read(Path(outs[0])))
    assert {e.track for e in events} >= {"calls", "egress", "ingress"}
    assert {e.rank for e in events} == {0, 1}
    assert sandbox.run([str(BIN / "superpod"), "trace", "diff", *outs]).returncode == 0
    sandbox.assert_clean()
