"""A pod of one rank inside the calling process: the same engine, memory and calls, without MPI.

For work before there are ranks: trying a program's parts out, or running them once in a process from which
ranks are forked. Nothing of it is visible to `emulator.init()`.
"""

from __future__ import annotations

import mmap
from dataclasses import replace
from typing import Any

import numpy as np

from emulator.config import read_config
from emulator.context import open_device
from emulator.device import Device
from emulator.profile import load_profile
from emulator.transport import PAGE, Bytes, Transport


class SoloTransport(Transport):
    """The memory of rank 0 of 1: pages of this process, gone with the last view of them."""

    def __init__(self) -> None:
        self.kind = "shared"
        self.rank, self.num_ranks = 0, 1
        self._windows: list[Any] = []
        self._closed = True  # nothing to free, and MPI is not ours to end

    def _allocate_shared(self, nbytes: int) -> Bytes:
        return np.frombuffer(mmap.mmap(-1, -(-nbytes // PAGE) * PAGE), np.uint8)[:nbytes]

    def clear_control(self) -> None:
        """Nothing to do: fresh pages are zero."""

    def synchronise(self) -> None:
        """Nobody to wait for."""

    def settle_scheduling(self) -> None:
        """The process keeps its own."""


def solo_device(**cfg: Any) -> Device:
    """Open the only rank of a pod of one.

    Its clock is virtual whatever the environment says: what is tried out ahead of a run is not to be lived
    through, and at a dilation of hundreds a rehearsal would take longer than the run. Nor does it take a
    fault plan from the environment: that one's rank 0 is another process.

    Args:
        cfg: keys of `emulator.config.RunConfig`, as `emulator.init` takes them.

    Raises:
        UsageError: bad configuration.
    """
    config = replace(read_config({"clock": "virtual", "compute": "priced", **cfg}), faults=cfg.get("faults"))
    return open_device(config, load_profile(config.profile, config.set), SoloTransport())
