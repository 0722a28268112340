"""How long one exchange takes on this host: `python benchmarks/engine.py [RANKS ...] [--kind c|python]`.

Forked processes over an anonymous shared mapping; a step is a priced compute and one exchange of all ranks.
Prints wall and CPU milliseconds a step: metadata only (a barrier), sparse (32 targets a rank), dense (all),
sized (a record of its own size to every target), groups (the same among groups of 16).
"""

import argparse
import mmap
import os
import resource
import time
import traceback

import numpy as np

from emulator.engine import Engine, EngineConfig, engine_attach, engine_bytes, engine_create

WARM = 3


def machine(num_ranks: int) -> EngineConfig:
    """A pod with microsecond latencies; the figures here are only for load, not a profile."""
    return EngineConfig(
        num_ranks=num_ranks,
        dies_per_chip=2,
        dies_per_node=16,
        put_latency_ps=(100_000, 800_000, 1_200_000, 1_800_000),
        request_latency_ps=(50_000, 400_000, 600_000, 900_000),
        response_latency_ps=(50_000, 400_000, 600_000, 900_000),
        ack_latency_ps=(50_000, 400_000, 600_000, 900_000),
        write_bytes_per_s=(10**12, 3 * 10**11, 2 * 10**11, 2 * 10**11),
        read_bytes_per_s=(10**12, 3 * 10**11, 2 * 10**11, 2 * 10**11),
    )


def rows_for(what: str, rank: int, num_ranks: int) -> np.ndarray | None:
    """Rows this rank holds for each target, int32 [num_ranks]."""
    if what in ("meta", "sized", "groups"):
        return None
    counts = np.zeros(num_ranks, dtype=np.int32)
    width = num_ranks if what == "dense" else min(32, num_ranks)
    chosen = np.random.default_rng(rank).choice(num_ranks, width, replace=False)
    counts[chosen] = 1
    return counts


def program(engine: Engine, what: str, steps: int, times: np.ndarray) -> None:
    """One rank's steps; rank 0 notes wall time, every rank its CPU time."""
    rows = rows_for(what, engine.rank, engine.num_ranks)
    rng = np.random.default_rng(engine.rank)
    sizes, channel = None, 0
    if what == "sized":
        sizes = rng.integers(0, 20_000, engine.num_ranks)
    elif what == "groups":
        first = engine.rank // 16 * 16
        group = np.arange(first, min(first + 16, engine.num_ranks), dtype=np.int32)
        sizes, channel = rng.integers(0, 20_000, len(group)), 1
        engine.open_group(channel, group)
    for k in range(steps + WARM):
        if k == WARM:
            times[1 + engine.rank] = time.process_time()
            if engine.rank == 0:
                times[0] = time.perf_counter()
        engine.compute(int(rng.integers(50_000_000, 60_000_000)), publish=False)
        engine.exchange(channel, rows, 7680, 32, 2_000_000, 10_000, record_bytes=sizes)
    times[1 + engine.rank] = time.process_time() - times[1 + engine.rank]
    if engine.rank == 0:
        times[0] = time.perf_counter() - times[0]


def measure(num_ranks: int, what: str, kind: str, steps: int) -> tuple[float, float, float]:
    """Wall and CPU milliseconds, and engine events, per step."""
    cfg = machine(num_ranks)
    buf = mmap.mmap(-1, engine_bytes(cfg, kind))
    engine_create(buf, cfg, kind)
    times = np.frombuffer(mmap.mmap(-1, (num_ranks + 1) * 8), dtype=np.float64)
    pids = []
    for rank in range(num_ranks):
        pid = os.fork()
        if not pid:
            code = 1
            try:
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
                engine = engine_attach(buf, cfg, kind, rank)
                program(engine, what, steps, times)
                engine.finish()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        pids.append(pid)
    if any(os.waitpid(pid, 0)[1] for pid in pids):
        raise SystemExit(f"a rank of {what} at {num_ranks} failed")
    events = engine_attach(buf, cfg, kind, 0).statistics().events / (steps + WARM)
    return times[0] / steps * 1e3, times[1:].sum() / steps * 1e3, events


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ranks", nargs="*", type=int, default=[64, 384])
    parser.add_argument("--kind", default="c", choices=["c", "python"])
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()
    for num_ranks in args.ranks:
        for what in ("meta", "sparse", "dense", "sized", "groups"):
            wall, cpu, events = measure(num_ranks, what, args.kind, args.steps)
            print(
                f"{args.kind:6} {num_ranks:4d} ranks  {what:6}  wall {wall:8.2f} ms  cpu {cpu:8.2f} ms"
                f"  events {events:9.0f}  load {os.getloadavg()[0]:.1f}"
            )
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(f"peak resident memory of one rank: {peak / 1024:.0f} MB")


if __name__ == "__main__":
    main()
