"""Wall time of torch.distributed calls, superpod beside gloo: `python benchmarks/torch_backend.py [RANKS]`.

Each row is a call's wall time on rank 0 in milliseconds: the median of the means of three rounds of calls in
a row, after one round to warm up (the first ten or so copy pages of the process they were forked from, 20 to
200 ms each among 384). For superpod also the emulated time a call takes on the machine, in microseconds; and
for both the time to form the group. gloo is asked up to 32 ranks: it opens n² sockets, and at 192 ranks on
one host it fails. `--json FILE` writes the rows.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist

GLOO_MOST = 32
_ROUNDS, _CALLS = 3, 20
RANK = "OMPI_COMM_WORLD_RANK"


def calls(size: int) -> Iterator[tuple[str, Callable[[], object], int]]:
    """What is measured: name, call, repeats."""
    small, large = torch.ones(256), torch.ones(1 << 18)
    yield "barrier", dist.barrier, _CALLS
    yield "all_reduce 1 KiB", lambda: dist.all_reduce(small, op=dist.ReduceOp.MAX), _CALLS
    yield "all_reduce 1 MiB", lambda: dist.all_reduce(large, op=dist.ReduceOp.MAX), _CALLS
    yield "broadcast 1 MiB", lambda: dist.broadcast(large, 0), _CALLS
    for per_pair in (64, 7680):
        send = torch.ones(size * per_pair, dtype=torch.uint8)
        recv = torch.empty_like(send)
        name = f"all_to_all_single {per_pair:,} B a pair"
        yield name, lambda send=send, recv=recv: dist.all_to_all_single(recv, send), _CALLS
    part, whole = torch.ones(4096 // 4), torch.ones(size * 4096 // 4)
    yield "all_gather 4 KiB a rank", lambda: dist.all_gather_single(whole, part), _CALLS
    yield "reduce_scatter 4 KiB a rank", lambda: dist.reduce_scatter_single(part, whole), _CALLS
    found: list[object] = [None] * size
    yield "all_gather_object", lambda: dist.all_gather_object(found, {"rank": 1}), _CALLS if size <= 32 else 3


def now_us(backend: str) -> float:
    """Emulated time, microseconds; 0 under gloo."""
    if backend != "superpod":
        return 0.0
    import emulator

    return emulator.now_ps() / 1e6


def one_round(call: Callable[[], object], repeats: int, backend: str) -> tuple[float, float]:
    """Wall ms and emulated us of one call, on average of some in a row after a barrier."""
    dist.barrier()
    start, start_us = time.perf_counter(), now_us(backend)
    for _ in range(repeats):
        call()
    wall_ms, took_us = 1e3 * (time.perf_counter() - start), now_us(backend) - start_us
    return wall_ms / repeats, took_us / repeats


def measure(backend: str, path: str) -> None:
    """One rank: measure every call and let rank 0 write what it saw."""
    start = time.perf_counter()
    dist.init_process_group(backend)
    dist.barrier()
    rows = [{"call": "form the group", "wall_ms": 1e3 * (time.perf_counter() - start), "emulated_us": 0.0}]
    for name, call, repeats in calls(dist.get_world_size()):
        _, *rounds = (one_round(call, repeats, backend) for _ in range(1 + _ROUNDS))
        wall_ms, took_us = (statistics.median(each) for each in zip(*rounds, strict=True))
        rows.append({"call": name, "wall_ms": wall_ms, "emulated_us": took_us})
    if dist.get_rank() == 0:
        Path(path).write_text(json.dumps(rows))
    dist.destroy_process_group()


def run(backend: str, size: int) -> dict[str, dict[str, float]] | None:
    """Start a job of `size` ranks; its rows by call, None when it failed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        command = ["superpod", "run", "-n", str(size), __file__, "--backend", backend, "--out", str(path)]
        ended = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=900)
        if ended.returncode or not path.exists():
            sys.stderr.write(ended.stderr.decode(errors="replace")[-2000:])
            return None
        return {row["call"]: row for row in json.loads(path.read_text())}


def table(size: int, ours: dict[str, dict[str, float]], gloo: dict[str, dict[str, float]] | None) -> None:
    """Print one size's rows side by side."""
    print(f"\n{size} ranks{'':26} superpod ms    gloo ms   emulated us")
    for call, row in ours.items():
        theirs = f"{gloo[call]['wall_ms']:10.2f}" if gloo else f"{'-':>10}"
        print(f"{call:34} {row['wall_ms']:11.2f} {theirs} {row['emulated_us']:13.2f}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ranks", nargs="*", type=int, default=[2, 8, 32])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--backend", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if RANK in os.environ:
        measure(args.backend, args.out)
        return 0
    everything = []
    for size in args.ranks:
        ours = run("superpod", size)
        gloo = run("gloo", size) if size <= GLOO_MOST else None
        if ours is None:
            return 1
        table(size, ours, gloo)
        everything.append(
            {"ranks": size, "superpod": list(ours.values()), "gloo": list((gloo or {}).values())}
        )
    if args.json:
        args.json.write_text(json.dumps(everything, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
