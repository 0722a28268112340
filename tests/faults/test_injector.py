"""The injector over a bare engine: order, counting, undo, and no trace without a plan."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from emulator.faults import Fault, FaultPlan, Injector, NoFaults
from emulator.faults.injector import FIRED, FIRED_PS, OPERATIONS, UNDONE_PS
from emulator.faults.log import as_rows, never_fired
from emulator.solo import solo_device


class _Engine:
    """A clock that only computes and sleeps."""

    def __init__(self) -> None:
        self.now_ps = 0
        for name in OPERATIONS:
            setattr(self, name, self._advance)

    def _advance(self, ps: int = 0, *_: Any, **__: Any) -> None:
        self.now_ps += ps


def _injector(faults: Sequence[dict[str, Any]]) -> tuple[Any, Injector, Any]:
    engine: Any = _Engine()
    log = np.zeros((len(faults), 4), np.int64)
    return engine, Injector(FaultPlan(faults).faults, 0, engine, log), log


@pytest.mark.parametrize("kind", ["freeze", "gc_pause"])
def test_a_frozen_rank_does_nothing_until_the_planned_end(kind: str) -> None:
    engine, _, log = _injector([{"kind": kind, "rank": 0, "at_ps": 100, "duration_ps": 500}])
    engine.compute(250)  # it was away when the freeze began
    engine.compute(10)
    assert engine.now_ps == 610  # broken by counting the duration from the first operation after it
    assert log[0, FIRED] == 1 and log[0, FIRED_PS] == 250 and log[0, UNDONE_PS] == 600


def test_a_slow_die_has_its_price_again_after_the_undo() -> None:
    slow = {"kind": "slow", "rank": 0, "factor": 3.0, "duration_ps": 100}
    engine, injector, log = _injector([{**slow, "at_op": 2}, {**slow, "at_op": 2}])
    for _ in range(4):
        engine.compute(100)
    assert engine.now_ps == 100 + 900 + 100 + 100  # broken by an undo that forgets one of two equal faults
    assert log[:, UNDONE_PS].tolist() == [200, 200] and injector.operations == 4


def test_request_states_count_their_entries() -> None:
    fired: list[Fault] = []
    when = {"request": 5, "state": "decode", "count": 2}
    _, injector, log = _injector([{"kind": "page_fault", "blocks": 3, "at_request": when}] * 2)
    injector.on("page_fault", fired.append)
    for state, request in (("prefill", 5), ("decode", 5), ("decode", 4), ("decode", 4)):
        injector.point(state, request=request)
    assert not fired
    injector.point("decode", request=5)
    injector.point("decode", request=5)
    assert [f.blocks for f in fired] == [3, 3] and log[:, FIRED].tolist() == [1, 1]


def test_a_kind_nobody_carries_out_never_fires_and_is_reported() -> None:
    engine, injector, log = _injector([{"kind": "qp_error", "rank": 0, "at_ps": 0}])
    engine.compute(5)
    rows = as_rows(injector.plan, log)
    assert never_fired(rows) == "1 of 1 faults never fired: 0 (qp_error)"


def test_without_a_plan_a_device_has_no_injector_and_wraps_nothing() -> None:
    device = solo_device()
    assert isinstance(device.faults, NoFaults) and not set(OPERATIONS) & set(vars(device.engine))
    device.faults.point("decode", request=1)
    assert device.board.faults.shape == (0, 4)
