"""The program of the ranks: measures exchanges; rank 0 writes the times.

python -m collectives.calibrate job PROFILE|CASES out.json
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import emulator
from collectives.calibrate.cases import CASES, Case, parse_case
from collectives.calibrate.hops import two_hops
from collectives.calibrate.measure import Meter, Moment, one_hop
from collectives.calibrate.routing import experts_of, rows_to
from collectives.calibrate.xccl_job import pulled
from emulator.device import BARRIER_CHANNEL


def _measure(meter: Meter, case: Case) -> Moment:
    if case.library == "xccl":
        return pulled(meter.device, case)
    return two_hops(meter, case) if case.counted == "node" else one_hop(meter, case)


def main(what: str, out: str) -> None:
    """Measure the published cases of a machine, or those of a JSON list as `parse_case` reads them."""
    device = emulator.init()
    meter, found = Meter(device), {}
    asked = [parse_case(text) for text in json.loads(what)] if what.startswith("[") else None
    for case in asked or [case for case in CASES if case.machine == what]:
        start, end = _measure(meter, case)
        took = device.exchange(BARRIER_CHANNEL, None, 0, tag=end - start).tags[: case.ranks]
        if device.rank == 0:
            parts = case.nodes if case.counted == "node" else case.ranks
            rows = int(rows_to(experts_of(case, 0), parts, case.counted != "expert").sum())
            found[case.row] = {
                "mean_ps": int(np.rint(took.mean())), "min_ps": int(took.min()), "max_ps": int(took.max()),
                "counted_bytes": rows * case.row_bytes,
            }  # fmt: skip
    emulator.finalize()
    if device.rank == 0:
        Path(out).write_text(json.dumps(found))
