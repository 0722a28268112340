"""UD: datagrams that arrive, that are dropped, and what stops the send queue: `programs/datagrams.py`."""

import pytest
from verbs_runs import seen

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(300)]


def ud(case, **config):
    return seen("datagrams", case, **config)


def test_a_datagram_arrives_behind_its_header():
    sender, receiver = ud("ud_send")
    assert sender == ["SUCCESS"]
    assert receiver == {
        "bytes": 48, "imm": 99, "flags": 3, "src": True, "slid": 1, "data": list(range(8)),
    }  # fmt: skip


def test_many_arrive():
    sender, receiver = ud("ud_many")
    assert sender == [["SUCCESS"] * 8, list(range(8))]
    assert receiver == [[40 + 100 * i for i in range(8)], 8]


@pytest.mark.parametrize("case", ["ud_wrong_qkey", "ud_no_receive", "ud_nobody"])
def test_a_lost_datagram_is_a_success_to_its_sender(case):
    sender, receiver = ud(case)
    assert sender == ["SUCCESS", "SUCCESS"]
    assert receiver == [["SUCCESS"], [42]]  # only the second one


def test_a_failed_send_stops_the_send_queue_alone():
    """SQE: in order, what is behind it flushed, receives go on, RTS recovers."""
    sender, receiver = ud("ud_sqe")
    assert sender["status"] == ["SUCCESS", "LOC_PROT_ERR", "WR_FLUSH_ERR", "WR_FLUSH_ERR", "SUCCESS"]
    assert sender["ids"] == [1, 2, 3, 4, 5]
    assert sender["state"] == "IBV_QPS_SQE" and sender["received"] == ["SUCCESS"]
    assert receiver == [50, 51]


def test_longer_than_the_mtu():
    assert ud("ud_longer_than_the_mtu")[0] == [["SUCCESS", "LOC_LEN_ERR"], "IBV_QPS_SQE"]


def test_longer_than_the_receive():
    sender, receiver = ud("ud_short_receive")
    assert sender == ["SUCCESS"] and receiver == [["LOC_LEN_ERR", "WR_FLUSH_ERR"], "IBV_QPS_ERR"]


def test_what_is_refused_at_the_call():
    assert ud("ud_post_in_reset") == [[22, 22]] * 2
    assert ud("ud_wrong_opcode") == [[22] * 4] * 2


def test_err_flushes():
    flushed = ["WR_FLUSH_ERR"] * 4
    assert ud("ud_err_flush") == [[flushed, [], ["WR_FLUSH_ERR"]]] * 2


def test_to_itself_and_destroyed_with_work():
    assert ud("ud_one_to_itself") == [[["SUCCESS", "SUCCESS"], [4] * 8]] * 2
    assert ud("ud_outstanding_at_destroy") == [0, 0]
