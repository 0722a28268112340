"""Link faults in closed form: ladder, flapping, planes, loss. Pure."""

from fractions import Fraction

import pytest

from emulator.faults import FaultPlan
from emulator.faults.links import LinkFault, is_lost, link_faults, passage, slower, ub_ladder
from emulator.topology import Topology

_US = 1_000_000
_POD = Topology(num_ranks=64, dies_per_chip=2, chips_per_node=8, nodes=4)


def _fault(kind: str = "link_down", link: str = "die:5", **fields: object) -> LinkFault:
    plan = FaultPlan([{"kind": kind, "link": link, "at_ps": 0, **fields}])
    return link_faults(plan.resolve(64, _POD))[0]


def test_the_ladder_is_the_published_one() -> None:
    ladder = [20, 160, 1280, 10_240, 81_920, 655_360, 5_242_880]
    assert [w // _US for w in ub_ladder()] == ladder


@pytest.mark.parametrize(
    ("lasts_us", "start_us", "retries"), [(1, 20, 1), (20, 20, 1), (21, 180, 2), (181, 1460, 3)]
)
def test_an_outage_costs_the_first_tick_after_it(lasts_us: int, start_us: int, retries: int) -> None:
    # broken by a ladder that waits the first rung each time, or by an end that still counts as down
    found = passage([_fault(duration_ps=lasts_us * _US)], 0, ub_ladder(), 0, 1, 0)
    assert found == (start_us * _US, retries, False, Fraction(1))


def test_an_outage_for_ever_is_given_up_after_the_last_retry() -> None:
    found = passage([_fault()], 7, ub_ladder(), 0, 1, 0)
    assert found.failed and found.retries == 7
    assert found.start_ps == 7 + sum(ub_ladder()) + ub_ladder()[-1]


def test_a_link_that_flaps_faster_than_the_timer() -> None:
    # in step with the timer each retry meets the same phase: down half of the time, never reached
    assert passage([_fault("link_flap", period_ps=10 * _US)], 0, ub_ladder(), 0, 1, 0).failed
    assert passage([_fault("link_flap", period_ps=10 * _US)], 5 * _US, ub_ladder(), 0, 1, 0).retries == 0
    odd = passage([_fault("link_flap", period_ps=7 * _US)], 0, ub_ladder(), 0, 1, 0)
    assert (odd.start_ps, odd.retries) == (20 * _US, 1)  # 20 us is 6 us into the third period: up


def test_one_of_seven_planes_costs_a_seventh() -> None:
    one, other = _fault(link="plane:5/3"), _fault(link="plane:5/4")
    assert slower([one], 0) == Fraction(7, 6) and slower([one, other], 0) == Fraction(7, 5)
    assert slower([one, one], 0) == Fraction(7, 6)  # one plane down twice is down once
    assert slower([_fault(link=f"plane:5/{p}") for p in range(7)], 0) is None
    assert slower([_fault("link_degraded", "die:5", factor=2.0)], 0) == 2
    assert slower([_fault("link_degraded", "plane:5/3", factor=2.0)], 0) == Fraction(14, 13)


def test_links_are_crossed_by_topology() -> None:
    def crossed(link: str, a: int, b: int, plane: int = 0) -> bool:
        return _fault(link=link).crossed(a, b, plane, _POD)

    assert crossed("die:5", 5, 40) and crossed("die:5", 40, 5) and not crossed("die:5", 5, 5)
    assert not crossed("die:5", 4, 40) and not crossed("die:5", 5, 40, plane=1)
    assert crossed("nic:5", 5, 40, plane=1) and not crossed("nic:5", 5, 40)
    assert crossed("node:1", 0, 16) and not crossed("node:1", 16, 20)  # inside goes on
    assert crossed("l1:1", 16, 20) and not crossed("l1:1", 16, 17) and not crossed("l1:1", 0, 40)
    assert crossed("l2:3", 0, 16) and not crossed("l2:3", 16, 20)


@pytest.mark.parametrize("kind", ["loss", "corruption"])
def test_loss_is_a_draw_of_its_rate_and_repeats(kind: str) -> None:
    fault = _fault(kind, rate=0.25)
    lost = [is_lost(fault, 0, 3, number, 0, 9) for number in range(4000)]
    assert 900 < sum(lost) < 1100
    assert lost == [is_lost(fault, 0, 3, number, 0, 9) for number in range(4000)]
    assert lost != [is_lost(fault, 0, 3, number, 1, 9) for number in range(4000)]
    number = lost.index(True)
    assert passage([fault], 0, ub_ladder(), 3, number, 9).start_ps >= 20 * _US


@pytest.mark.parametrize("kind", ["loss", "corruption"])
def test_loss_of_everything_is_over_when_the_fault_is(kind: str) -> None:
    """Fails where the kind is not drawn at all (`is_lost` that knows one of the two), or goes on for ever."""
    fault = _fault(kind, rate=1.0, duration_ps=10 * _US)
    assert is_lost(fault, 0, 3, 1, 0, 9) and not is_lost(fault, 10 * _US, 3, 1, 0, 9)
    assert passage([fault], 0, ub_ladder(), 3, 1, 9) == (20 * _US, 1, False, Fraction(1))
    assert passage([fault], 10 * _US, ub_ladder(), 3, 1, 9).start_ps == 10 * _US
    assert passage([_fault(kind, rate=1.0)], 0, ub_ladder(), 3, 1, 9).failed
