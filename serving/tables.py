"""A replay's result as tables: what a user of vLLM's bench expects, and where virtual time went."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.table import Table

from emulator.clock import time_said
from serving.placement import EMPTY, Placement, home_rank
from serving.schedule import describe

_METRICS = (
    ("ttft_ms", "Time to first token"),
    ("tpot_ms", "Time per output token (first excluded)"),
    ("itl_ms", "Inter-token latency"),
    ("e2el_ms", "End-to-end latency"),
)
_CLASSES = ("die itself", "same chip", "same node", "pod")


def serving_table(result: Mapping[str, Any]) -> Table:
    """Counts, throughput and latencies under the names of vLLM's `bench serve`; all in emulated time."""
    table = Table(title=f"Serving benchmark result ({time_said(result.get('wall'))})", show_header=False)
    table.add_column("what")
    table.add_column("value", justify="right")
    table.add_row("Successful requests", str(result["completed"]))
    table.add_row("Failed requests", str(result["failed"]))
    table.add_row("Benchmark duration (s)", f"{result['virtual_duration_s']:.3f}")
    table.add_row("Total input tokens (priced)", f"{result['input_tokens']:,}")
    table.add_row("Total generated tokens", f"{result['output_tokens']:,}{_truncated(result)}")
    for key, name in (
        ("request_throughput", "Request throughput (req/s)"),
        ("output_throughput", "Output token throughput (tok/s)"),
        ("total_token_throughput", "Total token throughput (tok/s)"),
    ):
        table.add_row(name, _number(result[key]))
    for key, name in _METRICS:
        table.add_section()
        for statistic, word in (("mean", "Mean"), ("p50", "Median"), ("p99", "P99")):
            table.add_row(f"{word} {name.lower()} (ms)", _number(result[key][statistic]))
    return table


def _truncated(result: Mapping[str, Any]) -> str:
    count = result["truncated_outputs"]
    return f" ({count} requests cut short by --max-output)" if count else ""


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"


def emulator_table(result: Mapping[str, Any]) -> Table:
    """Where virtual time went, bytes by distance, what bound the run, and what the host paid."""
    table = Table(title="Emulated pod", show_header=False)
    table.add_column("what")
    table.add_column("value", justify="right")
    for bucket, part in result["virtual_time"].items():
        table.add_row(
            f"Virtual time: {bucket}", f"{part['mean_s']:.4f} s a rank ({100 * part['share']:.1f} %)"
        )
    table.add_section()
    for name, size in result["bytes_by_class"].items():
        table.add_row(f"Bytes charged: {name}", f"{size / 1e9:,.3f} GB")
    work = result["work"]
    table.add_row("Bytes really moved", f"{work['functional_bytes_received'] / 1e6:,.1f} MB")
    table.add_row(
        "Tokens computed / charged", f"{result['functional_tokens']:,} / {result['priced_tokens']:,}"
    )
    for name, text in (*_quantization_rows(result.get("quantization")), *_cache_rows(result.get("cache"))):
        table.add_row(name, text)
    table.add_section()
    bottleneck = result["bottleneck"]
    share = f"{100 * bottleneck['share']:.0f} % of the time with work"
    table.add_row("Binding resource", f"{bottleneck['resource']} ({share})")
    table.add_row("Tokens and logits equal reference", _verdict(result["tokens_equal_reference"]))
    broken = [name for name, holds in result["invariants"].items() if not holds]
    table.add_row("Invariants", f"BROKEN: {', '.join(broken)}" if broken else "all hold")
    for name, text in _schedule_rows(result["schedule"]):
        table.add_row(name, text)
    table.add_row("Trace", result["trace_sha256"][:16])
    table.add_section()
    host = result["host"]
    if "wall_s" in host:  # not known where somebody's own mpirun started the ranks
        table.add_row("Wall time (start-up)", f"{host['wall_s']:.1f} s ({host['startup_wall_s']:.1f} s)")
        table.add_row("Peak memory of all processes", f"{host['pss_gb']:.2f} GB")
    return table


