"""Who forwards to whom: golden counts of metadata records, every expert served once, slots renumbered."""

import numpy as np
import pytest

from collectives.libraries import load_library
from collectives.xccl.relay_costs import a2e_costs, e2a_costs
from collectives.xccl.relay_model import a2e_ps, e2a_ps
from collectives.xccl.relay_plan import Relays, by_member, places, rotated
from emulator.errors import UsageError
from emulator.profile import load_profile


def relays(attention, experts, mode="trampoline"):
    return Relays.of(attention + experts, range(attention), range(attention, attention + experts), mode)


@pytest.mark.parametrize(
    ("attention", "experts", "direct", "relayed"),
    [(4, 7, 28, 19), (8, 24, 192, 80), (160, 288, 46_080, 25_728), (5, 5, 25, 25), (1, 6, 6, 6)],
)
def test_metadata_records(attention, experts, direct, relayed):
    """A x E, or A x A + (E - A). Broken build: trampolines that send a record to themselves too."""
    assert relays(attention, experts, "direct").records == direct
    assert relays(attention, experts).records == relayed


@pytest.mark.parametrize(("attention", "experts"), [(4, 7), (8, 24), (160, 288), (3, 3), (5, 2), (1, 9)])
def test_every_expert_is_served_by_one_trampoline(attention, experts):
    """Forwards of one trampoline: at most ceil((E - A) / A)."""
    plan = relays(attention, experts)
    served = [list(plan.served_by(t)) for t in range(plan.num_trampolines)]
    assert sorted(sum(served, [])) == list(range(experts))
    assert all(group[0] == t for t, group in enumerate(served))
    assert all(plan.place(e) == (t, i) for t, group in enumerate(served) for i, e in enumerate(group))
    most = max(len(group) - 1 for group in served)
    assert most == plan.most_forwards == max(0, -(-(experts - attention) // attention))


@pytest.mark.parametrize("mode", ["trampoline", "direct"])
@pytest.mark.parametrize("slots", [1, 3])
def test_slots_are_renumbered_one_to_one_and_by_trampoline(mode, slots):
    """Broken build: member and trampoline exchanged in `relabel`."""
    plan = relays(4, 7, mode)
    new = plan.relabel(np.arange(7 * slots), slots)
    assert np.unique(new).size == 7 * slots and new.max() < plan.num_trampolines * plan.group_size * slots
    for old, number in enumerate(new.tolist()):
        trampoline, member = plan.place(old // slots)
        assert number == (trampoline * plan.group_size + member) * slots + old % slots
    if mode == "direct":
        assert new.tolist() == list(range(7 * slots))


def test_rows_are_grouped_by_member_in_their_order():
    order, rows, begin = by_member(np.array([1, 0, 2, 1, 0], np.int32), 4)
    assert (order.tolist(), rows.tolist(), begin.tolist()) == ([1, 4, 0, 3, 2], [2, 2, 1, 0], [0, 2, 4, 5])
    sources, records = places(np.array([2, 0, 1], np.int32), np.array([5, 9, 0], np.int32))
    assert (sources.tolist(), records.tolist()) == ([0, 0, 2], [5, 6, 0])
    assert rotated(4, 1).tolist() == [2, 3, 0, 1] and rotated(3, 7).tolist() == [2, 0, 1]


def test_rows_that_cross_twice():
    assert relays(4, 7).forwarded_rows(np.arange(7)) == 4 + 5 + 6
    assert relays(4, 7, "direct").forwarded_rows(np.arange(7)) == 0


@pytest.mark.parametrize(
    ("attention", "experts", "mode", "why"),
    [
        ([0, 1], [1, 2], "trampoline", "rank 1 cannot be attention and expert"),
        ([0, 1, 3], [4], "direct", "evenly spaced"),
        ([2, 1], [4], "direct", "ascending"),
        ([], [1], "direct", "at least one"),
        ([0], [9], "direct", "ranks of 0 to 7"),
        ([0], [1], "relay", "choose trampoline or direct"),
    ],
)
def test_bad_sets_are_refused(attention, experts, mode, why):
    with pytest.raises(UsageError, match=why):
        Relays.of(8, attention, experts, mode)


def test_costs_are_those_of_dispatch_and_combine():
    """Write and poll of a record are halves of the fitted scalar work; nothing is fitted here."""
    profile, library = load_profile(), load_library("xccl")
    costs = a2e_costs(profile, 7168, 864)
    assert costs.write_ps + costs.poll_ps == costs.issue_ps == library.ps("rank")
    assert (costs.row_bytes, costs.meta_bytes, costs.settle_ps) == (7680, 32, 0)
    assert a2e_costs(profile, 7168, 864, in_situ=True).settle_ps > 0
    assert e2a_costs(profile, 7168, 480).row_bytes == 14_336


def test_the_closed_form_is_near_the_published_times():
    """arXiv 2508.02520v6 3.3: A2E 172 us, E2A 193 us at 160 : 288, 96 rows x 9 slots a die; nothing fitted.
    Broken build: a hop charged for the mean of the trampolines rather than for the busiest."""
    profile, plan = load_profile(), relays(160, 288)
    out = a2e_ps(profile, plan, 96 * 9, a2e_costs(profile, 7168, 96 * 9)).most
    back = e2a_ps(profile, plan, 96 * 9, e2a_costs(profile, 7168, 480)).most
    assert abs(out / 172e6 - 1) < 0.15 and abs(back / 193e6 - 1) < 0.15, (out, back)
