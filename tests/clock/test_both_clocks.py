"""Tests of paths, litmus rows, collectives and serving once more, the same bodies, under the wall clock.

They assert what they assert under the virtual clock: exact picoseconds, bytes, hashes, allowed outcomes. The
suite has a sample, `make test-sweeps` whole modules and serving. The dilation is small, for the code path
alone is tried, and a grace of a minute keeps every bound the virtual one. Beside each other: test_wall_runs.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.multirank]
ROOT = Path(__file__).parents[2]
WALL = {"SUPERPOD_CLOCK": "wall", "SUPERPOD_DILATION": "3", "SUPERPOD_GRACE_S": "60"}
SAMPLE = (
    "tests/memsem/test_window.py::test_put_and_get_are_exact_per_distance",
    "tests/collectives/test_coll.py::test_every_operation_by_every_algorithm[2]",
)
MODULES = (
    "tests/litmus/test_observed.py",
    "tests/memsem/test_window.py",
    "tests/memsem/test_signals.py",
    "tests/memsem/test_message_order.py",
    "tests/collectives/test_coll.py",
)
SERVING = (
    "tests/serving/test_replay.py::test_answers_do_not_depend_on_the_ranks_and_equal_the_reference",
    "tests/recovery/test_in_place_ranks.py",
)


def under_the_wall_clock(tests: tuple[str, ...], timeout_s: float, **more: str) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not sweep", *tests],
        cwd=ROOT,
        env=environ | WALL | more,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout.splitlines()[-1], done.stdout[-500:]


@pytest.mark.timeout(120)
def test_a_sample_of_the_suite() -> None:
    under_the_wall_clock(SAMPLE, 110)


@pytest.mark.sweep
@pytest.mark.timeout(660)
@pytest.mark.parametrize("module", MODULES)
def test_whole_modules(module: str) -> None:
    under_the_wall_clock((module,), 600)


@pytest.mark.sweep
@pytest.mark.timeout(660)
def test_serving() -> None:
    under_the_wall_clock(SERVING, 600, SUPERPOD_DILATION="0.05")
