"""One program of every collective under real mpi4py and under `collectives.mpi`: the same lines come out,
only the import differs. Values are whole numbers, so that MPI's order of additions does not matter."""

import pytest
from ranks import ROOT, run_ranks

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(300)]
OURS, REAL = "from collectives import mpi as MPI", "from mpi4py import MPI"


def lines(n, program, **config):
    """What the ranks print, sorted: rank order on a pipe is the host's."""
    return sorted(run_ranks(n, program, **config).stdout.splitlines())


CALLS = """
import numpy as np
from collectives import mpi as MPI

comm = MPI.COMM_WORLD


def say(*words):
    print(comm.rank, *words, flush=True)


def numbers(count, kind="d", salt=0):
    return (np.arange(count) * 7 + me * 31 + salt * 5).astype(kind)


def every_call(comm, where):
    global me
    me, n = comm.Get_rank(), comm.Get_size()
    out = np.full(6, -1.0)
    root = n - 1
    x = numbers(6)
    comm.Bcast(x, root)
    say(where, "bcast", x.tolist())
    wide = np.zeros((4, 3), "i4") + me
    column = MPI.INT.Create_vector(4, 1, 3).Commit()
    comm.Bcast([wide, 1, column], 0)                             # one column only
    say(where, "column", wide.tolist())
    for name, op in (("sum", MPI.SUM), ("prod", MPI.PROD), ("max", MPI.MAX), ("min", MPI.MIN),
                     ("land", MPI.LAND), ("lor", MPI.LOR), ("band", MPI.BAND), ("bxor", MPI.BXOR)):
        kind = "i8" if name[0] in "lb" else "d"
        mine, total = numbers(5, kind) % 4, np.full(5, -1, kind)
        comm.Allreduce(mine, total, op)
        comm.Reduce(mine, total if me == root else None, op, root)
        comm.Scan(mine, total, op)
        say(where, name, total.tolist())
        comm.Exscan(mine, total, op)
        say(where, "exscan", name, total.tolist())
        comm.Allreduce(MPI.IN_PLACE, mine, op)
        say(where, "in place", name, mine.tolist())
    add = MPI.Op.Create(lambda a, b, t: np.add(np.frombuffer(a, "d"), 2 * np.frombuffer(b, "d"),
                                               out=np.frombuffer(b, "d")))
    if n < 3:                                                    # MPI may bracket longer chains as it likes
        comm.Allreduce(numbers(4), out[:4], add)
        say(where, "own op", out[:4].tolist())
    mine, all_ = numbers(3, "i4"), np.zeros(3 * n, "i4")
    comm.Gather(mine, all_ if me == root else None, root)
    say(where, "gather", all_.tolist())
    comm.Allgather([mine, MPI.INT], [all_, 3, MPI.INT])
    say(where, "allgather", all_.tolist())
    all_[3 * me:3 * me + 3] += 1000
    comm.Allgather(MPI.IN_PLACE, all_)
    say(where, "allgather in place", all_.tolist())
    comm.Scatter(all_ * 2 if me == root else None, mine, root)
    say(where, "scatter", mine.tolist())
    send, recv = numbers(2 * n, "i8"), np.zeros(2 * n, "i8")
    comm.Alltoall(send, recv)
    say(where, "alltoall", recv.tolist())
    comm.Alltoall(MPI.IN_PLACE, recv)
    say(where, "alltoall in place", recv.tolist())
    counts = [2 * q % 5 for q in range(n)]
    starts = [sum(counts[q + 1:]) + 1 for q in range(n)]         # from the back, a gap in front
    some = np.full(sum(counts) + 1, -1.0)
    comm.Gatherv(numbers(counts[me]), [some, counts, starts, MPI.DOUBLE] if me == root else None, root)
    say(where, "gatherv", some.tolist())
    comm.Allgatherv(numbers(counts[me]), [some, (counts, starts), MPI.DOUBLE])
    say(where, "allgatherv", some.tolist())
    mine = np.full(counts[me], -1.0)
    comm.Scatterv([some, (counts, starts), MPI.DOUBLE] if me == root else None, mine, root)
    say(where, "scatterv", mine.tolist())
    to = [(me + q) % 3 for q in range(n)]                        # symmetric: what I send to q, q sends to me
    send, recv = numbers(sum(to), "i4"), np.full(sum(to), -1, "i4")
    comm.Alltoallv([send, to], [recv, to])
    say(where, "alltoallv", recv.tolist())
    block = np.zeros(2)
    comm.Reduce_scatter_block(numbers(2 * n), block)
    say(where, "reduce_scatter_block", block.tolist())
    part = np.zeros(counts[me])
    comm.Reduce_scatter(numbers(sum(counts)), part, counts, MPI.MAX)
    say(where, "reduce_scatter", part.tolist())
    total, x, y = np.zeros(6), numbers(6), np.zeros(6 * n)
    going = [comm.Iallreduce(numbers(6), total), comm.Ibcast(x, 0), comm.Iallgather(numbers(6), y)]
    if n > 1:
        going.append(comm.Isend(numbers(1), (me + 1) % n, 5))
        going.append(comm.Irecv(out[:1], (me - 1) % n, 5))
    going.append(comm.Ibarrier())
    MPI.Request.Waitall(going)
    say(where, "later", total.tolist(), x.tolist(), y.sum(), out[0] if n > 1 else 0)
    say(where, "over", [bool(request) for request in going])
    comm.Barrier()
    things = comm.allgather({"rank": me}), comm.bcast((me, "x"), root), comm.gather(me * "a", 0)
    say(where, "objects", things, comm.scatter([q * q for q in range(n)] if me == 0 else None, 0))
    say(where, comm.alltoall([(me, q) for q in range(n)]), comm.allreduce(me + 1),
        comm.scan(me + 1, MPI.PROD), comm.reduce([me], MPI.SUM, root), comm.exscan(me, MPI.MAX))


every_call(comm, "world")
part = comm.Split(comm.rank % 2, -comm.rank)                     # reversed order
every_call(part, "part")
twin = comm.Dup()
grid = twin.Create_cart(MPI.Compute_dims(twin.size, 2), [True, False])
row = grid.Sub([False, True])
every_call(row, "row")
total = np.zeros(1)
grid.Allreduce(np.ones(1), total)
say("grid", total[0], MPI.COMM_SELF.allreduce(comm.rank))
part.Free()
"""


