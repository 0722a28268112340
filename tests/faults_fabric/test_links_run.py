"""Windows, verbs and messages of real ranks over faulty links, with exact times."""

from collections.abc import Callable

import pytest

from emulator.faults import FaultPlan
from emulator.faults.links import ub_ladder
from emulator.testing import FaultyRun, fault_plan, faulty_pod  # noqa: F401

pytestmark = pytest.mark.multirank

_US = 1_000_000
_PROGRAM = """
import numpy as np
import emulator
from emulator.errors import LinkDownError
from emulator.engine.api import GE, ADD
from emulator.testing import report
device = emulator.init(heap_bytes=65536)
data = np.arange(64, dtype=np.uint8)
said = {}
if device.rank == 0:
    for name, begin in (("calm", 10), ("down", 1000), ("calm2", 2000), ("slow", 3000)):
        device.compute(begin * 1_000_000 - device.now_ps)
        start = device.now_ps
        device.put(1, 0, data if name != "slow" else np.zeros(8192, np.uint8), 1 << 20, 3, ADD, 1)
        device.put(1, 0, data, 64, 3, ADD, 1)
        device.quiet()
        said[name] = device.now_ps - start
    device.compute(4_000_000_000 - device.now_ps)
    said["got"] = int(device.get(1, 0, 4, 4)[1])
    said["got_at"] = device.now_ps
    device.compute(5_000_000_000 - device.now_ps)
    start = device.now_ps
    device.put(1, 0, data, 64)
    try:
        device.quiet()
    except LinkDownError as error:
        said["lost"] = [error.fields["given_up_ps"] - start, error.fields["peers"]]
else:
    device.wait([(3, GE, 8)])
    said["woken"] = device.now_ps
    device.compute(1)
report(**said)
"""


def test_puts_and_gets_wait_for_the_ladder_stay_in_order_and_are_given_up(
    fault_plan: Callable[..., FaultPlan],  # noqa: F811
    faulty_pod: Callable[..., FaultyRun],  # noqa: F811
) -> None:
    plan = fault_plan(
        {"kind": "link_down", "link": "die:1", "at_ps": 990 * _US, "duration_ps": 50 * _US},
        {
            "kind": "link_degraded",
            "link": "die:1",
            "at_ps": 2990 * _US,
            "factor": 3.0,
            "duration_ps": 50 * _US,
        },
        {"kind": "link_down", "link": "die:0", "at_ps": 3990 * _US, "duration_ps": 20 * _US},
        {"kind": "link_down", "link": "die:1", "at_ps": 4990 * _US},
        {"kind": "link_down", "link": "l2:2", "at_ps": 0},
    )
    runs = [faulty_pod(2, _PROGRAM, plan) for _ in range(2)]
    run = runs[0]
    assert run.code == 0, run.stderr
    assert run.reports == runs[1].reports and run.faults == runs[1].faults
    said = run.reports[0]
    assert said["down"] - said["calm"] == 180 * _US  # 20 us falls into the outage, 180 us does not
    assert said["calm2"] == said["calm"]  # undone
    assert said["slow"] > said["calm"] and said["got"] == 1 and 4020 * _US < said["got_at"] < 4030 * _US
    given_up, peers = said["lost"]
    assert given_up - sum(ub_ladder()) - ub_ladder()[-1] < _US and peers == [1]
    assert run.faults[0]["fired"] == 1 and run.faults[0]["undone_ps"] == 1040 * _US
