"""From what the jobs measured to the published rows' own quantities. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from collectives.calibrate.cases import CASES, OPERATIONS
from collectives.calibrate.p2p_job import BELOW_A_MB, LARGE
from emulator.errors import UsageError

Value = float | list[float]
DECODE_ROWS: Final = {
    "iteration": "e2e.coloc.iteration",
    "time per output token": "e2e.coloc.tpot",
    "tokens per second and chip": "e2e.coloc.tput_chip",
    "share of QuantBatchMatmul": "e2e.coloc.share.quant_batch_matmul",
    "share of MultiLatentAttention": "e2e.coloc.share.mla",
    "share of MoE-Combine": "e2e.coloc.share.combine",
    "share of MoE-Dispatch": "e2e.coloc.share.dispatch",
    "share of Others": "e2e.coloc.share.others",
    "share of MlaPreprocess": "e2e.coloc.share.mla_preprocess",
    "MoE-Dispatch average": "e2e.coloc.dispatch.avg",
    "MoE-Dispatch maximum": "e2e.coloc.dispatch.max",
    "MoE-Combine average": "e2e.coloc.combine.avg",
    "MoE-Combine maximum": "e2e.coloc.combine.max",
}
"""Figures of `superpod decode` and the rows they are."""
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
    """Rows of A2E and E2A, the slowest die's."""
    return {f"xccl.{name}.lat": times["max_ps"] / _US for name, times in found.items()}


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


def decode(found: Mapping[str, Any]) -> dict[str, Value]:
    """Rows of a decode iteration, from what `superpod decode --json` wrote.

    Raises: UsageError, it is no such file or not of the published case.
    """
    try:
        rows = {row["name"]: row for row in found["rows"]}
        given = {name: rows[name]["emulated"] for name in DECODE_ROWS}
        published = [rows[name]["published"] for name in DECODE_ROWS]
        chips = found["case"]["ranks"] / 2
    except (KeyError, TypeError) as error:
        lacks = f"no {error}" if isinstance(error, KeyError) else "its rows have another form"
        raise UsageError(f"--decode: not what superpod decode --json writes: {lacks}") from None
    if None in published:
        raise UsageError("--decode: not the published case: superpod decode -n 288 --json FILE")
    values: dict[str, Value] = {DECODE_ROWS[name]: float(value) for name, value in given.items()}
    values["e2e.coloc.tput_total"] = chips * given["tokens per second and chip"]
    both = given["share of MoE-Dispatch"] + given["share of MoE-Combine"]
    return values | {"e2e.coloc.dispatch_combine_share": float(both)}


def links(found: Mapping[str, Any]) -> dict[str, Value]:
    """Rows of links, measured under their own names."""
    return {name: float(value) for name, value in found.items()}
