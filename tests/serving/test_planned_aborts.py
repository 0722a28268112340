"""Aborts that a workload plans: each once; nobody is lost whose abort was under way when a rank died."""

import numpy as np

from serving.aborts import PlannedAborts
from serving.dispatch import TICK_PS, Dispatcher
from serving.feed import Abort
from serving.request import RequestSpec


def _spec(request: int, arrival_ps: int = 0, abort_ps: int | None = None) -> RequestSpec:
    return RequestSpec(request, arrival_ps, np.arange(3), 3, 1, 2, False, 0, abort_ps=abort_ps)


def test_each_abort_comes_once_and_again_where_a_rank_is_gone() -> None:
    aborts = PlannedAborts([_spec(0), _spec(1, 0, 50), _spec(2, 0, 20)])
    assert aborts.closed and aborts.take(19) == []
    assert aborts.take(20) == [Abort(2)] and aborts.take(60) == [Abort(1)] and aborts.take(99) == []
    aborts.again()
    assert aborts.take(99) == [Abort(2), Abort(1)]


def test_a_request_is_taken_back_before_it_is_handed_out() -> None:
    specs = [_spec(0), _spec(1, TICK_PS), _spec(2, 2 * TICK_PS)]
    dispatcher = Dispatcher(specs, lambda spec: False)
    loads = np.zeros(2, np.int64)
    assert [spec.request_id for _, spec in dispatcher.assign(loads, 0)] == [0]
    assert dispatcher.cancel(0) is None  # its rank ends it
    assert dispatcher.cancel(1) is specs[1] and dispatcher.cancel(1) is None
    assert dispatcher.next_arrival_ps == 2 * TICK_PS
    assert [spec.request_id for _, spec in dispatcher.assign(loads, 5 * TICK_PS)] == [2]
    assert dispatcher.next_arrival_ps is None


def test_who_was_to_end_it_died_so_it_is_there_again() -> None:
    """Mutation: `lose` forgets what was taken back."""
    specs = [_spec(0), _spec(1)]
    dispatcher = Dispatcher(specs, lambda spec: False)
    given = {spec.request_id: rank for rank, spec in dispatcher.assign(np.zeros(2, np.int64), 0)}
    assert [spec.request_id for spec in dispatcher.lose([given[0]], lambda spec: False)] == [0]
    assert dispatcher.cancel(0) is specs[0] and dispatcher.next_arrival_ps is None
    dispatcher.lose([], lambda spec: False)
    assert dispatcher.next_arrival_ps == 0 and dispatcher.cancel(0) is specs[0]
    dispatcher.lose([], lambda spec: True)  # it has been ended
    assert dispatcher.next_arrival_ps is None
