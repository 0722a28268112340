"""Host time of collectives at size, beside a plain copy of the bytes they move, in one run.

    superpod run -n 384 benchmarks/coll.py [--repeat K] [--only NAME,…] [--profile RANK] [--json FILE]

Each row: virtual time, host time a call, and the host time two processes need to copy the bytes that must
move, as anybody would (`tensor.clone()`) and into memory they have touched before. Host time is that of K
calls in a row, less the barrier after them, over K: the median of three such rounds after two calls to warm
up. An all-to-all must move every byte once, an all-reduce in two passes (shares to their owners, sums to
everybody) each rank's vector twice.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import statistics
import time
from pathlib import Path

import numpy as np

import emulator
from collectives import coll
from collectives.algorithms import levels
from collectives.calls import nodes_of
from collectives.groups import Group

_ROUNDS = 3


def rows(group: Group):
    """(name, call, bytes copied in all) by name of what is measured."""
    n = group.size
    small, large = (
        np.ones(n * 16, np.int32),
        np.ones(n * 1920, np.int32),
    )  # zeros would be one page, read n times
    small_in, large_in, vector = small.copy(), large.copy(), np.ones(1 << 18, np.float32)
    total = vector.copy()
    sizes = np.full(n, 16)
    made = {
        "barrier": (lambda g: coll.barrier(g), 0),
        "all_to_all 64 B": (
            lambda g: coll.all_to_all(g, small, small_in, charge_bytes=7680),
            small.nbytes * n,
        ),
        "all_to_all_v 64 B": (
            lambda g: coll.all_to_all_v(g, small, sizes, small_in, sizes),
            small.nbytes * n,
        ),
        "all_to_all 7680 B": (lambda g: coll.all_to_all(g, large, large_in), large.nbytes * n),
        "all_reduce 1 MiB": (lambda g: coll.all_reduce(g, vector, total), 2 * vector.nbytes * n),
        "all_reduce one-exchange 1 MiB": (
            lambda g: coll.all_reduce(g, vector, total, algorithm="one-exchange"),
            2 * vector.nbytes * n,
        ),
        "all_reduce 256 B": (lambda g: coll.all_reduce(g, vector[:64], total[:64]), 0),
        "all_gather 1 KiB": (
            lambda g: coll.all_gather(g, vector[:256], large[: 256 * n].view(np.float32)),
            0,
        ),
        "broadcast 1 MiB": (lambda g: coll.broadcast(g, vector), vector.nbytes * n),
        "all_reduce ring 1 MiB": (lambda g: coll.all_reduce(g, vector, total, algorithm="ring"), 0),
        "barrier dissemination": (lambda g: coll.barrier(g, algorithm="dissemination"), 0),
    }
    if levels.applies(nodes_of(group)):
        made["all_reduce two-level 1 MiB"] = (
            lambda g: coll.all_reduce(g, vector, total, algorithm="two-level"),
            0,
        )
    return made


def pages_moved() -> int:
    """Pages the kernel has moved so far on this host: while it gathers free memory all of this is slower."""
    with open("/proc/vmstat") as counters:
        return next((int(line.split()[1]) for line in counters if line.startswith("pgmigrate_success ")), 0)


def copy_seconds(device: emulator.Device, nbytes: int) -> tuple[float, float]:
    """Host seconds of two processes to copy `nbytes` in all, the others asleep: a tensor's `clone()`, and the
    same bytes again into memory that the process has touched just before. The least of three of each."""
    device.barrier()
    clone, again = [0.0], [0.0]
    if device.rank < min(2, device.num_ranks) and nbytes:
        import torch

        torch.set_num_threads(1)
        source = torch.ones(nbytes // min(2, device.num_ranks), dtype=torch.uint8)
        clone = [_seconds(source.clone) for _ in range(3)]
        target = source.clone()
        again = [_seconds(lambda: target.copy_(source)) for _ in range(3)]
    device.barrier()
    return min(clone), min(again)


def _seconds(call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(group: Group, call, repeat: int, profile: bool) -> tuple[float, int]:
    """Host seconds of `repeat` calls and the barrier after them (median of rounds), and a call's virtual
    picoseconds."""
    device, seconds, profiler = group.device, [], cProfile.Profile()
    for number in range(_ROUNDS + 1):
        device.barrier()
        start = time.perf_counter()
        for _ in range(repeat if number else 2):
            began = device.now_ps
            if profile and number:
                profiler.runcall(call, group)
            else:
                call(group)
            virtual = device.now_ps - began
        device.barrier()
        seconds.append(time.perf_counter() - start)
    if profile:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(18)
    return statistics.median(seconds[1:]), virtual


def main() -> None:
    """Measure, print on rank 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", default="")
    parser.add_argument("--profile", type=int, default=-1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = emulator.init()
    group, n = Group.world(device), device.num_ranks
    meeting, _ = measure(group, lambda g: None, options.repeat, False)
    if device.rank == 0:
        print(f"{n} ranks; a machine barrier takes {meeting * 1e3:.1f} ms, its time is taken off")
        copy = f"{'clone ms':>9} {'ratio':>6}{'warm copy':>10} {'ratio':>6}"
        print(f"{'collective':30} {'virtual us':>10} {'host ms':>9} {copy}")
    written = []
    for name, (call, nbytes) in rows(group).items():
        if options.only and not any(part in name for part in options.only.split(",")):
            continue
        moved = pages_moved()
        seconds, virtual = measure(group, call, options.repeat, options.profile == device.rank)
        copies = copy_seconds(device, nbytes)
        if device.rank == 0:
            host = (seconds - meeting) / options.repeat
            text = " ".join(f"{copied * 1e3:9.1f} {host / copied:6.2f}" for copied in copies if nbytes)
            moved = pages_moved() - moved
            note = f"  ({moved} pages moved by the kernel)" if moved > 1000 else ""
            print(f"{name:30} {virtual / 1e6:10.2f} {host * 1e3:9.1f} {text}{note}", flush=True)
            copied = dict(zip(("clone_ms", "warm_copy_ms"), (c * 1e3 for c in copies), strict=True))
            written.append({"call": name, "wall_ms": host * 1e3, "emulated_us": virtual / 1e6, **copied})
    if options.json and device.rank == 0:
        options.json.write_text(json.dumps({"ranks": n, "rows": written}, indent=1) + "\n")


main()
