"""What the others find when a death reaches them."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from emulator import Device


def test_the_board_knows_of_a_death_before_anyone_is_woken_for_it() -> None:
    """Found by a program that caught RankLostError and read `Device.dead` too early; shown to
    fail where the engine is told first. Its end is said after that: until then the run goes on."""
    board, seen = SimpleNamespace(dead=np.zeros(3, np.uint8), finished=np.zeros(3, np.uint8)), list[Any]()
    engine = SimpleNamespace(mark_dead=lambda rank: seen.append((rank, *board.dead, *board.finished)))
    device = SimpleNamespace(
        board=board, engine=engine, wake_if_all_ended=lambda: seen.append(board.finished.tolist())
    )
    Device.mark_dead(cast(Device, device), 1)
    assert seen == [(1, 0, 1, 0, 0, 0, 0), [0, 1, 0]]
