"""Progress: nobody needs a sleeping, ended or dead peer to go on, and what can never end is an error."""

import pytest
from ranks import run_ranks

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(300)]

BOTH_WAYS = """
import time
import numpy as np
from memsem import mpi as MPI
comm = MPI.COMM_WORLD
me = comm.Get_rank()
data, into = np.full(2 << 20, me, np.float64), np.empty(2 << 20)         # 16 MiB
comm.Barrier()
started = time.monotonic()
comm.Sendrecv(data, 1 - me, 0, into, 1 - me, 0)
took = time.monotonic() - started
assert (into == 1 - me).all()
report(took=took)
if me == 0:
    time.sleep(2)                                                        # on the host: no progress from me
"""


@pytest.mark.parametrize("transport", ["shared", "rma"])
def test_16_mb_both_ways_without_single_copy_and_with_a_sleeping_peer(transport):
    ran = run_ranks(
        2, BOTH_WAYS, transport=transport, env={"OMPI_MCA_smsc": "^cma,xpmem,knem"}, launcher="plain"
    )
    assert ran.reports[1]["took"] < 1


ASLEEP = """
import time
import numpy as np
from memsem import mpi as MPI
comm = MPI.COMM_WORLD
me = comm.Get_rank()
into = np.empty(1 << 17)                                                 # 1 MiB
comm.Barrier()
if me == 0:
    requests = [comm.Irecv(into, 1, 1), comm.Isend(into, 1, 2)]
    comm.Send(np.ones(4), 1, 3)
    comm.endpoint.device.compute(10**12)        # one virtual second of work, published before it is done
    time.sleep(3)
    MPI.Request.Waitall(requests)
else:
    started = time.monotonic()
    comm.Recv(np.empty(4), 0, 3)
    comm.Recv(np.empty(1 << 17), 0, 2)
    comm.Ssend(into, 0, 1)
    report(took=time.monotonic() - started)
"""


UNPUBLISHED = """
import emulator
published = emulator.Device.compute
emulator.Device.compute = lambda self, ps=None, **how: published(self, ps, publish=False)
"""


def test_posted_messages_go_on_while_their_process_sleeps():
    """A 1 MB receive and send of a rank that is busy on the host for three seconds.

    Mutation: posts that stay in their process after the call wait for the sleeper's next one.
    """
    assert run_ranks(2, ASLEEP).reports[1]["took"] < 2
    assert run_ranks(2, UNPUBLISHED + ASLEEP).reports[1]["took"] > 2.5


ENDS = """
import numpy as np, emulator
from emulator.errors import DeadlockError
from memsem import mpi as MPI
comm = MPI.COMM_WORLD
me = comm.Get_rank()
said = []
if me == 0:
    comm.send("last words", 1, 1)
    comm.Isend(np.ones(5000), 1, 2)                                      # its sender leaves it behind
    emulator.finalize()
else:
    said.append(comm.recv(source=0, tag=1))
    into = np.zeros(5000)
    comm.Recv(into, 0, 2)
    said.append(into.sum())
    comm.Send(np.ones(3), 0)                                             # nobody takes it, nobody waits
    try:
        CALL
    except DeadlockError as error:
        said.append(str(error).split("; ")[-1])
    report(said=said)
"""


@pytest.mark.parametrize(
    ("call", "name", "engine"),
    [
        ("comm.Recv(into, 0, 9)", "Recv(source=0, tag=9)", "python"),
        ("comm.Recv(into, 0, 9)", "Recv(source=0, tag=9)", "c"),
        ("comm.Probe(0)", "Probe(source=0, tag=any)", "c"),
        ("comm.Ssend(into, 0, 9)", "Ssend(dest=0, tag=9)", "c"),
        ("comm.irecv(source=0).wait()", "irecv(source=0, tag=any)", "c"),
        ("comm.Barrier()", "an agreement of 2 ranks", "c"),
    ],
)
def test_nothing_hangs_on_a_rank_that_has_ended(call, name, engine):
    """What it sent before its end is received; what can never be is a report that names the call."""
    said = run_ranks(2, ENDS.replace("CALL", call), engine=engine).reports[1]["said"]
    assert said == ["last words", 5000.0, f"rank 1 is in {name}"]


DEAD = """
import os, signal, time
import numpy as np
from emulator.errors import RankLostError
from memsem import mpi as MPI
comm = MPI.COMM_WORLD
me, device = comm.Get_rank(), comm.endpoint.device
if me == 1:
    comm.send("here", 0)
    device.quiet()
    os.kill(os.getpid(), signal.SIGKILL)
elif me == 0:
    assert comm.recv(source=1) == "here"
    time.sleep(1)
    device.mark_dead(1)
    said = []
    for call in (lambda: comm.Send(np.ones(1), 1), lambda: comm.Recv(np.ones(1), 1)):
        try:
            call()
        except RankLostError as error:
            said.append(list(error.ranks))
    report(said=said)
"""


def test_a_dead_rank_is_an_error_at_the_send_and_at_the_wait():
    assert run_ranks(2, DEAD, keep_going=True, check=False).reports[0]["said"] == [[1], [1]]


GROUPS = """
import numpy as np
from memsem import mpi as MPI
comm = MPI.COMM_WORLD
me, n = comm.Get_rank(), comm.Get_size()
half = comm.Split(me % 2, -me)                                           # two at once, ranks reversed
members = list(range(me % 2, n, 2))[::-1]
assert half.members == tuple(members) and half.Get_rank() == members.index(me)
right, left = (half.rank + 1) % half.size, (half.rank - 1) % half.size
status = MPI.Status()
assert half.sendrecv(me, right, 0, None, left, 0, status) == members[left] and status.Get_source() == left
both = half.Dup()
assert both.ident != half.ident != comm.ident and both.Compare(half) == MPI.CONGRUENT
comm.Barrier()
late = comm.endpoint.device.now_ps
if me == n - 1:
    comm.endpoint.device.sleep_ps(10**9)
comm.Barrier()
assert n == 1 or comm.endpoint.device.now_ps >= late + 10**9 - 10**7     # the last has come
third = comm.Split(MPI.UNDEFINED if me == 0 else 1)
assert bool(third) == (me != 0)
report(ok=True)
"""


@pytest.mark.parametrize("n", [1, 2, 5])
def test_split_dup_and_barrier(n):
    assert len(run_ranks(n, GROUPS).reports) == n


FLOOD = """
import numpy as np
from memsem import mpi as MPI
comm = MPI.COMM_WORLD
if comm.Get_rank() == 0:
    for i in range(600):
        comm.Send(np.full(1, i), 1)
else:
    comm.endpoint.device.sleep_ps(10**10)                                # all of them come meanwhile
    into = np.zeros(1, int)
    for i in range(600):
        comm.Recv(into, 0)
        assert into[0] == i
report(ok=True)
"""


def test_more_messages_than_a_rank_may_leave_untaken_end_the_run_by_name():
    assert len(run_ranks(2, FLOOD, inbox_entries=1024).reports) == 2
    ran = run_ranks(2, FLOOD, inbox_entries=256, check=False)
    assert ran.code and "the inbox of rank 1 is full (raise inbox_entries" in ran.stderr
