"""Every opcode between two real ranks: statuses, data, order, prices. Cases are in `programs/good.py`."""

import pytest
from verbs_runs import seen, start

from memsem.verbs.enums import IBV_WC_GRH, IBV_WC_WITH_IMM

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(300)]
RECV, RECV_IMM = 128, 129


def good(case, **config):
    return seen("good", case, **config)


def test_send_and_receive():
    sender, receiver = good("send")
    assert sender == {"status": ["SUCCESS"], "ids": [7], "opcodes": [0]}
    assert receiver["ids"] == [9] and receiver["opcodes"] == [RECV] and receiver["bytes"] == [8]
    assert receiver["data"] == list(range(8)) and receiver["flags"] == [0]


def test_immediates_reach_their_own_queue_pair():
    """ofiwg/libfabric #6392. Fails when the immediate and the request's number change places."""
    _, (a, b) = good("send_imm")
    assert (a["imm"], a["ids"]) == ([0xDEADBEEF], [11]) and (b["imm"], b["ids"]) == ([7], [22])
    assert a["flags"] == b["flags"] == [int(IBV_WC_WITH_IMM)] and a["src"] != b["src"]
    assert int(IBV_WC_GRH) not in a["flags"]


def test_zero_bytes_arrive():
    """openshmem #206. Fails when a message without bytes is skipped."""
    sender, receiver = good("zero_bytes")
    assert sender["status"] == ["SUCCESS"] * 5 and sender["ids"] == [1, 2, 3, 4, 5]
    assert receiver["ids"] == [0, 1, 2] and receiver["bytes"] == [0, 0, 0]
    assert receiver["opcodes"] == [RECV, RECV, RECV_IMM] and receiver["imm"] == [0, 0, 5]


def test_write():
    sender, target = good("write")
    assert sender["opcodes"] == [1]
    assert target == {"data": list(range(100, 132)), "before": [0], "after": [0], "cqes": 0}


def test_write_with_immediate_takes_a_receive_and_leaves_its_memory():
    _, target = good("write_imm")
    assert target["opcodes"] == [RECV_IMM] and target["bytes"] == [32] and target["imm"] == [77]
    assert target["data"] == list(range(1, 33)) and target["receive"] == [0, 1, 2, 3]


def test_read():
    first, second = good("read")
    assert first["data"] == [100 + i for i in range(16)] and second["data"] == list(range(16))
    assert first["opcodes"] == [2]


def test_atomics():
    first, second = good("atomics")
    assert first["opcodes"] == [4, 3, 3] and first["old"] == [42, 41, 1 << 63]
    assert second == {"value": 1 << 63}


def test_gather_and_scatter():
    _, receiver = good("gather_scatter")
    data = [0, 1, 2, 3, 4, 20, 21, 22, 23, 24, 25, 26]
    assert receiver["bytes"] == [12] and receiver["data"] == [*data, 0]


def test_inline_data_may_change_at_once():
    sender, receiver = good("inline")
    assert sender["status"] == ["SUCCESS"] and receiver["data"] == [5] * 8


def test_unsignalled_sends_are_retired_by_a_later_one():
    sender, _ = good("unsignalled")
    assert sender["full"] == 12 and [x["ids"] for x in sender["wcs"]] == [[2], [5]]
    tally = start("good").reports[0]["cases"]["unsignalled"]["tally"]
    assert (tally["posted_sends"], tally["signalled"], tally["silent"]) == (6, 2, 4)
    assert good("sig_all")[0]["status"] == ["SUCCESS"]


def test_completions_come_at_the_time_of_the_formula():
    """post + doorbell + fetch, one way, bytes, landing, and back: to the picosecond, every request alone."""
    for measured, expected in good("timing")[0]:
        assert measured == expected


def test_a_list_rings_one_doorbell():
    sender, _ = good("doorbells")
    assert sender["rings"] == [1, 10] and sender["order"] == list(range(10)) and sender["statuses"] == 10
    call, post, bell = 5_000, 40_000, 40_000
    assert sender["caller_ps"][0] == 10 * (call + post) + bell + call
    assert sender["caller_ps"][1] > 10 * (call + post + bell)


def test_reads_under_way_are_limited():
    """Fails when rd_below is left out of the post."""
    times = good("max_rd_atomic")[0]
    assert times["1"] > 3.5 * times["4"] > 8 * times["16"]


def test_fenced_write_starts_after_the_read():
    plain, fenced = good("fence")[0]
    assert fenced > plain + 1_000_000  # a whole one-way latency, instead of the rest of the read


def test_solicited_events_srq_loopback_polling():
    assert good("solicited") == [[1, 2], [1, 2]]
    assert good("srq")[1] == {
        "ids": [10, 11], "own": [True, True], "event": "IBV_EVENT_SRQ_LIMIT_REACHED", "limit": 0,
        "refused": True, "left": 0,
    }  # fmt: skip
    assert good("loopback") == [[[1, 2], "loopback"]] * 2
    assert good("polling")[1]["waited_ps"] >= 50_000_000
    assert good("both_ways") == [20, 20]


def test_sizes_around_the_mtu():
    """SoftRoCE/rxe-dev #76. Fails when a payload is cut at the MTU."""
    sender, receiver = good("sizes")
    assert sender == [True] * 4
    assert receiver == [[size, True, True] for size in (1023, 1024, 1025, 2048)]
