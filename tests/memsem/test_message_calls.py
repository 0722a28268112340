"""The calls of a communicator, on one rank that sends to itself: what they return, fill, refuse and leave."""

import numpy as np
import pytest

from emulator import solo
from emulator.engine import core_available
from emulator.errors import DeadlockError, UsageError
from memsem import mpi as MPI

SHORT, LONG = 100, 5000
"""Doubles of an eager message and of a rendezvous (the limit is 8,192 bytes)."""
SIZES = pytest.mark.parametrize("n", [0, 1, SHORT, LONG])


@pytest.fixture(params=["c", "python"])
def comm(request):
    if request.param == "c" and not core_available():
        pytest.skip("the compiled engine is not built")
    return MPI.predefined(solo.solo_device(engine=request.param))[0]


@SIZES
def test_a_message_arrives_with_its_envelope(comm, n):
    data, into, status = np.arange(float(n)), np.full(n + 1, -1.0), MPI.Status()
    request = comm.Isend(data, 0, 7)
    comm.Recv(into, 0, 7, status)
    assert request.Wait() is True and not request
    assert np.array_equal(into[:n], data) and into[n] == -1
    assert (status.source, status.tag, status.Get_count(MPI.DOUBLE)) == (0, 7, n)


@SIZES
@pytest.mark.parametrize("send", ["Isend", "Issend", "Ibsend", "Irsend"])
def test_every_send_matches_a_receive_posted_first(comm, send, n):
    into = np.empty(n)
    arrives = comm.Irecv(into)
    leaves = getattr(comm, send)(np.arange(float(n)), 0)
    MPI.Request.Waitall([leaves, arrives])
    assert np.array_equal(into, np.arange(float(n)))


def test_an_eager_send_ends_at_once_and_a_synchronous_one_at_its_match(comm):
    """Zero bytes too: a synchronous send of nothing still tells its sender of the match."""
    eager, buffered = comm.Isend(np.zeros(SHORT), 0, 1), comm.Ibsend(np.zeros(LONG), 0, 2)
    assert eager.Test() and buffered.Test()
    for n in (0, SHORT, LONG):
        synchronous = comm.Issend(np.zeros(n), 0, 3)
        assert not synchronous.Test()
        comm.Recv(np.zeros(n), 0, 3)
        assert synchronous.Wait()


def test_a_rendezvous_with_nobody_is_a_deadlock_that_names_the_call(comm):
    with pytest.raises(DeadlockError, match=r"rank 0 is in Send\(dest=0, tag=4\)"):
        comm.Send(np.zeros(LONG), 0, 4)
    with pytest.raises(DeadlockError, match=r"rank 0 is in Recv\(source=any, tag=9\)"):
        comm.Recv(np.zeros(1), tag=9)


def test_polling_for_ever_is_a_deadlock_too(comm):
    request = comm.Irecv(np.zeros(1), 0, 4)
    with pytest.raises(DeadlockError, match=r"rank 0 is in Test of Irecv\(source=0, tag=4\)"):
        while not request.Test():
            pass


def test_messages_are_matched_in_the_order_sent_whatever_their_size(comm):
    sizes = [LONG, 1, SHORT, 0, LONG, 2]
    leaves = [comm.Isend(np.full(n, float(i)), 0, 5) for i, n in enumerate(sizes)]
    for i, n in enumerate(sizes):
        into, status = np.empty(LONG), MPI.Status()
        comm.Recv(into, MPI.ANY_SOURCE, MPI.ANY_TAG, status)
        assert status.Get_count(MPI.DOUBLE) == n and (into[:n] == i).all()
    MPI.Request.Waitall(leaves)


def test_tags_and_communicators_keep_messages_apart(comm):
    other = comm.Dup()
    for place, where in enumerate((comm, other, comm)):
        where.send(place, 0, tag=place)
    assert comm.recv(tag=2) == 2 and other.recv() == 1 and comm.recv() == 0
    assert not comm.Iprobe() and not other.iprobe()


