"""The machine: clock and event engine, topology and prices, memory and ports of one NPU die per process."""

from emulator.context import (
    barrier,
    compute,
    device,
    finalize,
    init,
    now,
    now_ps,
    num_ranks,
    rank,
    sleep_ps,
    start_clock,
)
from emulator.device import Device

__all__ = [
    "Device",
    "barrier",
    "compute",
    "device",
    "finalize",
    "init",
    "now",
    "now_ps",
    "num_ranks",
    "rank",
    "sleep_ps",
    "start_clock",
]
