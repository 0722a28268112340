"""After `finalize` the memory of a run is unmapped: every call says so, where it used to be a crash."""

import pytest
from ranks import run_ranks

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(240)]

PROGRAM = """
import numpy as np, emulator
from emulator.errors import UsageError
from memsem import Window, mpi as MPI
from memsem.verbs import *
device = emulator.init()
window, comm, context = Window.create(8, np.int64, signals=2), MPI.COMM_WORLD, Context()
pd, cq = PD(context), CQ(context, 8)
mr, qp = MR(pd, 64, 7), QP(pd, QPInitAttr(qp_type=IBV_QPT_RC, scq=cq, rcq=cq), QPAttr())
pending, request = window.put_nbi(0, np.zeros(2, np.int64)), comm.Irecv(np.zeros(2), 0, 3)
before = device.now_ps
emulator.finalize()
calls = dict(
    put=lambda: window.put(0, np.zeros(1, np.int64)), get=lambda: window.get(0), local=lambda: window.local,
    load=window.load, store=lambda: window.store(0, 1), read=lambda: window.signal_read(0),
    test=lambda: window.test(0, "ge", 0), wait=lambda: window.signal_wait_until(0, "ge", 0),
    quiet=window.quiet, fence=window.fence, pending=pending.wait,
    add=lambda: window.fetch_add(0, 0, 1), free=window.free,
    create=lambda: Window.create(8), batch=lambda: window.put_batch(0, np.zeros(2, np.int64), [0, 1]),
    send=lambda: comm.Send(np.zeros(1), 0), request=request.Wait, probe=comm.Iprobe, poll=lambda: cq.poll(1),
    post=lambda: qp.post_recv(RecvWR(1)), region=lambda: mr.read(4), close=qp.close, context=context.close,
    barrier=device.barrier, compute=lambda: device.compute(1), again=emulator.init,
)
answers = {}
for name, call in calls.items():
    try:
        answers[name] = repr(call())
    except UsageError as error:
        answers[name] = type(error).__name__
assert device.now_ps >= before and emulator.finalize() is None
assert set(answers.values()) == {"StateError", "UsageError"}, answers
import json, os
print(json.dumps(answers))
"""


@pytest.mark.parametrize("transport", ["shared", "rma"])
def test_what_is_called_after_the_end_is_refused(transport):
    ran = run_ranks(2, PROGRAM, transport=transport)
    assert ran.code == 0 and ran.stdout.count("StateError") >= 40
