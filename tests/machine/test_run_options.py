"""Options of `superpod run` that choose how bytes are delivered and checked."""

import pytest
from ranks import fork_server_works, run_ranks

pytestmark = pytest.mark.skipif(not fork_server_works(), reason="no fork server here")

PROGRAM = """
import emulator
import numpy as np
from memsem import Window
d = emulator.init()
w = Window.create(8, np.int64)
if d.rank == 0:
    for k in range(4):
        w.put(1, np.full(2, k + 1), 0 if SAME else 2 * k)
    w.quiet()
d.barrier()
report(seen=w.local.tolist(), now=d.now_ps, over=d.config.mpi_over)
"""
APART = PROGRAM.replace("SAME", "0")


def test_adversarial_delivery_depends_on_the_seed_alone() -> None:
    runs = [
        run_ranks(2, APART, launcher="cli", options=("--delivery", how, "--seed", seed))
        for how, seed in (("natural", "1"), ("adversarial", "1"), ("adversarial", "1"), ("adversarial", "2"))
    ]
    natural, one, again, other = (ran.reports[1]["now"] for ran in runs)
    assert one == again and len({natural, one, other}) == 3
    assert all(ran.reports[1]["seen"] == [1, 1, 2, 2, 3, 3, 4, 4] for ran in runs)


@pytest.mark.parametrize(("same", "code"), [(0, 0), (1, 1)])
def test_races_are_reported_and_end_with_1(same: int, code: int) -> None:
    text = PROGRAM.replace("SAME", str(same))
    ran = run_ranks(2, text, launcher="cli", options=("--check-races",), check=False)
    assert ran.code == code, ran.stderr
    assert ("two unordered puts to one place" in ran.stdout) is bool(same)


def test_messages_over_another_plane() -> None:
    ran = run_ranks(2, APART, launcher="cli", options=("--mpi-over", "rdma"))
    assert ran.reports[0]["over"] == "rdma"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--delivery", "hostile"), "choose one of natural, adversarial"),
        (("--mpi-over", "tcp"), "choose one of ub, rdma, vpc"),
        (("--check-races", "--trace-out", "x.json"), "run without --trace-out"),
    ],
)
def test_bad_options_are_one_line(options: tuple[str, ...], message: str) -> None:
    ran = run_ranks(2, APART, launcher="cli", options=options, check=False)
    assert ran.code == 2 and message in ran.stderr and ran.stderr.count("\n") <= 2


@pytest.mark.parametrize("transport", ["shared", "rma"])
def test_single_copy_between_processes_may_be_refused(transport: str) -> None:
    """open-mpi/ompi #4948: refused in a container, a read returned nothing. No byte here moves that way."""
    text = """
    import emulator
    import numpy as np
    from memsem import Window
    d = emulator.init()
    w = Window.create(1 << 20)
    w.put(1 - d.rank, np.random.default_rng(d.rank).integers(0, 256, 1 << 20, dtype=np.uint8))
    w.quiet()
    d.barrier()
    other = np.random.default_rng(1 - d.rank).integers(0, 256, 1 << 20, dtype=np.uint8)
    report(right=bool((w.local == other).all()))
    """
    ran = run_ranks(2, text, transport=transport, env={"OMPI_MCA_smsc": "^cma,xpmem,knem"})
    assert all(report["right"] for report in ran.reports.values())
