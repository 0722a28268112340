"""Results of collectives as text that existing tools parse: nccl-tests, OSU micro-benchmarks, JSON. Pure.

nccl-tests' columns, out of place and in place: time is the slowest rank's, mean over iterations, as with its
`-a 3`; bandwidths GB/s (10^9); N/A where there is no form in place. OSU micro-benchmarks 7: average, least
and most over ranks, microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from collectives.bench.shapes import DTYPES, REDUCING, ROOTED, CollSample, CollSpec
from emulator.clock import clock_facts, clock_said

_OSU_NAMES = {
    "all_reduce": "Allreduce",
    "all_gather": "Allgather",
    "reduce_scatter": "Reduce_scatter_block",
    "all_to_all": "Alltoall",
    "all_gather_v": "Allgatherv",
    "all_to_all_v": "Alltoallv",
    "broadcast": "Broadcast",
    "reduce": "Reduce",
    "gather": "Gather",
    "scatter": "Scatter",
    "barrier": "Barrier",
}


Wall = Mapping[str, Any] | None
"""The honesty report of a run under the wall clock (`emulator.clock`)."""


def render(spec: CollSpec, samples: Sequence[CollSample], form: str, wall: Wall = None) -> str:
    """Return the whole output in one of `shapes.FORMATS`, ending with a newline."""
    return {"nccl": nccl, "osu": osu, "json": as_json}[form](spec, samples, wall)


def nccl(spec: CollSpec, samples: Sequence[CollSample], wall: Wall = None) -> str:
    """The table of {all_reduce,...}_perf."""
    first, halves = samples[0], [(s, *half) for s in samples for half in s.halves()]
    wrong, bandwidths = sum(bad for *_, bad in halves), [s.busbw(spec.coll, us) for s, us, _ in halves]
    used = ", ".join(dict.fromkeys(sample.algorithm for sample in samples))
    lines = [
        f"# nThread 1 nGpus 1 nRanks {first.ranks} minBytes {samples[0].size} maxBytes {samples[-1].size} "
        f"warmup iters: {spec.warmup} iters: {spec.iterations} validation: 1",
        f"# {spec.coll}, algorithm {used}; {'virtual' if wall is None else 'emulated'} time of the "
        "slowest rank; "
        "GB/s = 10^9 bytes a second",
        *_clock(wall),
        f"# moved and checked: {moved(spec, samples)}",
        "#",
        "#" + " " * 62 + "out-of-place" + " " * 23 + "in-place",
        "#       size         count      type   redop    root" + "     time   algbw   busbw #wrong" * 2,
        "#        (B)    (elements)                        " + "       (us)  (GB/s)  (GB/s)       " * 2,
        *(_nccl_row(spec, sample) for sample in samples),
        f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}",
        f"# Avg bus bandwidth    : {sum(bandwidths) / len(bandwidths):g}",
        "#",
    ]
    return "\n".join(lines) + "\n"


def moved(spec: CollSpec, samples: Sequence[CollSample]) -> str:
    """How much of the buffers was really moved and checked."""
    parts = [sample for sample in samples if sample.real < sample.size]
    if not parts:
        return "all bytes of every size"
    whole = [sample.size for sample in samples if sample.real == sample.size]
    first = f"all bytes of sizes up to {max(whole)}; " if whole else ""
    return (
        f"{first}{parts[0].real} bytes of sizes from {parts[0].size} on, whose time is that of all bytes "
        f"(--real {spec.real_bytes}, of all ranks together)"
    )


def _nccl_row(spec: CollSpec, s: CollSample) -> str:
    redop = spec.redop if spec.coll in REDUCING else "none"
    root = spec.root if spec.coll in ROOTED else -1
    head = f"{s.size:12d}  {s.count:12d}  {spec.dtype:>8}  {redop:>6}  {root:6d}"
    halves = [
        f"  {_time(us)}  {_rate(s.algbw(us))}  {_rate(s.busbw(spec.coll, us))}  {wrong:5d}"
        for us, wrong in s.halves()
    ]
    return head + "".join([*halves, f"  {'N/A':>7}  {'N/A':>6}  {'N/A':>6}  {'N/A':>5}"][:2])


def _time(us: float) -> str:
    """As nccl-tests: seven characters."""
    return f"{us:7.0f}" if us >= 10000 else f"{us:7.1f}" if us >= 100 else f"{us:7.2f}"


def _rate(value: float) -> str:
    return f"{value:6.2f}" if value < 1000 else f"{value:6.0f}"


def _clock(wall: Wall) -> list[str]:
    return [] if wall is None else [f"# clock: {clock_said(wall)}"]


def osu(spec: CollSpec, samples: Sequence[CollSample], wall: Wall = None) -> str:
    """The table of osu_allreduce and its kin with -f."""
    title = f"# OSU MPI {_OSU_NAMES[spec.coll]} Latency Test"
    columns = ("Avg Latency(us)", "Min Latency(us)", "Max Latency(us)")
    header = f"{'# Size':<10}" + "".join(f"{name:>18}" for name in columns) + f"{'Iterations':>12}"
    rows = [
        f"{_osu_size(spec, s):<10}"
        + "".join(f"{us:>18.2f}" for us in (s.average_us, s.least_us, s.most_us))
        + f"{spec.iterations:>12}"
        for s in samples
    ]
    return "\n".join([title, *_clock(wall), header, *rows]) + "\n"


def _osu_size(spec: CollSpec, sample: CollSample) -> int:
    """OSU's size is that of one rank's message: the block, where there is a block for each rank."""
    return sample.count * DTYPES[spec.dtype]


def as_json(spec: CollSpec, samples: Sequence[CollSample], wall: Wall = None) -> str:
    """A list of rows; bandwidths GB/s (10^9), times microseconds; and what the wall clock has kept, if it was
    that."""
    return json.dumps([json_row(spec, sample) | clock_facts(wall) for sample in samples], indent=2) + "\n"


def json_row(spec: CollSpec, s: CollSample) -> dict[str, Any]:
    """One size as a row of `as_json`."""
    return {
        "collective": spec.coll,
        "algorithm": s.algorithm,
        "ranks": s.ranks,
        "size_bytes": s.size,
        "count": s.count,
        "type": spec.dtype,
        "redop": spec.redop if spec.coll in REDUCING else None,
        "root": spec.root if spec.coll in ROOTED else None,
        "time_us": round(s.most_us, 6),
        "average_us": round(s.average_us, 6),
        "least_us": round(s.least_us, 6),
        "algbw_GBps": round(s.algbw(s.most_us), 6),
        "busbw_GBps": round(s.busbw(spec.coll, s.most_us), 6),
        "wrong": s.wrong,
        "in_place": _in_place(spec, s),
        "moved_bytes": s.real,
        "iterations": spec.iterations,
    }


def _in_place(spec: CollSpec, s: CollSample) -> dict[str, Any] | None:
    us = s.in_place_us
    if us is None:
        return None
    return {
        "time_us": round(us, 6),
        "algbw_GBps": round(s.algbw(us), 6),
        "busbw_GBps": round(s.busbw(spec.coll, us), 6),
        "wrong": s.in_place_wrong,
    }
