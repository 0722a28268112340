"""`superpod compare` decides what it runs from its options alone."""

from pathlib import Path

import pytest

from emulator.errors import UsageError
from launch.compare_request import CompareOptions, check_options, room, transfers, workload


def test_a_workload_has_its_own_sizes_and_repeats_unless_others_are_given() -> None:
    """Broken build: `repeat or default`, with which --repeat 0 would be taken for none."""
    spec = workload(CompareOptions(op="dispatch", num_ranks=4, paths="mem, mpi"), "dispatch")
    assert (spec["sizes"], spec["repeat"], spec["paths"]) == ((512, 1920, 7680), 4, ["mem", "mpi"])
    assert workload(CompareOptions(num_ranks=4, sizes="8", repeat=3), "halo")["repeat"] == 3
    with pytest.raises(UsageError, match="--repeat 0: 1 to 10000 steps"):
        workload(CompareOptions(num_ranks=4, sizes="8", repeat=0), "halo")


def test_more_paths_take_more_room() -> None:
    """Broken build: room for one path, however many share the heap."""
    few = room(workload(CompareOptions(paths="mem"), "pingpong"), 2)["heap_bytes"]
    assert room(workload(CompareOptions(), "pingpong"), 2)["heap_bytes"] > few
    assert few % 4096 == 0


def test_transfers_under_a_plan_have_one_size() -> None:
    assert transfers(CompareOptions(faults=Path("p"))) == (64 << 10, 40)
    with pytest.raises(UsageError, match="one size"):
        transfers(CompareOptions(faults=Path("p"), sizes="1,2"))


def test_either_a_workload_or_a_plan() -> None:
    for options in (CompareOptions(), CompareOptions(op="halo", faults=Path("p"))):
        with pytest.raises(UsageError, match="give --op"):
            check_options(options)
