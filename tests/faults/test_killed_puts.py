"""A rank killed inside a put, before and after its signal; a flapping link; all but one rank frozen."""

from collections.abc import Callable

import pytest

from emulator.faults import FaultPlan
from emulator.testing import FaultyRun, fault_plan, faulty_pod  # noqa: F401

pytestmark = pytest.mark.multirank

_US = 1_000_000
_PROGRAM = """
import numpy as np
import emulator
from emulator.errors import RankLostError, LinkDownError
from emulator.testing import report
from memsem import Window
device = emulator.init()
window = Window.create(256, np.uint8, signals=4)
device.barrier()
said = {}
if device.rank == 0:
    for victim in (1, 2):
        try:
            window.signal_wait_until(victim, "ge", 1, timeout_ps=500_000_000)
        except RankLostError:
            pass
        device.observe()
        said[str(victim)] = [int(window.local[64 * victim]), device.read(window._word(victim))]
elif device.rank in (1, 2):
    device.compute(100_000_000 - device.now_ps)
    window.put(0, np.full(64, 7, np.uint8), 64 * device.rank)
    device.compute(5_000_000)
    window.put_signal(0, np.full(64, 9, np.uint8), 64 * device.rank, device.rank, 1)
    device.compute(5_000_000)
    window.quiet()
elif device.rank == 3:
    device.compute(1000 * 1_000_000 - device.now_ps)
    said["flaps"] = []
    for _ in range(6):
        start = device.now_ps
        try:
            window.put(4, np.full(8, 1, np.uint8), 0)
            window.quiet()
            said["flaps"].append(device.now_ps - start)
        except LinkDownError as error:
            said["flaps"].append(-(error.fields["given_up_ps"] - start))
            break
        device.compute(7_000_000)
elif device.rank == 4:
    device.compute(2000 * 1_000_000 - device.now_ps)
    device.compute(1)
report(**said)
"""


def test_a_put_is_there_with_its_signal_or_not_at_all_and_flaps_are_met_by_phase(
    fault_plan: Callable[..., FaultPlan],  # noqa: F811
    faulty_pod: Callable[..., FaultyRun],  # noqa: F811
) -> None:
    """Found by it: a signal that overtakes its data, a put taken back with its rank."""
    plan = fault_plan(
        {"kind": "kill", "rank": 1, "at_ps": 103 * _US},
        {"kind": "kill", "rank": 2, "at_ps": 108 * _US},
        {
            "kind": "link_flap",
            "link": "die:4",
            "at_ps": 900 * _US,
            "period_ps": 15 * _US,
            "duration_ps": 400 * _US,
        },
    )
    run = faulty_pod(5, _PROGRAM, plan)
    assert run.code == 0, run.stderr
    assert run.reports[0] == {"1": [7, 0], "2": [9, 1]}
    flaps = run.reports[3]["flaps"]
    assert len(flaps) == 6 and any(20 * _US <= took < 30 * _US for took in flaps), flaps
    assert any(took < 10 * _US for took in flaps), flaps
    assert [row["fired"] for row in run.faults] == [1, 1, 1]
