"""What `superpod calibrate` measures on ranks: a closed form of its own, and what the library itself takes.

Fails if a hop is charged twice or at another rate, a round is lost, or the library and the calibration charge
different costs. All on 8 ranks; the full measurement is the command itself.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from collectives.calibrate.cases import EXPERTS, HIDDEN, TOPK, Case, parse_case
from collectives.calibrate.routing import experts_of, rows_to
from collectives.libraries import charges, load_library
from emulator.profile import load_profile
from emulator.topology import LinkClass, Topology, read_bytes_per_s, write_bytes_per_s

SUPERPOD = Path(sys.executable).parent / "superpod"
pytestmark = pytest.mark.multirank
CASES = (
    "cann:dispatch:low-latency:8",
    "cann:combine:low-latency:8",
    "deepep-ascend:dispatch:normal:8:512",
    "xccl:dispatch:low-latency:8",
    "xccl:combine:low-latency:8:300",
    "deepep:dispatch:low-latency:8",
    "deepep-legacy:combine:low-latency:8",
    "deepep-legacy:dispatch:normal:8:512",
)


def superpod(*words: str) -> str:
    ran = subprocess.run([SUPERPOD, *words], capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def measured_us() -> dict[str, float]:
    text = superpod("calibrate", *(word for case in CASES for word in ("--case", case)))
    found = re.findall(r"^(\S+): mean ([\d.]+) us", text, re.M)
    assert {name for name, _ in found} == set(CASES)
    return {name: float(us) for name, us in found}


def formula_us(case: Case) -> float:
    """Start, the busiest port of a mean rank, end; latency of a put, and of a get where rows are pulled."""
    profile = load_profile(case.machine)
    costs = charges(
        load_library(case.library), profile, case.operation,
        ranks=case.ranks, hidden=HIDDEN, topk=TOPK, tokens=case.tokens,
    )  # fmt: skip
    rows = rows_to(experts_of(case, 0), case.ranks, case.counted != "expert").sum() / case.ranks
    pulls = case.library == "xccl"
    rates = read_bytes_per_s(profile) if pulls else write_bytes_per_s(profile)
    topology = Topology.from_profile(profile, case.ranks)
    nic = profile.value("rdma.gb_per_s") * profile.value("rdma.efficiency") * 1e9
    wire = sum(
        rows * costs.row_bytes / (nic if case.library == "deepep" else rates[topology.link_class(0, peer)])
        for peer in range(1, case.ranks)
    )
    assert topology.link_class(0, 7) == LinkClass.NODE and EXPERTS % case.ranks == 0
    return (costs.start_ps + costs.pull_start_ps) / 1e6 + 1e6 * wire + (3 if pulls else 2)


@pytest.mark.parametrize("name", CASES)
def test_a_case_takes_what_its_parts_add_up_to(name: str, measured_us: dict[str, float]) -> None:
    """Random routing makes the busiest of 8 ranks a few percent busier than the mean one."""
    formula = formula_us(parse_case(name))
    assert 0.99 <= measured_us[name] / formula <= 1.06


@pytest.mark.parametrize(
    ("library", "scheme", "planes"), [("cann", "cann", "0000"), ("deepep", "deepep-ll", "0111")]
)
def test_the_library_itself_takes_as_long(
    library: str, scheme: str, planes: str, measured_us: dict[str, float], tmp_path: Path
) -> None:
    """Real rows by `collectives.ep`, one put a peer, against the calibration's passes over the peers."""
    out, program = tmp_path / "times.json", Path(__file__).parent / "ep_program.py"
    pod = load_library(library).machine
    superpod("run", "-n", "8", "--pod", pod, str(program), library, scheme, planes, str(out))
    dispatch, combine = json.loads(out.read_text())
    assert dispatch / 1e6 == pytest.approx(measured_us[f"{library}:dispatch:low-latency:8"], rel=0.04)
    if library == "cann":
        assert combine / 1e6 == pytest.approx(measured_us["cann:combine:low-latency:8"], rel=0.04)


def test_bad_words_are_one_line_and_exit_code_2() -> None:
    for words, text in (
        (["--only", "link"], "link"),
        (["--case", "cann:dispatch:low-latency:12"], "ranks must be"),
        (["--json", "/nowhere/x.json"], "--json"),
        (["rows.json"], "write --json rows.json"),
        (["--decode", "/nowhere/x.json"], "--decode"),
    ):
        ran = subprocess.run([SUPERPOD, "calibrate", *words], capture_output=True, text=True, timeout=60)
        assert ran.returncode == 2 and text in ran.stderr and ran.stderr.count("\n") == 1, ran.stderr
