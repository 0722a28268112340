"""The program of the ranks: `python -m serving.published CASES KEPT`. Rank 0 writes each case as it ends."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

import emulator
from collectives.calibrate.measure import Meter
from emulator import Device
from serving.decode.jitter import Jitter
from serving.published.cases import Case, parse_case
from serving.published.decode import Decode
from serving.published.kept import Kept
from serving.published.lanes import Lane, Pulled, Pushed, costs_of
from serving.published.prefill import Prefill
from serving.published.routing import Routing
from serving.published.system import System, load_system, streams_at
from serving.published.timeline import Timeline

MANAGED_BYTES: Final = 16 << 20
SEED: Final = 0


def main(what: str, folder: str) -> None:
    """Measure the cases of a JSON list of (case, passes, attention cores), all of as many ranks as the run
    has, into the folder."""
    device = emulator.init(managed_bytes=MANAGED_BYTES)
    meter, asked = Meter(device), json.loads(what)
    kept = Kept(Path(folder))
    for number, (text, passes, cores) in enumerate(asked, 1):
        case = replace(parse_case(text), passes=passes, attention_cores=cores)
        found = measure(device, meter, case) | {"attention_cores": cores}
        if device.rank == 0:
            kept.write(case, found)
            print(f"calibrate: {number} of {len(asked)} on {device.num_ranks} ranks: {text}", file=sys.stderr)
    emulator.finalize()


def measure(device: Device, meter: Meter, case: Case) -> dict[str, Any]:
    """One case on this rank."""
    system = load_system(case.system)
    if case.attention_cores:
        system = streams_at(system, case.attention_cores)
    routing = Routing(case.ranks, 1.0 if case.balanced else system.expert_imbalance, SEED)
    jitter = Jitter.from_entries(system.whole.entries, SEED)
    line = Timeline(meter, _lane(device, meter, case, system, routing), jitter)
    if case.phase == "prefill":
        return Prefill(case, system, line, routing.slots_per_die).run()
    draw = np.random.default_rng((SEED, device.rank, 0xDEC0DE))
    kv = draw.integers(case.low, case.high + 1, case.batch)
    return Decode(case, system, line, routing.slots_per_die, kv).run()


def _lane(device: Device, meter: Meter, case: Case, system: System, routing: Routing) -> Lane:
    """Exchanges at the charges of the stream they run on."""
    tokens = case.tokens // case.microbatches
    model = system.moe if case.phase == "decode" and case.microbatches == 2 else system.whole
    hidden = model.shape.hidden
    out, back = (
        costs_of(system.library, model.profile, operation, case.ranks, hidden, tokens)
        for operation in ("dispatch", "combine")
    )
    if system.library.pulls:
        return Pulled(device, routing, out, back, tokens)
    return Pushed(device, meter, routing, out, back, tokens)


if __name__ == "__main__":
    main(*sys.argv[1:])
