"""Groups of ranks and communicators made of them: the same lines under real mpi4py but for the import."""

import pytest
from test_message_same import lines, real_lines

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(200)]

GROUPS = """
import numpy as np
from memsem import mpi as MPI

comm = MPI.COMM_WORLD
me, n = comm.Get_rank(), comm.Get_size()


def say(*words):
    print(me, *words, flush=True)


def refused(call, *args):
    try:
        call(*args)
    except MPI.Exception as error:
        say("refused", error.Get_error_class() in (MPI.ERR_RANK, MPI.ERR_ARG, MPI.ERR_GROUP))
    else:
        say("not refused", call.__name__, args)


world = comm.Get_group()
say(world.Get_size(), world.Get_rank(), world.size, world.rank == me, bool(world), bool(MPI.GROUP_NULL))
back, even = world.Incl([3, 0, 2]), world.Range_incl([(0, n - 1, 2)])
say("incl", back.rank == MPI.UNDEFINED, back.size, back.Translate_ranks([0, 1, 2], world))
say("ranges", world.Range_incl([(3, 0, -2), (0, 0, 1)]).Translate_ranks(None, world), even.size)
say("excl", world.Excl([1, 3]).Translate_ranks(None, world), world.Range_excl([(1, 2, 1)]).size)
for name in ("Union", "Intersection", "Difference"):
    made = getattr(MPI.Group, name)(back, even)
    say(name, made.Translate_ranks(None, world), made.Get_rank() == MPI.UNDEFINED)
say("unknown", [r == MPI.UNDEFINED for r in world.Translate_ranks([0, 1, 2, 3], back)])
say("null", world.Translate_ranks([MPI.PROC_NULL, 1], world)[0] == MPI.PROC_NULL)
say("compare", world.Compare(world.Dup()) == MPI.IDENT, back.Compare(world.Incl([0, 2, 3])) == MPI.SIMILAR,
    back.Compare(even) == MPI.UNEQUAL, MPI.GROUP_EMPTY.Get_size(), world.Incl([]).size)
for ranks in ([4], [-1]):                     # Open MPI lets one rank twice pass, which MPI calls erroneous
    refused(world.Incl, ranks)
    refused(world.Excl, ranks)
refused(world.Range_incl, [(0, 3, 0)])
freed = world.Dup()
freed.Free()
say("freed", bool(freed))
refused(freed.Get_size)

part = comm.Create(back)                      # all call it; who is not in it gets the null communicator
say("create", bool(part), part == MPI.COMM_NULL)
halves = comm.Create(world.Incl([0, 1] if me < 2 else [3, 2]))
for made in (part, halves):
    if made:
        right, left, into = (made.rank + 1) % made.size, (made.rank - 1) % made.size, np.zeros(1, np.int64)
        made.Sendrecv(np.array([me]), right, 0, into, left, 0)
        say("from", into[0], made.rank, made.Get_group().Translate_ranks([made.rank], world) == [me])
        made.Barrier()
comm.Barrier()
if me != 1:                                   # its members alone; 1 is on its way to the barrier
    trio = comm.Create_group(back, 5)
    say("trio", trio.rank, trio.size, trio.Compare(part) == MPI.CONGRUENT)
    pair = trio.Create_group(trio.Get_group().Incl([1, 0])) if trio.rank < 2 else MPI.COMM_NULL
    if pair:
        say("pair", pair.sendrecv(("hello", me), 1 - pair.rank))
        pair.Free()
comm.Barrier()
again = comm.Dup()
say("again", again.sendrecv(me, (me + 1) % n, source=(me - 1) % n))
"""


@pytest.mark.parametrize("face", ["memsem", pytest.param("collectives", marks=pytest.mark.sweep)])
def test_groups_answer_as_mpi4pys(face):
    """Shown to fail where `Create_group` agrees with all of its parent's ranks (1 waits in the barrier)."""
    real = real_lines(4, GROUPS)
    ours = lines(4, GROUPS.replace("from memsem", f"from {face}"))
    assert len(real) > 80 and ours == real


def test_a_communicator_of_strangers_is_refused():
    program = """
    from memsem import mpi as MPI
    comm = MPI.COMM_WORLD
    pair = comm.Create_group(comm.Get_group().Incl([0, 1]))
    for call in (MPI.COMM_SELF.Create, MPI.COMM_SELF.Create_group):
        for group in (pair.Get_group(), MPI.GROUP_NULL, None):
            try:
                call(group)
            except MPI.Exception as error:
                assert error.Get_error_class() == MPI.ERR_GROUP, error
            else:
                raise AssertionError("not refused")
    world = comm.Get_group()
    for call in (world.Incl, world.Excl):
        try:
            call([1, 1])
        except MPI.Exception as error:
            assert error.Get_error_class() == MPI.ERR_RANK, error
        else:
            raise AssertionError("one rank twice")
    print("refused")
    """
    assert lines(2, program) == ["refused", "refused"]