def test_every_call_prints_what_it_prints_under_mpi():
    """Fails if a block goes to the wrong rank, IN_PLACE is read too late, or a count is taken for all."""
    assert CALLS.count(OURS) == 1
    real = lines(4, CALLS.replace(OURS, REAL), launcher="plain")
    assert len(real) > 4 * 3 * 40
    assert lines(4, CALLS) == real
    assert lines(4, CALLS, transport="rma", engine="python") == real


def test_an_example_prints_what_it_prints_under_mpi():
    program = (ROOT / "examples" / "mpi_average.py").read_text()
    assert program.count(OURS) == 1
    real = lines(4, program.replace(OURS, REAL), launcher="plain")
    assert real and lines(4, program) == real


REFUSALS = """
import numpy as np
from collectives import mpi as MPI
comm = MPI.COMM_WORLD

def refused(call, *words):
    try:
        call()
    except Exception as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError(f"nothing was refused: {words}")

four, out = np.zeros(4), np.zeros(12)
refused(lambda: comm.Bcast(four, 9), "rank 9", "0 to 2")
refused(lambda: comm.Allgather(four, np.zeros(5)), "5", "blocks 3")
refused(lambda: comm.Allgatherv(four, [out, [4, 4]]), "counts must be 3 whole numbers")
refused(lambda: comm.Allgatherv(four, [out, [4, 4, 5]]), "rank 2", "byte 104 of 96")
refused(lambda: comm.Allreduce([four, MPI.DOUBLE.Create_contiguous(2).Commit()], out), "no operations")
refused(lambda: comm.Allreduce(four, np.zeros(4), MPI.BAND), "band", "float64")
refused(lambda: comm.allreduce(1, MPI.Op.Create(lambda a, b, t: None)), "buffers")
assert comm.rank < 3
if comm.rank < 2:
    refused(lambda: comm.Allreduce(four, np.zeros(4)), "disagree")
else:
    refused(lambda: comm.Allreduce(four, np.zeros(4), MPI.MAX), "disagree")
report(done=True)
"""


def test_what_cannot_be_is_refused():
    """One clear line, nobody hangs."""
    ran = run_ranks(3, REFUSALS, check=False)
    assert [ran.reports.get(rank) for rank in range(3)] == [{"done": True}] * 3, ran.stderr