@SIZES
def test_a_probe_finds_and_leaves(comm, n):
    assert not comm.Iprobe(0, 3)
    comm.Isend(np.zeros(n), 0, 3)
    for _ in range(2):
        status = MPI.Status()
        assert comm.Probe(MPI.ANY_SOURCE, 3, status) is True
        assert (status.Get_source(), status.Get_tag(), status.Get_count(MPI.DOUBLE)) == (0, 3, n)
    assert not comm.Iprobe(0, 4)
    comm.Recv(np.zeros(n), 0, 3)
    assert not comm.Iprobe(0, 3)


@SIZES
def test_a_taken_message_is_nobody_elses(comm, n):
    comm.Isend(np.full(n, 1.0), 0, 3)
    comm.Isend(np.full(n, 2.0), 0, 3)
    first = comm.Mprobe(tag=3)
    into, status = np.empty(n), MPI.Status()
    comm.Recv(into)
    assert (into == 2).all() and comm.Improbe() is None
    first.Recv(into, status)
    assert (into == 1).all() and status.Get_count(MPI.DOUBLE) == n and not first
    with pytest.raises(MPI.Exception, match="MPI_ERR_REQUEST"):
        first.Recv(into)


@pytest.mark.parametrize("thing", [None, 0, {"a": [1, 2]}, "x" * 20000, np.arange(3).tolist()])
def test_objects_go_and_come(comm, thing):
    leaves = comm.isend(thing, 0, 1)
    assert comm.recv(source=0, tag=1) == thing and leaves.wait() is None
    arrives = comm.irecv(1 << 20, source=0)
    comm.send(thing, 0)
    assert arrives.wait() == thing and arrives.wait() is None
    assert comm.sendrecv(thing, 0, source=0) == thing
    comm.bsend(thing, 0)
    assert comm.mprobe().recv() == thing


def test_truncation_fills_what_fits_and_is_an_error(comm):
    for n in (SHORT, LONG):
        leaves, into, status = comm.Isend(np.arange(float(n)), 0, 3), np.full(3, -1.0), MPI.Status()
        with pytest.raises(MPI.Exception) as caught:
            comm.Recv([into, 2], 0, 3, status)
        error = caught.value
        assert error.Get_error_class() == MPI.ERR_TRUNCATE == error.Get_error_code() == int(error)
        assert error.Get_error_string() == "MPI_ERR_TRUNCATE: message truncated"
        assert str(error).startswith(
            f"MPI_ERR_TRUNCATE: message truncated: Recv(source=0, tag=3): {8 * n} bytes"
        )
        assert (error.rank, error.value) == (0, 8 * n) and isinstance(error, UsageError | RuntimeError)
        assert into.tolist() == [0, 1, -1] and (status.source, status.tag) == (0, 3)
        leaves.Wait()
    assert not comm.Iprobe()


def test_an_object_longer_than_irecv_has_room_for_is_truncated_as_under_mpi4py(comm):
    arrives = comm.irecv(source=0)
    comm.isend(bytes(40000), 0)
    with pytest.raises(MPI.Exception, match="MPI_ERR_TRUNCATE"):
        arrives.wait()
    assert not arrives


