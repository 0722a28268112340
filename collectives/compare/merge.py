"""Adds up what the ranks of a comparison measured. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from collectives.compare.report import Comparison, Measured, bound_by
from emulator.engine.posts import PORT_UNIT
from emulator.fabric import Unit
from emulator.planes import PLANES

_PORTS = [f"{plane} {port}" for plane in PLANES for port in ("egress", "ingress", "local")]
PORT_NAMES = [*_PORTS, *[""] * (PORT_UNIT - len(_PORTS)), *(unit.name for unit in Unit if unit >= 0)]


def merge(op: str, ranks: Sequence[Sequence[Mapping[str, Any]]]) -> Comparison:
    """Add up what the ranks measured, [ranks][rows]."""
    rows = tuple(_merged(parts) for parts in zip(*ranks, strict=True))
    return Comparison(op, len(ranks), rows)


def _merged(parts: Sequence[Mapping[str, Any]]) -> Measured:
    elapsed = max(p["end_ps"] for p in parts) - min(p["begin_ps"] for p in parts)
    kinds: dict[str, int] = {}
    for part in parts:
        for kind, count in part["transactions"].items():
            kinds[kind] = kinds.get(kind, 0) + count
    sizes = [size for p in parts for size in p["messages"]]
    return Measured(
        path=parts[0]["path"],
        size=parts[0]["size"],
        virtual_ps=elapsed,
        payload_bytes=sum(sizes),
        control_bytes=sum(p["wire_bytes"] for p in parts) - sum(sizes),
        transactions=kinds,
        host_calls=sum(p["calls"] for p in parts),
        bound_by=bound_by([p["busy_ps"] for p in parts], PORT_NAMES, elapsed),
        digests=tuple(p["digest"] for p in parts),
        control_each=parts[0]["control_each"],
        messages=len(sizes),
        message_bytes=max(sizes, default=0),
    )
