"""Where every measured call begins: one instant for all ranks."""

from __future__ import annotations

import numpy as np

from collectives import coll
from collectives.groups import Group
from emulator.device import Device

GRID_PS = 10**12
_PAUSE_PS = 10**8


def together(device: Device) -> int:
    """Let time pass to an instant of all ranks; returns it, ps, when it is there for this rank.

    Under the virtual clock that is the next whole second. Under the wall clock a second is lived through as
    many seconds as the dilation says, so the ranks agree on one shortly after the latest of their clocks.
    """
    if device.config.clock == "virtual":
        device.sleep_ps(GRID_PS - device.now_ps % GRID_PS)
        return device.now_ps
    latest = np.zeros(1, np.int64)
    coll.all_reduce(Group.world(device), np.array([device.now_ps], np.int64), latest, op="max")
    device.sleep_ps(max(0, int(latest[0]) + _PAUSE_PS - device.now_ps))
    return device.now_ps
