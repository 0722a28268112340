"""Dispatching requests to ranks: least loaded first, the same answer from the same shared words."""

import numpy as np
import pytest

from emulator.errors import InternalError
from serving.dispatch import TICK_PS, Dispatcher, pack_status, unpack_status
from serving.request import RequestSpec


def spec(request_id: int, arrival_ps: int, priced: int) -> RequestSpec:
    return RequestSpec(request_id, arrival_ps, np.zeros(priced, np.int64), priced, 1, 1, False, 0)


def never(spec: RequestSpec) -> bool:
    return False


def test_status_words_carry_loads_and_the_latest_clock() -> None:
    words = np.array([pack_status(5, 3 * TICK_PS + 1), pack_status(0, 9 * TICK_PS - 1)], dtype=np.int64)
    loads, now_ps = unpack_status(words)
    assert loads.tolist() == [5, 0]
    assert now_ps == 8 * TICK_PS
    big = np.array([pack_status((1 << 30) - 1, ((1 << 33) - 1) * TICK_PS)], dtype=np.int64)
    assert unpack_status(big)[0].tolist() == [(1 << 30) - 1]
    assert unpack_status(big)[1] == ((1 << 33) - 1) * TICK_PS


@pytest.mark.parametrize(("load", "now_ps"), [(1 << 30, 0), (-1, 0), (0, (1 << 33) * TICK_PS)])
def test_a_status_that_does_not_fit_is_an_error(load: int, now_ps: int) -> None:
    with pytest.raises(InternalError):
        pack_status(load, now_ps)


def test_requests_go_to_the_least_loaded_rank_ties_to_the_lowest() -> None:
    dispatcher = Dispatcher([spec(i, 0, priced) for i, priced in enumerate([10, 30, 5, 5, 1])], never)
    loads = np.array([8, 0, 0])
    assert [(rank, s.request_id) for rank, s in dispatcher.assign(loads, 0)] == [
        (1, 0),
        (2, 1),
        (0, 2),
        (1, 3),
        (0, 4),
    ]
    assert loads.tolist() == [14, 15, 30]
    assert dispatcher.next_arrival_ps is None


def test_requests_wait_for_the_shared_clock() -> None:
    dispatcher = Dispatcher([spec(0, 0, 1), spec(1, TICK_PS + 1, 1)], never)
    loads = np.zeros(2, dtype=np.int64)
    assert len(dispatcher.assign(loads, 0)) == 1
    assert dispatcher.next_arrival_ps == 2 * TICK_PS
    assert dispatcher.assign(loads, 2 * TICK_PS - 1) == []
    assert dispatcher.assign(loads, 2 * TICK_PS)[0][0] == 1


def test_a_refused_request_is_handed_out_but_weighs_nothing() -> None:
    dispatcher = Dispatcher([spec(i, 0, 9) for i in range(3)], lambda s: s.request_id == 0)
    loads = np.zeros(2, dtype=np.int64)
    assert [(rank, s.request_id) for rank, s in dispatcher.assign(loads, 0)] == [(0, 0), (0, 1), (1, 2)]
    assert loads.tolist() == [9, 9]
