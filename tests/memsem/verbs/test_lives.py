"""Long lives and sudden ends: a thousand connections of one slot, a peer that dies."""

import pytest
from ranks import run_ranks
from verbs_runs import HERE

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(400)]
ENV = {"PYTHONPATH": f"{HERE / 'programs'}"}
MANY = """
import emulator
emulator.init()
import rig, bad
rig.run_cases({"many": bad.many_connections}, report, max_qp=2)
"""


@pytest.mark.slow
def test_a_thousand_connections():
    """spdk/spdk #622. Numbers come again after 256 lives, states never get stuck."""
    ran = run_ranks(2, MANY, env={**ENV, "ROUNDS": "1000"}, timeout_s=300)
    for rank in (0, 1):
        assert ran.reports[rank]["cases"]["many"]["seen"] == {"wrong": 0, "numbers": 256}


DEAD = """
import os, signal, time
import emulator
device = emulator.init()
from rig import *
rig = Rig()
s = rig.pair(attrs={"timeout": 2, "retry_cnt": 1})
if rig.side == 1:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(1)                                    # the launcher's part: notice it and say so
device.mark_dead(1)
for opcode in (IBV_WR_RDMA_WRITE, IBV_WR_SEND, IBV_WR_RDMA_READ):
    s.send(opcode, wr_id=int(opcode))
seen = names(s.scq.wait(3))
s.send(IBV_WR_RDMA_WRITE, wr_id=9, lkey=0)
seen += names(s.scq.wait())
s.qp.close()
rig.ctx.check()
report(seen=seen)
os._exit(0)
"""


def test_a_peer_that_died():
    """openucx/ucx PR 11629: what is posted to a dead peer ends with an error completion, not with a crash."""
    ran = run_ranks(2, DEAD, env=ENV, keep_going=True, check=False)
    assert ran.reports[0]["seen"] == ["RETRY_EXC_ERR", "WR_FLUSH_ERR", "WR_FLUSH_ERR", "WR_FLUSH_ERR"]