def test_errors_of_several_are_in_their_statuses(comm):
    good, small = np.empty(4), np.empty(1)
    requests = [comm.Irecv(small, 0, 1), comm.Irecv(good, 0, 2)]
    comm.Send(np.ones(4), 0, 1)
    comm.Send(np.ones(4), 0, 2)
    statuses = []
    with pytest.raises(MPI.Exception) as caught:
        MPI.Request.Waitall(requests, statuses)
    assert caught.value.Get_error_class() == MPI.ERR_IN_STATUS
    assert [s.Get_error() for s in statuses] == [MPI.ERR_TRUNCATE, MPI.SUCCESS]
    assert (good == 1).all() and not any(requests)


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda c: c.Send(np.zeros(1), 1), MPI.ERR_RANK),
        (lambda c: c.Send(np.zeros(1), -1), MPI.ERR_RANK),
        (lambda c: c.Isend(np.zeros(1), 5), MPI.ERR_RANK),
        (lambda c: c.Isend(np.zeros(1), "0"), MPI.ERR_RANK),
        (lambda c: c.Isend(np.zeros(1), None), MPI.ERR_RANK),
        (lambda c: c.Isend(np.zeros(1), 0, 1.5), MPI.ERR_TAG),
        (lambda c: c.Isend(np.zeros(1), 0, None), MPI.ERR_TAG),
        (lambda c: c.Irecv(np.zeros(1), 0, "x"), MPI.ERR_TAG),
        (lambda c: c.Split("x"), MPI.ERR_ARG),
        (lambda c: c.irecv(-1), MPI.ERR_ARG),
        (lambda c: c.Split(0, 1 << 40), MPI.ERR_ARG),
        (lambda c: c.Create_cart(["x"]), MPI.ERR_DIMS),
        (lambda c: c.send(1, 5), MPI.ERR_RANK),
        (lambda c: c.Recv(np.zeros(1), 1), MPI.ERR_RANK),
        (lambda c: c.recv(source=-3), MPI.ERR_RANK),
        (lambda c: c.Probe(1), MPI.ERR_RANK),
        (lambda c: c.Send_init(np.zeros(1), 1), MPI.ERR_RANK),
        (lambda c: c.Send(np.zeros(1), 0, -1), MPI.ERR_TAG),
        (lambda c: c.Send(np.zeros(1), 0, c.Get_attr(MPI.TAG_UB) + 1), MPI.ERR_TAG),
        (lambda c: c.Recv(np.zeros(1), 0, -2), MPI.ERR_TAG),
        (lambda c: c.Iprobe(0, -2), MPI.ERR_TAG),
        (lambda c: c.Sendrecv(np.zeros(1), 7, 0, np.zeros(1), 0), MPI.ERR_RANK),
        (lambda c: c.Sendrecv(np.zeros(1), 0, 0, np.zeros(1), 7), MPI.ERR_RANK),
        (lambda c: c.sendrecv(1, 7, source=0), MPI.ERR_RANK),
        (lambda c: c.sendrecv(1, 0, source=7), MPI.ERR_RANK),
        (lambda c: c.Send([np.zeros(2), 1, MPI.DOUBLE.Create_contiguous(2)], 0), MPI.ERR_TYPE),
        (lambda c: c.Split(-5), MPI.ERR_ARG),
        (lambda c: c.Free(), MPI.ERR_COMM),
        (lambda c: MPI.COMM_NULL.Send(np.zeros(1), 0), MPI.ERR_COMM),
        (lambda c: MPI.COMM_NULL.Get_rank(), MPI.ERR_COMM),
        (lambda c: MPI.REQUEST_NULL.Free(), MPI.ERR_REQUEST),
    ],
)
def test_bad_arguments_have_mpis_error_and_leave_nothing_behind(comm, call, code):
    with pytest.raises(MPI.Exception) as caught:
        call(comm)
    assert caught.value.Get_error_class() == code
    assert not comm.Iprobe()
    comm.Isend(np.full(1, 5.0), 0)
    into = np.zeros(1)
    comm.Recv(into)  # no receive of the refused call takes it
    assert into[0] == 5


def test_the_message_of_an_error_says_who_when_and_what(comm):
    with pytest.raises(
        MPI.Exception, match=r"^MPI_ERR_RANK: invalid rank: rank 9; ranks are 0 to 0 \(rank 0, \d+ ps\)$"
    ):
        comm.Send(np.zeros(1), 9)


