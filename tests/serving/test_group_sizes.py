"""Sizes of groups with vLLM's spelling: what makes up the ranks is taken, everything else refused by name."""

from __future__ import annotations

import pytest

from emulator.errors import UsageError
from launch.paging_options import check_sizes
from serving.charges import check_batch


@pytest.mark.parametrize("dp", [None, 4, 8])
@pytest.mark.parametrize("ep", [None, 8, 4])
@pytest.mark.parametrize("tp", [1, 2, 3, 0, -1, 16])
def test_sizes_that_make_up_the_ranks(dp: int | None, tp: int, ep: int | None) -> None:
    """Mutations: `dp * tp` not held against the ranks; a share of the ranks with experts taken."""
    fits = tp > 0 and 8 % tp == 0 and dp in (None, 8 // tp) and ep in (None, 8)
    if fits:
        check_sizes(8, dp, tp, ep)
        return
    with pytest.raises(UsageError, match=r"^--(tp|dp|ep)-size ") as refused:
        check_sizes(8, dp, tp, ep)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("tokens", "seqs", "says"),
    [(0, 96, "--max-num-batched-tokens 0"), (95, 96, "the 96 requests"), (8, 0, "--max-num-seqs 0 must be")],
)
def test_a_step_has_room_for_all_that_run(tokens: int, seqs: int, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        check_batch(tokens, seqs)
    check_batch(96, 96)
