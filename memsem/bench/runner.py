"""The rank program of `superpod bench`: rank 0 and its peer run the loops, rank 0 writes what it measured.

python -m memsem.bench SPEC FILE          SPEC: a BenchSpec as JSON
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any

import emulator
from emulator import Device
from emulator.ledger import Ledger, total
from memsem.bench.labels import label_of
from memsem.bench.paths import MemPath, MpiPath, Path
from memsem.bench.shapes import BenchSpec, Sample
from memsem.bench.sliding import intervals, peak
from memsem.bench.verbs_path import VerbsPath

PATHS: dict[str, Callable[[Device, BenchSpec, int], Path]] = {
    "mem": MemPath,
    "verbs": VerbsPath,
    "mpi": MpiPath,
}


def main(argv: Sequence[str]) -> None:
    """Run the benchmark on this rank."""
    given = json.loads(argv[0])
    spec = BenchSpec(**{**given, "sizes": tuple(given["sizes"])})
    device = emulator.init()
    partner = spec.peer if device.rank == 0 else 0
    path = PATHS[spec.path](device, spec, partner)
    samples = [measure(device, path, spec, size) for size in spec.sizes]
    if device.rank == 0:
        FilePath(argv[1]).write_text(json.dumps([dataclasses.asdict(sample) for sample in samples]))


def measure(device: Device, path: Path, spec: BenchSpec, size: int) -> Sample:
    """One size: warm-up, then the iterations; collective, the sample is rank 0's."""
    path.prepare(size)
    loop(device, path, spec, size, spec.warmup)
    before = _ledger(device)
    times, peak_ps = loop(device, path, spec, size, spec.iterations)
    after = _ledger(device)
    count = spec.in_flight(size)
    operations = spec.iterations * count * (2 if spec.both_ways else 1)
    label = label_of(device.profile, spec)
    counts = _per_operation(spec, before, after, operations)
    return Sample(size, tuple(times), count, counts, label, peak_ps)


def loop(
    device: Device, path: Path, spec: BenchSpec, size: int, iterations: int
) -> tuple[list[float], float]:
    """Times in ps, one an iteration; a leg's is half of its round trip. And `Sample.peak_ps`."""
    body = {True: _round_trips, False: _singles}[spec.both_ways] if spec.kind == "lat" else _batches
    device.barrier()
    if device.rank not in (0, spec.peer):
        return [], 0
    if spec.sliding:
        assert isinstance(path, VerbsPath)
        return _sliding(device, path, spec.in_flight(size), size, iterations)
    return body(device, path, spec, size, iterations), 0


def _round_trips(device: Device, path: Path, spec: BenchSpec, size: int, iterations: int) -> list[float]:
    times = []
    for _ in range(iterations):
        start = device.now_ps
        for leg in (path.send_leg, path.receive_leg)[:: 1 if device.rank == 0 else -1]:
            leg(size)
        times.append((device.now_ps - start) / 2)
    return times


def _singles(device: Device, path: Path, spec: BenchSpec, size: int, iterations: int) -> list[float]:
    return [_timed(device, path.operation, size) for _ in range(iterations)] if device.rank == 0 else []


def _batches(device: Device, path: Path, spec: BenchSpec, size: int, iterations: int) -> list[float]:
    call = path.batch if device.rank == 0 else path.serve_batch
    return [_timed(device, call, size, spec.in_flight(size)) for _ in range(iterations)]


def _sliding(
    device: Device, path: VerbsPath, depth: int, size: int, iterations: int
) -> tuple[list[float], float]:
    if device.rank:
        path.serve_slide(depth, iterations)
        return [], 0
    starts, ends = path.slide(size, depth, iterations)
    return intervals(starts, ends), peak(starts, ends)


def _timed(device: Device, call: Callable[..., None], *arguments: int) -> float:
    start = device.now_ps
    call(*arguments)
    return device.now_ps - start


def _ledger(device: Device) -> Ledger:
    """All ranks' ledgers added up while nobody moves bytes."""
    device.barrier()
    summed = total(device.board.ledger)
    device.barrier()
    return summed


def _per_operation(spec: BenchSpec, before: Ledger, after: Ledger, operations: int) -> Mapping[str, float]:
    was, now = (ledger.as_dict().get(spec.path, {}) for ledger in (before, after))
    counts: dict[str, Any] = {kind: value["count"] for kind, value in now.items() if kind != "calls"}
    old = {kind: value["count"] for kind, value in was.items() if kind != "calls"}
    return {
        kind: round((n - old.get(kind, 0)) / operations, 6)
        for kind, n in counts.items()
        if n > old.get(kind, 0)
    }
