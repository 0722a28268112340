"""Benchmark results as text that existing tools parse: perftest, OSU micro-benchmarks, JSON. Pure.

Headers follow linux-rdma/perftest (`src/perftest_parameters.h`: RESULT_FMT, RESULT_FMT_LAT) and
OSU micro-benchmarks 7 (one-sided and pt2pt). perftest's bandwidths are MiB/s (2^20), OSU's MB/s (10^6);
both headers say so. Latency is half a round trip for one-way operations in both.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from emulator.clock import clock_facts, clock_said
from memsem.bench.shapes import BenchSpec, Sample

_RULE = "-" * 87
_PERFTEST_NAMES = {
    "send": "Send",
    "write": "RDMA_Write",
    "read": "RDMA_Read",
    "cas": "Atomic_CMP_AND_SWP",
    "put": "Memory_Put",
    "put_signal": "Memory_Put_Signal",
    "get": "Memory_Get",
}
_OSU_NAMES = {
    "put": "MPI_Put",
    "put_signal": "MPI_Put",
    "write": "MPI_Put",
    "get": "MPI_Get",
    "read": "MPI_Get",
    "cas": "MPI_Compare_and_swap",
    "send": "MPI",
}
_BW_HEADER = " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]"
_LAT_HEADER = (
    " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]"
    "   99% percentile[usec]   99.9% percentile[usec]"
)
MIB = 1 << 20


Wall = Mapping[str, Any] | None
"""The honesty report of a run under the wall clock (`emulator.clock`)."""


def render(spec: BenchSpec, samples: Sequence[Sample], form: str, wall: Wall = None) -> str:
    """Return the whole output in one of the formats of `shapes.FORMATS`, ending with a newline."""
    return {"perftest": perftest, "osu": osu, "json": as_json}[form](spec, samples, wall)


def as_json(spec: BenchSpec, samples: Sequence[Sample], wall: Wall = None) -> str:
    """A list of rows: size_bytes, latency_us, bandwidth_GBps (10^9), transactions by kind, label; and what
    the wall clock has kept, if it was that."""
    return json.dumps([json_row(sample) | clock_facts(wall) for sample in samples], indent=2) + "\n"


def json_row(sample: Sample) -> dict[str, Any]:
    """One size as a row of `as_json`; transactions are of all ranks, for one operation."""
    return {
        "size_bytes": sample.size,
        "latency_us": round(sample.average_us, 6),
        "bandwidth_GBps": round(sample.bytes_per_s / 1e9, 6),
        "transactions": dict(sample.transactions),
        "label": sample.label,
    }


# --- perftest -----------------------------------------------------------------------------------------


def perftest(spec: BenchSpec, samples: Sequence[Sample], wall: Wall = None) -> str:
    """The table of ib_{send,write,read,atomic}_{lat,bw}; "rate" is the table of a bandwidth test."""
    kind = "Latency" if spec.kind == "lat" else "BW"
    title = f"{_PERFTEST_NAMES[spec.op]} {kind} Test".center(87).rstrip()
    lines = [_RULE, title, *_parameters(spec, wall), _RULE]
    if spec.kind == "lat":
        lines += [_LAT_HEADER, *(_perftest_latency(sample) for sample in samples)]
    else:
        lines += [_BW_HEADER, *(_perftest_bandwidth(sample) for sample in samples)]
    return "\n".join([*lines, _RULE]) + "\n"


def _parameters(spec: BenchSpec, wall: Wall) -> list[str]:
    device = f"superpod ({spec.path}{', ' + spec.engine if spec.path == 'mem' else ''})"
    pairs = [("Device", device), ("Pair", spec.pair), ("Clock", clock_said(wall))]
    if spec.kind != "lat":
        pairs.append(("TX depth", str(spec.batch)))
        pairs.append(("Queue", "kept full" if spec.sliding else "filled, then waited for"))
    return [f" {name:<16}: {value}" for name, value in pairs]


def _perftest_latency(sample: Sample) -> str:
    times = sorted(ps / 1e6 for ps in sample.times_ps)
    stdev = statistics.pstdev(times)
    typical = statistics.median_low(times)
    columns = [times[0], times[-1], typical, statistics.fmean(times), stdev]
    columns += [_percentile(times, 0.99), _percentile(times, 0.999)]
    return f" {sample.size:<7} {len(times):<14}" + "".join(f" {value:<15.3f}" for value in columns).rstrip()


def _percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def _perftest_bandwidth(sample: Sample) -> str:
    count = len(sample.times_ps) * sample.batch
    peak, average = sample.peak_bytes_per_s / MIB, sample.bytes_per_s / MIB
    rate = sample.messages_per_s / 1e6
    return f" {sample.size:<10} {count:<14} {peak:<19.2f} {average:<21.2f} {rate:.6f}"


# --- OSU ----------------------------------------------------------------------------------------------


def osu(spec: BenchSpec, samples: Sequence[Sample], wall: Wall = None) -> str:
    """The table of osu_{put,get,cas}_{latency,bw}, osu_latency, osu_bw or osu_mbw_mr ("rate")."""
    version = metadata.version("superpod")
    if spec.kind == "rate":
        head = [
            f"# OSU MPI Multiple Bandwidth / Message Rate Test v{version}",
            f"# [ pairs: 1 ] [ window size: {spec.batch} ]",
            *_osu_clock(wall),
            f"# {'Size':<20}{'MB/s':>18}{'Messages/s':>22}",
        ]
        return _table(head, [_osu_rate(sample) for sample in samples])
    test, unit = ("Latency", "Latency (us)") if spec.kind == "lat" else ("Bandwidth", "Bandwidth (MB/s)")
    head = [f"# OSU {_OSU_NAMES[spec.op]} {test} Test v{version}"]
    if spec.op != "send":
        head += ["# Window creation: symmetric heap", f"# Synchronization: {_synchronisation(spec)}"]
    head += [*_osu_clock(wall), f"# {'Size':<10}{unit:>22}"]
    values = [s.average_us if spec.kind == "lat" else s.bytes_per_s / 1e6 for s in samples]
    rows = [f"{s.size:<12}{value:>22.2f}" for s, value in zip(samples, values, strict=True)]
    return _table(head, rows)


def _osu_clock(wall: Wall) -> list[str]:
    return [] if wall is None else [f"# Clock: {clock_said(wall)}"]


def _synchronisation(spec: BenchSpec) -> str:
    if spec.path == "verbs":
        return "completion queue" if not spec.both_ways else "receiver polls memory, half round trip"
    if spec.both_ways:
        return "put_signal and signal_wait_until, half round trip"
    return "quiet" if spec.kind != "lat" else "blocking call"


def _osu_rate(sample: Sample) -> str:
    return f"{sample.size:<22}{sample.bytes_per_s / 1e6:>18.2f}{sample.messages_per_s:>22.2f}"


def _table(head: list[str], rows: list[str]) -> str:
    return "\n".join(["", *head, *rows]) + "\n"