def test_proc_null_ends_at_once_and_touches_nothing(comm):
    into, status = np.full(2, 3.0), MPI.Status()
    comm.Send(None, MPI.PROC_NULL)
    comm.send(1, MPI.PROC_NULL)
    comm.Recv(into, MPI.PROC_NULL, 0, status)
    assert (status.source, status.tag, status.count) == (MPI.PROC_NULL, MPI.ANY_TAG, 0)
    assert comm.recv(source=MPI.PROC_NULL) is None and (into == 3).all()
    comm.Sendrecv(np.ones(2), MPI.PROC_NULL, 0, into, MPI.PROC_NULL)
    assert comm.Isend(np.ones(1), MPI.PROC_NULL).Test() and (into == 3).all()
    assert comm.Iprobe(MPI.PROC_NULL, 0, status) and status.source == MPI.PROC_NULL


def test_sendrecv_replace_swaps_in_place(comm):
    for n in (SHORT, LONG):
        data = np.arange(float(n))
        comm.Sendrecv_replace(data, 0, 1, 0, 1)
        assert np.array_equal(data, np.arange(float(n)))


# --- requests -----------------------------------------------------------------------------------------------


def test_null_requests_are_over(comm):
    status = MPI.Status()
    status.source = 5
    null = MPI.Request()
    assert null == MPI.REQUEST_NULL and not null and null.Wait(status) and null.Test()
    assert (status.source, status.tag) == (MPI.ANY_SOURCE, MPI.ANY_TAG)
    assert MPI.Request.Waitany([]) == MPI.UNDEFINED and MPI.Request.Waitall([null])
    assert MPI.Request.Testany([null]) == (MPI.UNDEFINED, True)
    assert MPI.Request.Waitsome([null]) is None is MPI.Request.Testsome([])
    assert MPI.Request.waitsome([]) == (None, None) and MPI.Request.waitany([null]) == (MPI.UNDEFINED, None)


def test_any_some_and_all(comm):
    into = [np.zeros(1) for _ in range(4)]
    requests = [comm.Irecv(into[i], 0, i) for i in range(4)]
    assert MPI.Request.Testany(requests) == (MPI.UNDEFINED, False)
    assert MPI.Request.Testsome(requests) == [] and not MPI.Request.Testall(requests)
    comm.Send(np.full(1, 2.0), 0, 2)
    status = MPI.Status()
    assert MPI.Request.Waitany(requests, status) == 2 and (status.tag, into[2][0]) == (2, 2)
    comm.Send(np.full(1, 3.0), 0, 3)
    comm.Send(np.full(1, 0.5), 0, 0)
    comm.Probe  # noqa: B018 (the two are matched, not to be probed)
    statuses = [MPI.Status()]
    got = MPI.Request.Waitsome(requests, statuses)
    got += [] if len(got) == 2 else MPI.Request.Waitsome(requests)
    assert sorted(got) == [0, 3] and into[0][0] == 0.5
    assert [bool(r) for r in requests] == [False, True, False, False]
    assert not requests[1].Get_status()
    comm.Send(np.full(1, 1.0), 0, 1)
    assert MPI.Request.Waitall(requests) and into[1][0] == 1


def test_objects_of_several(comm):
    requests = [comm.irecv(source=0, tag=i) for i in range(3)]
    assert MPI.Request.testany(requests) == (MPI.UNDEFINED, False, None)
    assert MPI.Request.testall(requests) == (False, None) and MPI.Request.testsome(requests) == ([], [])
    comm.send("b", 0, 1)
    assert MPI.Request.waitany(requests) == (1, "b")
    comm.send("a", 0, 0)
    comm.send("c", 0, 2)
    assert MPI.Request.waitall(requests) == ["a", None, "c"]


def test_get_status_does_not_end_a_request(comm):
    arrives, status = comm.Irecv(np.zeros(1), 0, 4), MPI.Status()
    assert not arrives.Get_status(status)
    comm.Send(np.ones(1), 0, 4)
    assert arrives.Get_status(status) and status.tag == 4 and arrives
    assert arrives.Wait() and not arrives


