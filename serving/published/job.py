"""The program of the ranks: `python -m serving.published CASES.json OUT.json`. Rank 0 writes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np

import emulator
from collectives.calibrate.measure import Meter
from emulator import Device
from serving.decode.jitter import Jitter
from serving.published.cases import Case, parse_case
from serving.published.decode import Decode
from serving.published.lanes import Lane, Pulled, Pushed, costs_of
from serving.published.prefill import Prefill
from serving.published.routing import Routing
from serving.published.system import System, load_system
from serving.published.timeline import Timeline

MANAGED_BYTES: Final = 16 << 20
SEED: Final = 0


def main(what: str, out: str) -> None:
    """Measure the cases of a JSON list of (case, passes): all of as many ranks as the run has."""
    device = emulator.init(managed_bytes=MANAGED_BYTES)
    meter, found = Meter(device), {}
    for text, passes in json.loads(what):
        case = parse_case(text)
        found[text] = measure(device, meter, Case(**{**case.__dict__, "passes": passes}))
    emulator.finalize()
    if device.rank == 0:
        Path(out).write_text(json.dumps(found))


def measure(device: Device, meter: Meter, case: Case) -> dict[str, Any]:
    """One case on this rank."""
    system = load_system(case.system)
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
