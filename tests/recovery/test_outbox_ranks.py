"""The outbox on two ranks: tokens whose completion is lost are asked after and taken once."""

from collections.abc import Callable

import pytest

from emulator.faults import FaultPlan
from emulator.testing import FaultyRun, fault_plan, faulty_pod  # noqa: F401

pytestmark = pytest.mark.multirank

_MS = 1_000_000_000
_PROGRAM = """
import emulator
from emulator.testing import report
from serving.recovery.outbox import Outbox
device = emulator.init(heap_bytes=1 << 20)
MS, settled_ps = 1_000_000_000, 0
outbox = Outbox(device, ask_again_ps=20 * MS)
for step in range(60):
    device.barrier()
    if device.rank == 1 and step in (2, 20):  # nothing follows that could acknowledge the first for it
        outbox.post(request=7, position=step, token=100 + step)
    outbox.look()
    if step < 20 and device.rank == 1 and not outbox.unsettled and outbox.facts.sent and not settled_ps:
        settled_ps = device.now_ps
    device.sleep_ps(2 * MS)
report(unsettled=outbox.unsettled, settled_ps=settled_ps, **outbox.as_dict())
"""


def test_a_token_whose_completion_is_lost_is_asked_after(
    fault_plan: Callable[..., FaultPlan],  # noqa: F811
    faulty_pod: Callable[..., FaultyRun],  # noqa: F811
) -> None:
    """Found by it: a token that is not acknowledged never sent again (`late` of `Outbox.look` always empty);
    in a serving run a later token's completion mostly stands for the lost one."""
    plan = fault_plan({"kind": "completion_lost", "rank": 1, "at_ps": _MS})
    ran = faulty_pod(2, _PROGRAM, plan)
    assert ran.code == 0, ran.stderr
    assert ran.faults[0]["fired"] == 1
    front, sender = ran.reports[0], ran.reports[1]
    assert 24 * _MS < sender["settled_ps"] < 40 * _MS  # posted at 4 ms, asked again after 20
    assert (sender["posted"], sender["sent"], sender["acknowledged"], sender["unsettled"]) == (2, 3, 2, 0)
    assert (front["received"], front["received_again"], front["ring_lost"]) == (2, 1, 0)
