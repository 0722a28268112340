"""The program of the ranks for XCCL's send and receive: two dies of two servers (arXiv 2508.02520v6 Fig 5).

    python -m collectives.calibrate p2p_job out.json

Times are of the sender, from send's start to its return; sizes are charged, few bytes are moved.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import emulator
from collectives.calibrate.measure import Meter
from collectives.xccl import Xccl
from emulator.device import BARRIER_CHANNEL

RANKS, PEER = 17, 16
KB = 1024
BELOW_A_MB, LARGE = 1000 * KB - 1, 9216 * KB


def main(out: str) -> None:
    """Measure and let rank 0 write {"size:cores": us}."""
    device = emulator.init()
    meter = Meter(device)
    xccl, found = Xccl(device, [(0, PEER)], slot_bytes=64), {}
    for event, (size, cores) in enumerate(((BELOW_A_MB, 2), (LARGE, 2), (LARGE, 48))):
        start = meter.together()
        real = np.zeros(64, np.uint8)
        if device.rank == 0:
            xccl.send(real, event, PEER, cores, charge_bytes=size)
        elif device.rank == PEER:
            xccl.receive(real, event, 0, cores)
        tags = device.exchange(BARRIER_CHANNEL, None, 0, tag=device.now_ps - start).tags
        found[f"{size}:{cores}"] = int(tags[0]) / 1e6
    emulator.finalize()
    if device.rank == 0:
        Path(out).write_text(json.dumps(found))
