"""What a put costs the host: superpod run -n 2 benchmarks/put_overhead.py

Host time of one blocking 8-byte put with quiet, and of one put within a batch of 1,000, each the median of
several rounds; rank 1 waits in virtual time meanwhile. Beside them `Win.Put` and `Flush` of mpi4py, run by a
plain mpirun of its own on the same machine (two ranks, passive epoch, the target in a barrier).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

CALLS, BATCH, ROUNDS = 1000, 1000, 7
LIMITS = {"put + quiet": 60.0, "put in a batch of 1,000": 5.0}
"""Microseconds of host time a put may cost."""
MPIRUN = [
    "mpirun",
    "--oversubscribe",
    "--mca",
    "osc",
    "^ucx",
    "--mca",
    "pml",
    "ob1",
    "--mca",
    "btl",
    "self,sm",
]


def median_us(action: Callable[[], None], per_round: int) -> float:
    """Median over rounds of the host µs one of `per_round` operations takes; the first round warms up."""
    times = []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        action()
        times.append((time.perf_counter() - start) / per_round * 1e6)
    return statistics.median(times[1:])


def windows() -> dict[str, float] | None:
    """Figures of rank 0, µs by name; None on the others."""
    import emulator
    from memsem import Window

    device = emulator.init()
    window = Window.create(BATCH, np.int64, signals=1)
    device.barrier()
    found = None
    if device.rank == 0:
        data, ones, places = np.arange(BATCH), np.ones(BATCH, np.int64), np.arange(BATCH)
        one = data[:1]

        def calls() -> None:
            for _ in range(CALLS):
                window.put(1, one)
                window.quiet()

        def batch() -> None:
            window.put_batch(ones, data, places)

        found = {
            "put + quiet": median_us(calls, CALLS),
            "put in a batch of 1,000": batch_us(batch, window.quiet),
        }
        window.signal_set(1, 0, 1)
    else:
        window.signal_wait_until(0, "eq", 1)
    device.barrier()
    return found


def batch_us(batch: Callable[[], None], quiet: Callable[[], None]) -> float:
    """The posting of a batch alone, and with the quiet after it kept out of the figure."""
    times = []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        batch()
        times.append((time.perf_counter() - start) / BATCH * 1e6)
        quiet()
    return statistics.median(times[1:])


def raw_mpi() -> None:
    """The same put by mpi4py alone; rank 0 prints its figure as JSON."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    window = MPI.Win.Allocate(8 * BATCH, 1, comm=comm)
    window.Lock_all(MPI.MODE_NOCHECK)
    comm.Barrier()
    if comm.rank == 0:
        one = np.zeros(1, np.int64)

        def calls() -> None:
            for _ in range(CALLS):
                window.Put([one, MPI.INT64_T], 1, [0, 8, MPI.BYTE])
                window.Flush(1)

        print(json.dumps({"Win.Put + Flush of mpi4py": median_us(calls, CALLS)}))
    comm.Barrier()
    window.Unlock_all()
    window.Free()


def run_raw() -> dict[str, float]:
    """Start `raw_mpi` apart, with nothing of this run in its environment."""
    ours = ("OMPI_", "PMIX_", "PRTE_", "SUPERPOD_")
    environ = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    command = [*MPIRUN, *root, "-n", "2", sys.executable, str(Path(__file__).resolve()), "--raw"]
    ran = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=True)
    figures: dict[str, float] = json.loads(ran.stdout)
    return figures


def main() -> None:
    """Measure, and print one table; `--json` prints the figures instead."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--raw", action="store_true", help="the mpi4py half alone, under plain mpirun")
    parser.add_argument("--json", action="store_true", help="figures as one JSON object")
    options = parser.parse_args()
    if options.raw:
        raw_mpi()
        return
    figures = windows()
    if figures is None:
        return
    figures |= run_raw()
    if options.json:
        print(json.dumps(figures))
        return
    print(f"{'8 bytes, host time each':28} {'µs':>8} {'limit':>8}")
    for name, value in figures.items():
        print(f"{name:28} {value:8.2f} {LIMITS.get(name, float('nan')):8.1f}".replace("     nan", "        "))


if __name__ == "__main__":
    main()
