"""Calls of torch.distributed and what stands on them, as people use them: the same results as under gloo."""

import pytest
from ranks import ROOT, run_ranks

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(280), pytest.mark.sweep]
PROGRAMS = ROOT / "tests" / "dist" / "programs"


def results(program: str, size: int, backend: str) -> dict[str, str]:
    """By case and rank, what came of it."""
    out = run_ranks(size, PROGRAMS / program, args=(backend,), timeout_s=130).stdout.splitlines()
    found = dict(line.rsplit(" | ", 1) for line in out if " | " in line)
    assert found and not len(found) % size
    return found


@pytest.mark.parametrize(("program", "size"), [("beside.py", 3), ("beside.py", 5), ("above.py", 4)])
def test_what_gloo_can_do_gives_the_same_here(program: str, size: int) -> None:
    """beside.py: reductions, dtypes, shapes without elements, views of many kinds, uneven splits, objects,
    sub-groups, messages, coalescing, works under way together. above.py: DDP with its options and hooks,
    Join, ZeRO, FSDP and FSDP2, tensor, sequence and pipeline parallelism, DTensor, functional collectives,
    checkpoints. Shown to fail with strides ignored (tensors.landing) and with MAX taken for SUM."""
    ours, gloo = results(program, size, "superpod"), results(program, size, "gloo")
    assert ours.keys() == gloo.keys()
    known = {name for name, text in gloo.items() if text != "none"}
    assert len(known) > 0.8 * len(gloo)
    assert {name: (gloo[name], ours[name]) for name in known if ours[name] != gloo[name]} == {}
