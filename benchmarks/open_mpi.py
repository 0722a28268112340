"""Host time of Open MPI's own collectives on this machine.

    mpirun -n 32 --oversubscribe python benchmarks/open_mpi.py [--repeat K]

Prints a JSON line for each call, as rank 0 saw it: K calls in a row after one to warm up, with the barrier
that follows, over K; the median of three such rounds. Open MPI polls while it waits, so ranks beyond the
cores take turns.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI


def calls(comm: MPI.Intracomm) -> dict[str, Callable[[], object]]:
    """What is measured, by name."""
    n = comm.size
    small, large = np.ones(64 * n, np.uint8), np.ones(7680 * n, np.uint8)
    small_in, large_in = small.copy(), large.copy()
    vector = np.ones(1 << 18, np.float32)
    total = vector.copy()
    return {
        "barrier": comm.Barrier,
        "all_to_all 64 B": lambda: comm.Alltoall(small, small_in),
        "all_to_all 7680 B": lambda: comm.Alltoall(large, large_in),
        "all_reduce 1 MiB": lambda: comm.Allreduce(vector, total),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeat", type=int, default=9)
    repeat = parser.parse_args().repeat
    comm = MPI.COMM_WORLD
    for name, call in calls(comm).items():
        call()
        seen = []
        for _ in range(3):
            comm.Barrier()
            begin = time.perf_counter()
            for _ in range(repeat):
                call()
            comm.Barrier()
            seen.append((time.perf_counter() - begin) / repeat)
        if comm.rank == 0:
            row = {"call": name, "ranks": comm.size, "wall_ms": round(1e3 * statistics.median(seen), 3)}
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