def test_a_cancelled_receive_takes_nothing(comm):
    into, status = np.zeros(1), MPI.Status()
    gone, stays = comm.Irecv(into, 0, 4), comm.Irecv(into, 0, 4)
    gone.Cancel()
    assert gone.Wait(status) and status.Is_cancelled() and status.count == 0
    comm.Send(np.ones(1), 0, 4)
    assert stays.Wait(status) and into[0] == 1 and not status.Is_cancelled()
    late = comm.Irecv(into, 0, 5)
    comm.Send(np.full(1, 7.0), 0, 5)
    comm.endpoint.device.sleep_ps(1_000_000)
    late.Cancel()  # too late: it has its message
    assert late.Wait(status) and not status.Is_cancelled() and into[0] == 7


def test_a_freed_request_goes_on(comm):
    into = np.zeros(1)
    arrives = comm.Irecv(into, 0, 4)
    arrives.Free()
    comm.Send(np.ones(1), 0, 4)
    comm.sendrecv(0, 0, source=0)
    assert not arrives and into[0] == 1


def test_persistent_requests_start_again(comm):
    data, into = np.zeros(SHORT), np.zeros(SHORT)
    pair = [comm.Recv_init(into, 0, 1), comm.Send_init(data, 0, 1)]
    assert all(pair) and pair[0].Wait() and MPI.Request.Waitany(pair) == MPI.UNDEFINED
    for turn in range(3):
        data[:] = turn
        MPI.Prequest.Startall(pair)
        with pytest.raises(MPI.Exception, match="MPI_ERR_REQUEST"):
            pair[0].Start()
        MPI.Request.Waitall(pair)
        assert (into == turn).all() and all(pair)
    pair[0].Free()
    assert not pair[0]


# --- communicators and the module ---------------------------------------------------------------------------


def test_communicators_of_one(comm):
    assert (comm.Get_rank(), comm.size, comm.name) == (0, 1, "MPI_COMM_WORLD") and comm
    copy = comm.Dup()
    assert copy != comm and comm.Compare(copy) == MPI.CONGRUENT and comm.Compare(comm) == MPI.IDENT
    split = comm.Split(3, 9)
    assert split.Get_size() == 1 and split not in (comm, copy)
    assert comm.Split(MPI.UNDEFINED) == MPI.COMM_NULL and not comm.Split_type(MPI.UNDEFINED)
    assert comm.Split_type(MPI.COMM_TYPE_SHARED).size == 1
    comm.Barrier()
    copy.Free()
    assert copy == MPI.COMM_NULL
    with pytest.raises(MPI.Exception, match="MPI_ERR_COMM"):
        copy.send(1, 0)


def test_a_grid_refuses_what_it_has_not(comm):
    grid = comm.Create_cart([1, 1], [True, False])
    assert grid.Shift(0, 1) == (0, 0) and grid.Shift(1, 1) == (MPI.PROC_NULL, MPI.PROC_NULL)
    for call in (
        lambda: grid.Shift(2, 1),
        lambda: comm.Create_cart([-1]),
        lambda: MPI.Compute_dims(6, [4, 0]),
    ):
        with pytest.raises(MPI.Exception, match="MPI_ERR_DIMS"):
            call()


def test_the_module_says_what_it_has_not():
    with pytest.raises(AttributeError, match="no Win: it holds point-to-point"):
        MPI.Win  # noqa: B018
    assert MPI.INT.Get_size() == 4 and MPI.DOUBLE.name == "MPI_DOUBLE"
    assert all(hasattr(MPI, name) for name in MPI.__all__ if not name.startswith("COMM_"))


def test_errors_cross_processes():
    import pickle

    error = pickle.loads(pickle.dumps(MPI.Exception(MPI.ERR_TAG)))
    assert error == MPI.ERR_TAG and str(error) == "MPI_ERR_TAG: invalid tag" and hash(error) == hash(4)
    with pytest.raises(MPI.Exception, match="MPI_ERR_ARG"):
        MPI.Get_error_string(4711)
