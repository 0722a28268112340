"""URMA where it differs from verbs; cases are in `programs/urma_cases.py`, on three ranks."""

import pytest
from verbs_runs import outcome, start

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(300)]
N = 3


def urma(case, **config):
    ran = start("urma_cases", num_ranks=N, **config)
    return [ran.reports[rank]["cases"][case]["seen"] for rank in range(N)]


def test_one_jetty_reaches_all():
    for rank, seen in enumerate(urma("one_to_many")):
        assert seen["status"] == ["SUCCESS"], rank
        assert seen["from"] == [[peer, 100 + peer, 4] for peer in range(N)]
        assert seen["written"] == [1, 2, 3] and seen["read"] == [1, 2, 3]


def test_atomics():
    old, value, _ = urma("atomics")
    assert old == [0, 5, 3, 11, 10, 11, 77, 88] and value == 88


def test_a_wrong_token_puts_the_jetty_in_error_until_it_has_drained():
    mine, theirs, _ = urma("wrong_token")
    assert mine[0] == ["REM_ACCESS_ABORT_ERR", "WR_FLUSH_ERR_DONE"] and mine[1] == ["WR_FLUSH_ERR"]
    assert mine[2] == "ERROR" and mine[3] == ["SUCCESS"]
    assert theirs == [[0] * 8, "READY"]  # many use it: one refusal does not stop it


def test_nobody_ready_suspends_the_jetty():
    (statuses, ids, state), *_ = urma("suspended")
    assert sorted(statuses[:2]) == ["RNR_RETRY_CNT_EXC_ERR", "SUCCESS"] and statuses[2] == "WR_SUSPEND_DONE"
    assert sorted(ids) == [0, 1, 2] and state == "SUSPENDED"


def test_a_bound_jetty_is_ordered_and_flushes():
    sender, receiver, _ = urma("bound")
    assert sender[0] == ["SUCCESS", "REM_ACCESS_ABORT_ERR", "WR_FLUSH_ERR", "WR_FLUSH_ERR_DONE"]
    assert receiver[:2] == [["WR_FLUSH_ERR_DONE"], ["SUCCESS"]] and sender[1] == ["WR_FLUSH_ERR"]
    assert sender[2] == receiver[2] == ["SUCCESS", "SUCCESS"] and sender[3] == 22


def test_records_keep_their_order_only_if_asked():
    """Fails when comp_order is ignored."""
    loose, ordered = urma("order_flags")[0]
    assert loose == [2, 1] and ordered == [1, 2]


def test_datagram_error_state_and_segments():
    failed = ["LOC_LEN_ERR", "WR_FLUSH_ERR_DONE"]
    assert urma("datagram")[:2] == [[*failed, "SUCCESS"], [["SUCCESS", 6]]]
    assert urma("error_flushes") == [[["WR_FLUSH_ERR"] * 2, ["WR_FLUSH_ERR_DONE"]]] * N
    assert urma("bad_segments") == [[22] * 4] * N


@pytest.mark.slow
def test_equal_on_both_transports_and_engines():
    base = start("urma_cases", num_ranks=N)
    for config in ({"transport": "rma"}, {"engine": "python"}):
        assert outcome(start("urma_cases", num_ranks=N, **config)) == outcome(base)
