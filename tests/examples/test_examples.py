"""The examples run under every way to start ranks and under both transports, as one and the same run."""

import pytest
from ranks import ROOT, run_ranks

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(300)]
EXAMPLES = {
    "ring_put": (4, "rank 1: 229505 ps"),
    "halo_exchange": (4, "rank 1: 32250580 ps"),
    "dispatch": (2, "rank 0: 1019983 ps"),
    "verbs_write": (2, "rank 0: IBV_WC_RDMA_WRITE of request 3, immediate 0"),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_one_run_however_it_is_started(name):
    """Its expected virtual times stand in the file itself."""
    n, line = EXAMPLES[name]
    path = ROOT / "examples" / f"{name}.py"
    runs = [run_ranks(n, path, launcher=launcher) for launcher in ("fork", "rank", "plain")]
    runs.append(run_ranks(n, path, transport="rma"))
    assert len({run.sha for run in runs}) == 1
    assert all(line in run.stdout for run in runs)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_under_the_command(name):
    n, line = EXAMPLES[name]
    ran = run_ranks(n, ROOT / "examples" / f"{name}.py", launcher="cli", options=("--transport", "rma"))
    assert line in ran.stdout


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_short(name):
    assert len((ROOT / "examples" / f"{name}.py").read_text().splitlines()) < 30


def test_a_changed_latency_breaks_the_expected_time():
    ran = run_ranks(4, ROOT / "examples" / "ring_put.py", check=False, set={"ub.latency_chip_us": 0.3})
    assert ran.code and "AssertionError: (329505, 229505)" in ran.stderr
