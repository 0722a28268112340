"""Faults of a NIC on real ranks, and a program that gets over each: one launch for all of them.

Rank 0 sends to rank 1 over a reliable connection, rank 2 to rank 3 over a jetty; rank 4 probes links.
"""

from collections.abc import Callable

import pytest

from emulator.faults import FaultPlan
from emulator.probing import Echo, Verdict, judge
from emulator.testing import FaultyRun, fault_plan, faulty_pod  # noqa: F401

_US = 1_000_000
_PROGRAM = """
import numpy as np
import emulator
from emulator.engine.api import ADD
from emulator.probing import LinkProbe
from emulator.testing import report
from memsem import verbs as v
from memsem.verbs.keys import QPNumber
device = emulator.init(heap_bytes=1 << 22)
US, me = 1_000_000, device.rank
said = {}
context = v.Context(device, max_qp=2, max_mr=2, memory_bytes=1 << 16)
pd = v.PD(context)
memory = v.MR(pd, 4096, v.IBV_ACCESS_LOCAL_WRITE)
scq, rcq = v.CQ(context, 64), v.CQ(context, 64)
qp = v.QP(pd, v.QPInitAttr(v.IBV_QPT_RC, scq=scq, rcq=rcq, cap=v.QPCap(16, 16)))

def connect():
    attr = v.QPAttr(dest_qp_num=QPNumber(0, -1, 0).encode(), ah_attr=v.AHAttr(dlid=(me ^ 1) + 1))
    attr.timeout, attr.retry_cnt, attr.min_rnr_timer, attr.rnr_retry = 4, 7, 12, 7
    if qp.state != v.IBV_QPS_RESET:
        qp.modify(v.QPAttr(qp_state=v.IBV_QPS_RESET), v.IBV_QP_STATE)
    qp.to_rts(attr)

def send(number):
    sg = [v.SGE(memory.buf, 64, memory.lkey)]
    qp.post_send(v.SendWR(number, num_sge=1, sg=sg))

def until(us):
    device.compute(max(0, us * US - device.now_ps))

def take(cq, patience_us=400):
    end = device.now_ps + patience_us * US
    context.observe()
    while not len(cq):
        if not device.wait_inbox(device.inbox_seen, max(1, end - device.now_ps)):
            return None
        context.do_chores()
    wc = cq.poll(1)[1][0]
    return [wc.wr_id, v.ibv_wc_status(wc.status).name, device.now_ps]

def provide(number):
    qp.post_recv(v.RecvWR(number, num_sge=1, sg=[v.SGE(memory.buf, 4096, memory.lkey)]))

if me < 4:
    connect()
device.barrier()
if me == 0:
    until(1000); send(1); said["calm"] = take(scq)[2] - 1000 * US
    until(2000); send(2); said["lost"] = take(scq); send(3); said["after"] = take(scq)[:2]
    until(3000); send(4); said["twice"] = [take(scq)[:2], take(scq)[:2]]
    until(4000); send(5); said["late"] = take(scq)
    until(5000)
    device.observe()
    said["broken"] = [v.ibv_qp_state(qp.state).name, context.get_async_event().event_type.name]
    send(6); said["flushed"] = take(scq)[:2]
    connect(); send(6); said["again"] = take(scq)[:2]
    until(7000); said["nic"] = []
    for number in range(7, 10):
        send(number); said["nic"].append([*take(scq)[:2], device.now_ps])
    until(9000)
    for number in range(10, 14):
        send(number)
    said["ring"] = [take(scq, 9000) for _ in range(4)]
elif me == 1:
    for number in range(2):
        provide(number)
    said["got"] = []
    while len(said["got"]) < 13:
        wc = take(rcq, 20000)
        said["got"].append(wc[0])
        provide(wc[0] + 2)
elif me == 4:
    probe = LinkProbe(device)
    until(1000)
    said["probes"] = [probe.probe(peer, 500 * US).value for peer in (1, 2, 3)]
    until(9000)
    said["later"] = [probe.probe(peer, 500 * US).value for peer in (1, 2, 3)]
elif me == 3:
    until(2000)
elif me in (5, 6):
    until(990)
    for _ in range(6):
        device.put(2, 0, np.zeros(64, np.uint8), 24 << 20)
    device.quiet()
device.quiet()
context.check()
said["tally"] = [context.tally.completions, context.tally.lost]
report(**said)
"""


