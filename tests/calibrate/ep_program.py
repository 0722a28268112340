"""A dispatch and a combine of `collectives.ep`, charged as the published case; rank 0 writes the times."""

import json
import sys

import numpy as np

import emulator
from collectives.calibrate.cases import EXPERTS, TOPK, parse_case
from collectives.calibrate.measure import Meter, charges_of
from collectives.calibrate.routing import experts_of
from collectives.ep import ExpertParallel

device = emulator.init(managed_bytes=32 << 20)
pair = [parse_case(f"{sys.argv[1]}:{op}:low-latency:{device.num_ranks}") for op in ("dispatch", "combine")]
costs = [charges_of(device, case) for case in pair]
ep = ExpertParallel(
    device, EXPERTS, 8, pair[0].tokens, TOPK, scheme=sys.argv[2],
    dispatch_costs=costs[0], combine_costs=costs[1],
    max_rows=3 * pair[0].tokens * TOPK, planes=tuple(map(int, sys.argv[3])),
)  # fmt: skip
meter = Meter(device)
x = np.full((pair[0].tokens, 8), device.rank, np.float32)
start = meter.together()
handle = ep.dispatch(x, experts_of(pair[0], device.rank).astype(np.int64))
took = [device.now_ps - start]
start = meter.together()
out = ep.combine(handle, handle.rows, np.full((pair[0].tokens, TOPK), 1 / TOPK, np.float32))
took.append(device.now_ps - start)
assert np.allclose(out, x)
means = [float(device.exchange(0, None, 0, tag=ps).tags.mean()) for ps in took]
emulator.finalize()
if device.rank == 0:
    with open(sys.argv[4], "w") as file:
        json.dump(means, file)
