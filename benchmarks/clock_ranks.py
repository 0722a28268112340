"""The rank program of `clocks.py`: what it times on the host and in emulated time.

superpod run -n 8 benchmarks/clock_ranks.py PART FILE
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

CHOSEN = {  # what a rank times, and how often; the first time is left out
    "operations": (("put", "get", "small get", "dispatch", "all-reduce"), 12),
    "linear": (("small get",), 24),
    "latency": (("large get", "small get"), 6),
    "bandwidth": (("middle get", "small get"), 4),
    "sweep": (("put", "small get"), 12),
    "large": (("dispatch",), 4),
}
ALONE = ("latency", "bandwidth")
"""Here no barrier comes before each call: a barrier would last minutes at the largest of the latencies."""


def rank_program(part: str, out: str) -> None:
    """Time the operations of a part; rank 0 writes the medians over all its calls."""
    import numpy as np

    import emulator
    from collectives import coll
    from collectives.groups import Group

    device = emulator.init()
    n, me, group = device.num_ranks, device.rank, Group.world(device)
    near, data = (me + n // 2) % n, np.ones(4096, np.uint8)
    vector, total, row = (
        np.ones(1 << 10, np.float32),
        np.zeros(1 << 10, np.float32),
        np.zeros(n * 16, np.int32),
    )

    def put() -> None:
        device.put(near, 0, data, 1 << 20)
        device.quiet()

    calls = {
        "put": put,
        "get": lambda: device.get(near, 0, 4096, 1 << 20),
        "large get": lambda: device.get(near, 0, 4096, 1 << 23),
        "middle get": lambda: device.get(near, 0, 4096, 1 << 16),
        "small get": lambda: device.get(near, 0, 1, 1),
        "dispatch": lambda: coll.all_to_all(group, row, row.copy(), charge_bytes=1 << 18),
        "all-reduce": lambda: coll.all_reduce(group, vector, total, charge_bytes=1 << 22),
    }
    chosen, times_each = CHOSEN[part]
    found = {}
    device.engine.hold_clock()  # what is only done the first time belongs to no delay
    for name in chosen:
        calls[name]()
    device.barrier()
    device.sleep_ps(100_000_000)  # so that nobody still waits for what another does next
    emulator.start_clock()
    for name in chosen:
        times: list[tuple[int, int]] = []
        for _ in range(times_each):
            if part not in ALONE:
                device.barrier()
            device.sleep_ps(20_000_000)  # everybody is on time again
            host, ps = time.monotonic_ns(), device.now_ps
            calls[name]()
            times.append((time.monotonic_ns() - host, device.now_ps - ps))
        host_ns, emulated_ps = (statistics.median(t[i] for t in times[1:]) for i in (0, 1))
        found[name] = {"host_ms": host_ns / 1e6, "emulated_us": emulated_ps / 1e6}
    if not me:
        Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    rank_program(*sys.argv[1:])
