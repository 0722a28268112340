"""The rank program of `superpod compare`: every size over every path, measured, one JSON file a rank.

    python -m collectives.compare SPEC DIRECTORY

SPEC is JSON: op, sizes, repeat, seed, paths. The command reads the files and merges them (`merge.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import emulator
from collectives.compare.carriers import Carrier, MemCarrier, MpiCarrier
from collectives.compare.verbs_carrier import VerbsCarrier
from collectives.compare.workloads import Setting, Workload, make
from emulator import Device
from emulator.ledger import Ledger

CARRIERS: dict[str, Callable[[Device, Workload], Carrier]] = {
    "mem": MemCarrier,
    "verbs": VerbsCarrier,
    "mpi": MpiCarrier,
}


def main(argv: Sequence[str]) -> None:
    """Run the comparison on this rank and write its file."""
    spec, directory = json.loads(argv[0]), Path(argv[1])
    device = emulator.init()
    largest = _workload(spec, device, max(spec["sizes"]))
    rows = []
    for path in spec["paths"]:
        carrier = CARRIERS[path](device, largest)
        rows += [
            _measure(device, path, carrier, _workload(spec, device, size), size) for size in spec["sizes"]
        ]
    (directory / f"{device.rank}.json").write_text(json.dumps(rows))


def _workload(spec: Mapping[str, Any], device: Device, size: int) -> Workload:
    return make(spec["op"], Setting(device.num_ranks, size, spec["repeat"], spec["seed"]), device.rank)


def _measure(device: Device, path: str, carrier: Carrier, workload: Workload, size: int) -> dict[str, Any]:
    """One path at one size on this rank. Between barriers nobody else moves bytes."""
    before = _counters(device)
    device.barrier()
    begin_ps, messages = device.now_ps, []
    for step in range(workload.rounds):
        sends = workload.sends(step)
        messages += [send.data.size for send in sends]
        workload.take(step, carrier.round(sends, workload.expected(step)))
    end_ps = device.now_ps
    carrier.settle()
    device.barrier()
    row, busy = (after - b for after, b in zip(_counters(device), before, strict=True))
    ledger = Ledger(row).as_dict()
    kinds = {k: v for k, v in ledger.get(path, {}).items() if k != "calls"}
    return {
        "path": path,
        "size": size,
        "begin_ps": begin_ps,
        "end_ps": end_ps,
        "wire_bytes": sum(ledger["wire_bytes"].values()),
        "control_each": device.profile.integer("message.control_bytes") if path == "mpi" else 0,
        "transactions": {name: kind["count"] for name, kind in kinds.items()},
        "calls": ledger.get(path, {}).get("calls", 0),
        "busy_ps": busy.tolist(),
        "digest": hashlib.sha256(workload.result()).hexdigest(),
        "messages": messages,
    }


def _counters(device: Device) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """My ledger's row and my ports' busy times, as copies, while nobody moves bytes."""
    device.barrier()
    busy = device.engine.statistics().all_busy_ps[device.rank].copy()
    return device.board.ledger[device.rank].copy(), busy
