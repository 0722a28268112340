"""The backend on real ranks: every call, however the ranks are started; training as gloo trains; errors."""

import pytest
from ranks import ROOT, run_ranks

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(300)]
PROGRAMS = ROOT / "tests" / "dist" / "programs"
EXAMPLES = ROOT / "examples"


def test_every_call_is_torchs_however_ranks_are_started():
    """One run in each: the virtual times are equal too. Shown to fail with the two lists of counts of
    all_to_all swapped, with results in a place of their own not brought home, with tags ignored."""
    runs = [run_ranks(4, PROGRAMS / "calls.py", launcher=how) for how in ("fork", "rank", "plain")]
    for ran in runs:
        assert ran.stdout.count("all as expected") == 4, ran.stderr
    assert len({ran.sha for ran in runs}) == 1


def test_every_call_over_rma():
    ran = run_ranks(4, PROGRAMS / "calls.py", transport="rma")
    assert ran.stdout.count("all as expected") == 4


@pytest.mark.parametrize("what", ["size", "dtype", "order"])
def test_errors_are_on_every_rank(what):
    ran = run_ranks(3, PROGRAMS / "disagree.py", args=(what,))
    assert ran.stdout.count("all as expected") == 3, ran.stderr


ENDINGS = [
    *("5 2 late", "0 - ended", "5 - ended", "0 - ended", "5 - ended", "5 2 late", "5 20 ended", "5 2 late"),
    *("61100 - late", "100 - ended", "61100 62000 ended", "4 - ended", "4 2 late", "61100 - ended"),
]
"""Of rank 0: ms by which rank 1 is late, ms of the call's own time-out, how the barrier ends."""


def test_barriers_in_less_code_are_barriers_and_end_late_where_they_must():
    """Quick ones and those by a `Work` each: equal times and logs; a time-out of the call counts before the
    group's. Shown to fail when quick ones do not look at the time, and when they do not count as calls."""
    quick, slow = (run_ranks(3, PROGRAMS / "barriers.py", args=(way,)) for way in ("quick", "slow"))
    assert sorted(quick.stdout.splitlines()) == sorted(slow.stdout.splitlines())
    assert quick.stdout.count("is quick: True; " + " ".join(["full-mesh"] * len(ENDINGS))) == 3
    for rank in range(3):
        seen = [line.partition(": ")[2] for line in quick.stdout.splitlines() if f"rank {rank}:" in line]
        assert seen == [ending.replace("late", "ended" if rank == 1 else "late") for ending in ENDINGS]


@pytest.mark.parametrize(("made", "ends"), [("by all", "[[6.0], [60.0]]"), ("local", "told")])
def test_groups_may_be_used_first_in_any_order(made, ends):
    """Right sums where all ranks made them; an error on every rank, never another group's sums, where their
    members did. Shown to fail when groups meet at their first use (wrong sums, once told apart by that)."""
    ran = run_ranks(3, PROGRAMS / "orders.py", args=(made,))
    assert sorted(ran.stdout.splitlines()) == [f"rank {rank}: {ends}" for rank in range(3)]


@pytest.mark.parametrize("name", ["torch_ddp", "torch_fsdp2"])
def test_training_loses_as_under_gloo(name):
    """Ten digits of each step's loss, 8 ranks. Shown to fail when a maximum is taken for a sum."""
    ours, gloo = (
        run_ranks(8, EXAMPLES / f"{name}.py", args=("--backend", backend)).stdout
        for backend in ("superpod", "gloo")
    )
    assert ours.count("loss") >= 3 and ours == gloo


def test_buckets_are_reduced_while_the_backward_pass_goes_on():
    """As gloo loses; all but the last all-reduce is hidden in emulated time. Shown to fail with a future that
    waits at once (time), and with works that leave one by one, each at a wait (time)."""
    ours, gloo = (run_ranks(3, PROGRAMS / "overlap.py", args=(name,)).stdout for name in ("superpod", "gloo"))
    assert ours.count("loss") == 5 and ours == gloo


def test_tensor_parallel_layers_equal_the_whole_one():
    ran = run_ranks(4, EXAMPLES / "torch_tp.py")
    assert "{'dp': 2, 'tp': 2}: loss 0.0734678831" in ran.stdout
