"""Bad flows beside the good paths; cases are in `programs/bad.py`. What each breaks is said with the test."""

import pytest
from verbs_runs import seen

from memsem.verbs.keys import RNR_TIMER_PS, timeout_ps

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(300)]
EINVAL, ENOMEM, EIO = 22, 12, 5


def bad(case, **config):
    return seen("bad", case, **config)


LOCAL = ["LOC_PROT_ERR", "WR_FLUSH_ERR", "WR_FLUSH_ERR"]
ACCESS = ["REM_ACCESS_ERR", "WR_FLUSH_ERR", "WR_FLUSH_ERR"]
INVALID = ["REM_INV_REQ_ERR", "WR_FLUSH_ERR", "WR_FLUSH_ERR"]


@pytest.mark.parametrize("case, status", [
    ("send_bad_lkey", LOCAL), ("write_bad_lkey", LOCAL), ("read_bad_lkey", LOCAL),
    ("read_without_local_write", LOCAL), ("write_bad_rkey", ACCESS), ("read_bad_rkey", ACCESS),
    ("atomic_bad_rkey", ACCESS), ("write_beyond_the_region", ACCESS), ("write_far_away", ACCESS),
    ("read_before_the_region", ACCESS), ("mr_without_remote_write", ACCESS),
    ("mr_without_remote_atomic", ACCESS), ("qp_without_remote_read", ACCESS),
    ("qp_without_remote_atomic", ACCESS), ("misaligned_atomic", INVALID),
    ("atomic_of_four_bytes", ["LOC_LEN_ERR", "WR_FLUSH_ERR", "WR_FLUSH_ERR"]),
])  # fmt: skip
def test_a_bad_request_fails_in_its_turn_and_flushes_what_follows(case, status):
    """The good write before it is done, the bad one and two behind it end with the statuses; all unsignalled
    but the last. Fails with GUARD_OPEN (the write lands) and with FLUSH_LOST (the wait never ends)."""
    sender, target = bad(case)
    assert sender["status"] == status and sender["ids"] == [2, 3, 4]
    assert sender["state"] == "IBV_QPS_ERR" and sender["left"] == 0
    local = status[0].startswith("LOC_")
    assert target["state"] == ("IBV_QPS_RTS" if local else "IBV_QPS_ERR") and target["status"] == []


def test_a_refused_write_with_immediate_takes_no_receive():
    sender, target = bad("write_imm_bad_rkey")
    assert sender["status"] == ACCESS
    assert target["status"] == ["WR_FLUSH_ERR"] * 2 and target["state"] == "IBV_QPS_ERR"


def test_a_refused_write_changes_nothing():
    assert bad("write_beyond_the_region")[1]["same"] is not None
    assert bad("mr_without_remote_write")[1]["same"]


def test_too_long_a_message():
    sender, receiver = bad("message_too_long")
    assert sender == ["REM_INV_REQ_ERR", "WR_FLUSH_ERR"] and receiver == ["LOC_LEN_ERR", "WR_FLUSH_ERR"]


def test_a_receive_that_may_not_be_written():
    assert bad("receive_bad_lkey")[1] == ["LOC_PROT_ERR", "WR_FLUSH_ERR"]


def test_receiver_not_ready():
    """Two retries, each after the wait of the receiver's own min_rnr_timer. Fails with RNR_DELIVERS."""
    sender, _ = bad("rnr_exhausted")
    assert sender["status"] == ["RNR_RETRY_EXC_ERR", "WR_FLUSH_ERR"]
    assert 2 * RNR_TIMER_PS[5] < sender["took_ps"] < 2 * RNR_TIMER_PS[5] + 12_000_000
    sender, receiver = bad("rnr_then_a_receive")
    assert sender == {"status": ["SUCCESS", "SUCCESS"], "ids": [1, 2]} and receiver == ["SUCCESS"]


def test_nobody_answers():
    sender, _ = bad("retry_exhausted")
    assert sender["status"] == ["RETRY_EXC_ERR", "WR_FLUSH_ERR"]
    assert 3 * timeout_ps(3) < sender["took_ps"] < 3 * timeout_ps(3) + 12_000_000
    assert bad("destroyed_peer")[0] == ["RETRY_EXC_ERR"]


