"""The program of the ranks for A2E and E2A: 160 attention and 288 expert dies, 96 tokens a die, trampolines.

    python -m collectives.calibrate a2e_job out.json

Routing: 8 of 256 routed experts at random and one of 32 shared by rank, so 864 rows leave a die and 480 reach
one. Costs are those of `collectives.xccl.relay_costs`, from XCCL's price list. All begin together; A2E ends
when an expert die has its rows, E2A when an attention die has its sums.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import emulator
from collectives.calibrate.cases import HIDDEN, TOPK
from collectives.calibrate.measure import Meter
from collectives.calibrate.xccl_job import MANAGED_BYTES, routing
from collectives.xccl.relay import A2E
from collectives.xccl.relay_costs import a2e_costs, e2a_costs
from emulator.device import BARRIER_CHANNEL

ATTENTION, EXPERT_DIES, TOKENS = 160, 288, 96
_FUNCTIONAL = 8


def main(out: str) -> None:
    """Measure and let rank 0 write {"a2e": {...}, "e2a": {...}}."""
    device = emulator.init(managed_bytes=MANAGED_BYTES)
    sent_rows = TOKENS * (TOPK + 1)
    relay = A2E(
        device, range(ATTENTION), range(ATTENTION, ATTENTION + EXPERT_DIES), 1, _FUNCTIONAL, TOKENS, TOPK + 1,
        max_rows=3 * sent_rows,
        a2e_costs=a2e_costs(device.profile, HIDDEN, sent_rows),
        e2a_costs=e2a_costs(device.profile, HIDDEN, sent_rows * ATTENTION // EXPERT_DIES),
    )  # fmt: skip
    meter = Meter(device)
    x = np.full((TOKENS, _FUNCTIONAL), device.rank, np.float32)
    start = meter.together()
    if relay.role == "attention":
        sent = relay.a2e_send(x, routing(device.rank, TOKENS, True))
    else:
        arrived = relay.a2e_receive()
    forth = 0 if relay.role == "attention" else device.now_ps - start
    start = meter.together()
    if relay.role == "attention":
        weights = np.full((TOKENS, TOPK + 1), 1 / (TOPK + 1), np.float32)
        if not np.allclose(relay.e2a_receive(sent, weights), x, rtol=1e-5):
            raise AssertionError(f"rank {device.rank}: identity experts gave other rows back")
    else:
        relay.e2a_send(arrived, arrived.rows)
    back = device.now_ps - start if relay.role == "attention" else 0
    both = [device.exchange(BARRIER_CHANNEL, None, 0, tag=ps).tags for ps in (forth, back)]
    emulator.finalize()
    if device.rank == 0:
        found = {
            name: {
                "mean_ps": int(ps[ps > 0].mean()),
                "min_ps": int(ps[ps > 0].min()),
                "max_ps": int(ps.max()),
            }
            for name, ps in zip(("a2e", "e2a"), both, strict=True)
        }
        Path(out).write_text(json.dumps(found))