def _quantization_rows(facts: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    if facts is None:
        return []
    kept, plain = facts["kv_bytes_per_token"], facts["kv_bytes_per_token_float32"]
    rows = [("KV kept a token, computed model (float32)", f"{kept:,} B ({plain:,} B)")]
    if (error := facts["logit_error"]) is not None:
        off = f"{100 * error['relative_rms']:.2f} % of their spread (bound {100 * error['bound']:g} %)"
        rows.append(("INT8 logits off, experts equal", off))
        own = (
            f"{100 * error['own_relative_rms']:.2f} %, {100 * error['rows_rerouted']:.1f} % of choices differ"
        )
        rows.append(("INT8 logits off, own experts", own))
    return rows


def _cache_rows(cache: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    if cache is None:
        return []
    rows = [("Preemptions", f"{cache['preemptions']:,}")]
    if cache["hit_rate"] is not None:
        found = f"{cache['hit']:,} of {cache['queried']:,} tokens ({100 * cache['hit_rate']:.1f} %)"
        rows.append(("Prefixes found", found))
    if cache["kv_load_bytes"] or cache["kv_store_bytes"]:
        moved = f"{cache['kv_load_bytes'] / 1e9:,.3f} / {cache['kv_store_bytes'] / 1e9:,.3f} GB"
        rows.append(("KV loaded / stored", moved))
    return rows


def _schedule_rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = [] if facts["followed"] is None else [("Schedule followed", str(facts["followed"]))]
    compared = facts["compared"]
    if compared is not None:
        rows.append(("Schedule compared with", f"{compared['with']} ({compared['duration_s']:.6f} s)"))
        rows.append(("First differing decision", describe(compared["first_difference"])))
        rows.append(("Anomaly", compared["anomaly"] or "none"))
    return rows


def _verdict(value: bool | None) -> str:
    return {None: "not checked", True: "yes", False: "NO"}[value]


def bytes_by_class(counts: list[int]) -> dict[str, int]:
    """Charged bytes by distance, named."""
    return dict(zip(_CLASSES, counts, strict=True))


def placement_table(placement: Placement) -> Table:
    """Ranks with the same kind of load on one line: which experts live where."""
    table = Table(
        title=f"Expert placement on {placement.num_ranks} ranks, {placement.slots_per_rank} slots each"
    )
    for column in ("Ranks", "Routed", "Shared", "Replicas", "Spare slots", "Experts"):
        table.add_column(column, justify="left" if column in ("Ranks", "Experts") else "right")
    rows = [_placement_row(placement, rank) for rank in range(placement.num_ranks)]
    first = 0
    for rank in range(1, len(rows) + 1):
        if rank == len(rows) or rows[rank][:4] != rows[first][:4]:
            ranks = str(first) if rank - first == 1 else f"{first}-{rank - 1}"
            ends = dict.fromkeys((rows[first][4], rows[rank - 1][4]))
            experts = " ... ".join(ends)
            table.add_row(ranks, *map(str, rows[first][:4]), experts)
            first = rank
    return table


def _placement_row(placement: Placement, rank: int) -> tuple[int, int, int, int, str]:
    slots = placement.slot_expert[rank]
    held = slots[slots != EMPTY]
    num_routed = placement.num_routed
    shared = int((held == num_routed).sum())
    routed = sum(
        e < num_routed and home_rank(e, placement.routed_ranks, num_routed) == rank for e in held.tolist()
    )
    return routed, shared, len(held) - routed - shared, int((slots == EMPTY).sum()), _ranges(held, placement)


def _ranges(held: np.ndarray[Any, Any], placement: Placement) -> str:
    parts: list[str] = []
    experts = sorted(int(e) for e in held if e < placement.num_routed)
    start = 0
    for i in range(1, len(experts) + 1):
        if i == len(experts) or experts[i] != experts[i - 1] + 1:
            parts.append(str(experts[start]) if i - start == 1 else f"{experts[start]}-{experts[i - 1]}")
            start = i
    if len(experts) < len(held):
        parts.append("shared")
    return ", ".join(parts) if parts else "none"