def test_what_probes_mean() -> None:
    """Found by it: a saturated receiver taken for a dead link, a flapping link for either."""
    assert judge([Echo(90, 80), Echo(110, 100)], 100) == Verdict.CLEAR
    assert judge([Echo(90, 80), Echo(500, 90)], 100) == Verdict.SATURATED
    assert judge([Echo(None, 90), Echo(None, 90)], 100) == Verdict.SATURATED
    assert judge([Echo(None, None), Echo(90, 90)], 100) == Verdict.UNSTEADY
    assert judge([Echo(None, None), Echo(None, None)], 100) == Verdict.DOWN


@pytest.mark.multirank
def test_a_program_gets_over_every_fault_of_its_nic(
    fault_plan: Callable[..., FaultPlan],  # noqa: F811
    faulty_pod: Callable[..., FaultyRun],  # noqa: F811
) -> None:
    """Found by it: a completion dropped for good, one delivered early, a receive lost with the full ring."""
    plan = fault_plan(
        {"kind": "completion_lost", "rank": 0, "at_ps": 1990 * _US},
        {"kind": "completion_duplicated", "rank": 0, "at_ps": 2990 * _US},
        {"kind": "completion_late", "rank": 0, "at_ps": 3990 * _US, "delay_ps": 200 * _US},
        {"kind": "qp_error", "rank": 0, "at_ps": 4990 * _US},
        {"kind": "nic_down", "rank": 0, "at_ps": 6990 * _US, "duration_ps": 100 * _US},
        {"kind": "full_ring", "rank": 1, "at_ps": 8990 * _US, "duration_ps": 5000 * _US},
        {"kind": "link_down", "link": "die:3", "at_ps": 900 * _US, "duration_ps": 1000 * _US},
        {"kind": "qp_error", "rank": 6, "at_ps": 0},
    )
    first, again = (faulty_pod(7, _PROGRAM, plan) for _ in range(2))
    assert first.code == 0, first.stderr
    assert first.reports == again.reports and first.faults == again.faults
    said, ok = first.reports[0], "IBV_WC_SUCCESS"
    assert said["lost"] is None and said["after"] == [3, ok]
    assert said["twice"] == [[4, ok], [4, ok]]
    wr_id, status, at_ps = said["late"]
    assert (wr_id, status) == (5, ok) and 200 * _US <= at_ps - 4000 * _US - said["calm"] < 210 * _US
    assert said["broken"] == ["IBV_QPS_ERR", "IBV_EVENT_QP_FATAL"]
    assert said["flushed"] == [6, "IBV_WC_WR_FLUSH_ERR"] and said["again"] == [6, ok]
    assert [entry[:2] for entry in said["nic"]] == [[7, ok], [8, ok], [9, ok]]
    assert said["nic"][0][2] - 7000 * _US > 90 * _US  # the NIC sent it again
    assert [entry[0] for entry in said["ring"]] == [10, 11, 12, 13]
    assert said["ring"][1][2] < 9100 * _US and said["ring"][2][2] > 13900 * _US
    assert first.reports[4]["probes"] == ["clear", "saturated", "down"]
    assert first.reports[4]["later"] == ["clear", "clear", "clear"]
    assert first.reports[1]["got"] == list(range(13)) and said["tally"][1] == 1
    assert [row["fired"] for row in first.faults] == [1, 1, 1, 1, 1, 1, 1, 0]
    over = [row.get("undone_ps") for row in first.faults]
    assert over[0] is None and all(over[1:6])
