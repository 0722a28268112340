"""Calls of torch.distributed and what stands on them, as people use them: the same results as under gloo."""

import re

import pytest
from ranks import ROOT, run_ranks

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(280), pytest.mark.sweep]
PROGRAMS = ROOT / "tests" / "dist" / "programs"
NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")


def results(program: str, size: int, backend: str) -> dict[str, str]:
    """By case and rank, what came of it."""
    out = run_ranks(size, PROGRAMS / program, args=(backend,), timeout_s=130).stdout.splitlines()
    found = dict(line.rsplit(" | ", 1) for line in out if " | " in line)
    assert found and not len(found) % size
    return found


def alike(ours: str, gloo: str) -> bool:
    """Equal, but for the last digits of fractions: gloo adds in another order."""
    pairs = zip(NUMBER.findall(ours), NUMBER.findall(gloo), strict=False)
    near = all(float(a) == pytest.approx(float(b), rel=1e-3, abs=1e-5) for a, b in pairs)
    return near and NUMBER.sub("#", ours) == NUMBER.sub("#", gloo)


@pytest.mark.parametrize(("program", "size"), [("beside.py", 3), ("beside.py", 5), ("above.py", 4)])
def test_what_gloo_can_do_gives_the_same_here(program: str, size: int) -> None:
    """beside.py: reductions, dtypes, shapes without elements, views of many kinds, uneven splits, objects,
    sub-groups, messages, coalescing, works under way together. above.py: DDP with its options and hooks,
    Join, ZeRO, FSDP and FSDP2, tensor, sequence and pipeline parallelism, DTensor, functional collectives,
    checkpoints. Shown to fail with strides ignored (tensors.landing), with MAX taken for SUM, and (it does
    not end) where a static graph's works do not finish when asked for their futures."""
    ours, gloo = results(program, size, "superpod"), results(program, size, "gloo")
    assert ours.keys() == gloo.keys()
    known = {name for name, text in gloo.items() if text != "none"}
    assert len(known) > 0.8 * len(gloo)
    assert {name: (gloo[name], ours[name]) for name in known if not alike(ours[name], gloo[name])} == {}