def test_a_region_closed_while_a_write_is_on_its_way():
    sender, target = bad("deregistered_in_flight")
    assert sender == ["REM_ACCESS_ERR", "WR_FLUSH_ERR"] and target
    old, new = bad("reregistered")
    assert old == ["REM_ACCESS_ERR"] and new == {"same slot": True, "same key": False}
    assert bad("closed_lkey")[0] == ["LOC_PROT_ERR"]


def test_destroy_is_silent_and_err_is_not():
    """spdk/spdk #298, #2122."""
    assert bad("destroyed_with_work") == [0, 0]
    assert bad("destroyed_with_completions")[0] == [1, 0]
    assert bad("teardown_is_no_error") == [[["WR_FLUSH_ERR"], 0]] * 2


def test_err_flushes_every_outstanding_request():
    """ofiwg/libfabric PR 4756, PR 4672: posted = completed. Fails with FLUSH_LOST."""
    sender, receiver = bad("err_flushes_everything")
    assert sender["sends"] == ["WR_FLUSH_ERR"] * 6 and sender["recvs"] == ["WR_FLUSH_ERR"] * 3
    assert sender["send ids"] == [0, 10, 1, 11, 2, 12] and sender["recv ids"] == [20, 21, 22]
    assert receiver == []
    assert bad("sqd_to_err") == [["WR_FLUSH_ERR"]] * 2


def test_what_is_posted_in_err_is_flushed():
    """linux-rdma/rdma-core PR 1218. Fails when a post in ERR is dropped."""
    for side in bad("post_in_err"):
        assert side == {
            "sends": ["WR_FLUSH_ERR"] * 3, "ids": [0, 1, 2, 10, 11, 12], "recvs": ["WR_FLUSH_ERR"] * 3
        }  # fmt: skip


def test_posts_that_the_state_forbids():
    refused = ["QPStateError", EINVAL, True]
    assert bad("post_in_reset") == [[refused, refused, refused, None, refused]] * 2


def test_refused_at_the_call():
    sender, _ = bad("refused_at_the_call")
    full = ["PyverbsRDMAError", ENOMEM, True]
    wrong = ["PyverbsRDMAError", EINVAL, True]
    assert sender["seen"] == [wrong, wrong, wrong, wrong, wrong, full]
    assert sender["bad"] == 1 and sender["done"] == [5, 6]


def test_bad_objects():
    for side in bad("bad_objects"):
        memory = side.pop("too much memory")
        assert memory == ["PyverbsRDMAError", ENOMEM, True]
        assert side.pop("not in the heap") == ["PyverbsUserError", None, True]
        states = {side.pop("missing attribute")[0], side.pop("no transition")[0]}
        assert states == {"QPStateError"}
        assert all(value == ["PyverbsRDMAError", EINVAL, True] for value in side.values()), side


def test_completion_queue_overrun():
    """linux-rdma/rdma-core PR 1361. Fails when the queue holds one more than its depth."""
    sender, _ = bad("cq_overrun")
    assert sender["one"] == ["SUCCESS"] and sender["overrun"] == [["CQOverrunError", EIO, True]] * 2
    assert sender["events"] == ["IBV_EVENT_CQ_ERR", "IBV_EVENT_QP_FATAL"]
    assert sender["state"] == "IBV_QPS_ERR"
    assert bad("cq_not_overrun")[0] == ["SUCCESS"] * 5


def test_reset_and_again():
    assert bad("reset_and_again") == [[[3], 0], [[4], 0]]


def test_many_connections():
    """spdk/spdk #622: thirty lives of one slot; a stale number leads nowhere. Fails when the state word of a
    slot does not tell its generations apart."""
    first, second = bad("many_connections")
    assert first == {"wrong": 0, "numbers": 30} and second == {"wrong": 0, "numbers": 30}


def test_memory_lent_to_the_nic_is_watched():
    assert bad("reuse_before_completion")[0] == [[5], [5], "UsageError", True, [5]]


def test_draining_the_send_queue():
    sender, _ = bad("sq_drain")
    assert sender == {
        "draining": [1, 0], "event": "IBV_EVENT_SQ_DRAINED", "first": [1], "second": [2],
    }  # fmt: skip
