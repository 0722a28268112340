"""The tests of the bug reports fail on the builds they are about: see `programs/mutants.py`."""

import pytest
from ranks import run_ranks
from verbs_runs import HERE

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(300)]
PROGRAM = """
import emulator
emulator.init()
import mutants
mutants.run(report)
"""
GOOD_AND_BROKEN = {
    "FLUSH_LOST": (0, [1, 1], [0, 1]),  # libfabric PR 4756, PR 4672
    "ERR_DROPS": (0, 1, 0),  # rdma-core PR 1218
    "IMM_SWAPPED": (1, [[9, 5]], [[5, 9]]),  # libfabric #6392
    "DEPTH_PLUS_ONE": (0, [True, 1], [False, 2]),  # rdma-core PR 1361
    "STALE_WORD": (0, ["RETRY_EXC_ERR"], ["SUCCESS"]),  # spdk #622
    "CUT_AT_MTU": (1, 2048, 1024),  # rxe-dev #76
    "EMPTY_SKIPPED": (1, 1, 0),  # openshmem #206
    "GUARD_OPEN": (0, ["REM_ACCESS_ERR"], ["SUCCESS"]),
}


@pytest.fixture(scope="module")
def seen():
    env = {"PYTHONPATH": f"{HERE / 'programs'}"}
    ran = run_ranks(2, PROGRAM, env=env)
    return {rank: ran.reports[rank]["cases"] for rank in ran.reports}


@pytest.mark.parametrize("mutant", GOOD_AND_BROKEN)
def test_mutant_is_told_apart(seen, mutant):
    side, good, broken = GOOD_AND_BROKEN[mutant]
    assert seen[side][mutant]["seen"][:2] == [good, broken]
