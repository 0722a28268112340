"""From what the jobs measured to the published rows' own quantities. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from collectives.calibrate.cases import CASES, OPERATIONS
from collectives.calibrate.p2p_job import BELOW_A_MB, LARGE

Value = float | list[float]
_US = 1e6


def exchanges(found: Mapping[str, Mapping[str, int]]) -> dict[str, Value]:
    """Rows of pushed exchanges, and their twins in GB/s: the mean rank's time; see `cases` for bytes."""
    values: dict[str, Value] = {}
    for case in CASES:
        if case.row not in found:
            continue
        times = found[case.row]
        us, rate = times["mean_ps"] / _US, 1000 * times["counted_bytes"] / times["mean_ps"]
        values[case.row] = us if case.twin else rate
        if case.twin:
            values[case.twin] = rate
    return values


def sweep(found: Mapping[str, Mapping[str, Mapping[str, int]]]) -> dict[str, Value]:
    """Rows of XCCL's dispatch and combine by batch: mean rank's curves, their crossing, their ends."""
    batches = sorted(int(batch) for batch in found)
    curves = {op: [found[str(b)][op]["mean_ps"] / _US for b in batches] for op in OPERATIONS}
    slower = [d - c for d, c in zip(curves["dispatch"], curves["combine"], strict=True)]
    return {
        "xccl.ep.crossover_bs": crossing(batches, slower),
        "xccl.ep.lat_max_axis": max(curves["dispatch"] + curves["combine"]),
        "xccl.ep.dispatch_bs4_bs128": [curves["dispatch"][0], curves["dispatch"][-1]],
        "xccl.ep.combine_bs4_bs128": [curves["combine"][0], curves["combine"][-1]],
    }


def crossing(at: list[int], difference: list[float]) -> float:
    """Return where a difference given at some points goes from above 0 to below, by straight lines; nan where
    it never does."""
    for (a, high), (b, low) in zip(
        zip(at, difference, strict=True), zip(at[1:], difference[1:], strict=True), strict=False
    ):
        if high > 0 >= low:
            return a + (b - a) * high / (high - low)
    return float("nan")


def in_situ(found: Mapping[str, Mapping[str, Mapping[str, int]]]) -> dict[str, Value]:
    """Rows of the fastest die's dispatch and combine inside a step."""
    (times,) = found.values()
    return {f"e2e.coloc.{op}.min": times[op]["min_ps"] / _US for op in OPERATIONS}


def relays(found: Mapping[str, Mapping[str, int]]) -> dict[str, Value]:
    """Rows of A2E and E2A, the mean of the dies that end it."""
    return {f"xccl.{name}.lat": times["mean_ps"] / _US for name, times in found.items()}


def point_to_point(found: Mapping[str, float]) -> dict[str, Value]:
    """Rows of XCCL's send."""
    small, two, many = (found[key] for key in (f"{BELOW_A_MB}:2", f"{LARGE}:2", f"{LARGE}:48"))
    return {
        "xccl.p2p.lat_under_1MB_2aiv_max": small,
        "xccl.p2p.lat_9216KB_2aiv_max": two,
        "xccl.p2p.lat_9216KB_2aiv": two,
        "xccl.p2p.lat_9216KB_48aiv": many,
        "xccl.p2p.speedup_9MB_48_vs_2_aiv_min": two / many,
    }


def links(found: Mapping[str, Any]) -> dict[str, Value]:
    """Rows of links, measured under their own names."""
    return {name: float(value) for name, value in found.items()}
