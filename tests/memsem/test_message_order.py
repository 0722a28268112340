"""Order: messages of a sender are matched as they were sent, whatever their size, plane and delivery."""

import pytest
from ranks import run_ranks

from memsem.checker import find_races
from memsem.checkfile import read_check_files

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(300)]
ADVERSARY = {"delivery": "adversarial"}

LARGE_THEN_SMALL = """
import numpy as np
from memsem import mpi as MPI
comm = MPI.COMM_WORLD
me = comm.Get_rank()
got = []
for turn in range(20):
    if me == 0:
        data = [np.full(size, i, np.uint8) for i, size in enumerate([1 << 20, 8, 8192, 0, 70000])]
        MPI.Request.Waitall([comm.Isend(part, 1, 5) for part in data])
    elif me == 1:
        for _ in range(5):
            status = MPI.Status()
            into = np.empty(1 << 20, np.uint8)
            comm.Recv(into, MPI.ANY_SOURCE if turn % 2 else 0, MPI.ANY_TAG, status)
            got.append([status.Get_count(), int(into[0])])
report(got=got)
"""


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"mpi_over": "rdma"},
        *({**ADVERSARY, "seed": seed} for seed in range(3)),
        {**ADVERSARY, "engine": "python"},
    ],
)
def test_a_smaller_message_does_not_overtake(config):
    """1 MB, then 8 bytes, of one tag: the first receive gets the 1 MB."""
    got = run_ranks(2, LARGE_THEN_SMALL, **config).reports[1]["got"]
    sizes = [[n, i] for i, n in enumerate([1 << 20, 8, 8192, 0, 70000])]
    assert [row[0] for row in got] == [n for n, _ in sizes] * 20
    assert [row[1] for row in got if row[0]] == [i for n, i in sizes if n] * 20


NO_ORDER = """
from emulator.engine import posts
import memsem.endpoint
memsem.endpoint.ORD_TRACK = memsem.endpoint.ORD_STRONG = 0
"""


def test_without_their_order_envelopes_overtake():
    """Mutation: envelopes as puts without order flags; the adversary then swaps messages."""
    swapped = []
    for seed in range(3):
        got = run_ranks(2, NO_ORDER + LARGE_THEN_SMALL, seed=seed, check=False, **ADVERSARY).reports.get(1)
        swapped.append(got is None or [row[0] for row in got["got"]] != [1 << 20, 8, 8192, 0, 70000] * 20)
    assert any(swapped)


RANDOM = """
import numpy as np
from memsem import mpi as MPI
comm = MPI.COMM_WORLD
me, n = comm.Get_rank(), comm.Get_size()
twin = comm.Dup()
SEED = 0
everybody = [np.random.default_rng([SEED, r]) for r in range(n)]
plan = []                                                # by sender: (communicator, dest, tag, doubles)
for rng in everybody:
    plan.append([(int(rng.integers(2)), int(rng.integers(n)), int(rng.integers(2)),
                  int(rng.choice([0, 1, 3, 1024, 1025, 9000]))) for _ in range(40)])
mine = [[], []]                                          # by communicator: what is sent to me
for source in range(n):
    for k, (which, dest, tag, size) in enumerate(plan[source]):
        if dest == me:
            mine[which].append((source, tag, size, k))
leaves, arrives = [], []
rng = np.random.default_rng([SEED, 99, me])
turns = [("send", comm)] * len(plan[me])
for which, where in enumerate((comm, twin)):
    turns += [("receive", where)] * len(mine[which])
turns = [turns[i] for i in rng.permutation(len(turns))]
sends = iter(enumerate(plan[me]))
for what, thing in turns:
    if what == "send":
        k, (c, dest, tag, size) = next(sends)
        data = np.full(size, me * 1000 + k, np.float64)
        leaves.append(getattr((comm, twin)[c], "Isend" if k % 3 < 2 else "Issend")(data, dest, tag))
    else:
        into = np.full(9000, -1.0)
        arrives.append((thing, into, thing.Irecv(into)))
    if rng.random() < 0.2:
        comm.endpoint.device.sleep_ps(int(rng.integers(3_000_000)))
statuses = []
MPI.Request.Waitall([r for _, _, r in arrives], statuses)
MPI.Request.Waitall(leaves)
seen = {}
for (where, into, _), status in zip(arrives, statuses, strict=True):
    size, source = status.Get_count(MPI.DOUBLE), status.Get_source()
    which = 1 if where is twin else 0
    k = int(into[0]) - 1000 * source if size else None
    if size:
        assert plan[source][k] == (which, me, status.Get_tag(), size) and (into[:size] == into[0]).all()
    assert (into[size:] == -1).all()
    seen.setdefault((which, source), []).append((k, size, status.Get_tag()))
for which, wanted in enumerate(mine):                    # wildcards keep each sender's order
    for source in range(n):
        sent = [(k if size else None, size, tag) for s, tag, size, k in wanted if s == source]
        assert seen.get((which, source), []) == sent, (which, source)
assert not comm.Iprobe() and not twin.Iprobe()
report(now=comm.endpoint.device.now_ps)
"""


@pytest.mark.parametrize("seed", range(6))
def test_random_messages_are_matched_in_each_senders_order(seed):
    """Four ranks, two communicators, eager and rendezvous, all receives by wildcard; the seed is in the name.

    Both engines and both transports give the same run; so does the host under jitter.
    """
    text = RANDOM.replace("SEED = 0", f"SEED = {seed}")
    runs = [run_ranks(4, text), run_ranks(4, text, engine="python", env={"SUPERPOD_JITTER": "0.05,300,5"})]
    if seed % 3 == 0:
        runs.append(run_ranks(4, text, transport="rma", staging_bytes=65536))
    assert len({run.sha for run in runs}) == 1
    run_ranks(4, text, seed=seed, **ADVERSARY)


RACE = """
import numpy as np
from memsem import Window, mpi as MPI
comm = MPI.COMM_WORLD
window = Window.create(1024, np.uint8)
comm.Barrier()
if comm.Get_rank() == 0:
    window.put_nbi(1, np.ones(1024, np.uint8))
    window.COMPLETE()
    comm.send("written", 1)
else:
    comm.recv()
    window.load()
"""


@pytest.mark.parametrize(("complete", "races"), [("quiet", 0), ("fence", 1)])
def test_a_message_orders_what_was_complete_before_it(tmp_path, complete, races):
    """For the race checker: put, quiet, message, read is in order; without `quiet` it races (mpich #7697)."""
    run_ranks(2, RACE.replace("COMPLETE", complete), trace=str(tmp_path), check_races=True)
    assert len(find_races(read_check_files(tmp_path))) == races
