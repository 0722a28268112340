"""Six ways of expert parallelism on the same tokens: same sums, other times and bytes.

superpod run -n 8 examples/ep_schemes.py
"""

import numpy as np

import emulator
from collectives import EpCosts
from collectives.ep import SCHEMES, ExpertParallel, imbalance, routing

TOKENS, TOPK, HIDDEN, SLOTS = 32, 4, 64, 4
DISPATCH, COMBINE = EpCosts(7680), EpCosts(14336)  # DeepSeek-R1's rows: INT8 with a scale, bfloat16


def main() -> None:
    """Dispatch and combine by every scheme; rank 0 prints a table."""
    device = emulator.init()
    experts = SLOTS * device.num_ranks
    x = np.random.default_rng(device.rank).standard_normal((TOKENS, HIDDEN)).astype(np.float32)
    ids, weights = routing("zipf", TOKENS, experts, TOPK, rank=device.rank)
    if device.rank == 0:
        print(f"{device.num_ranks} ranks, busiest expert at {imbalance(ids, experts):.1f} times the mean")
        print(f"{'scheme':12} {'dispatch us':>12} {'combine us':>12} {'checksum':>10}")
    for scheme in SCHEMES:
        ep = ExpertParallel(
            device, experts, HIDDEN, TOKENS, TOPK, scheme, dispatch_costs=DISPATCH, combine_costs=COMBINE
        )
        device.barrier()
        start = device.now_ps
        handle = ep.dispatch(x, ids)
        middle = device.now_ps
        out = ep.combine(handle, np.ascontiguousarray(handle.rows * np.float32(0.5)), weights)
        if device.rank == 0:
            times = (middle - start) / 1e6, (device.now_ps - middle) / 1e6
            print(f"{scheme:12} {times[0]:12.1f} {times[1]:12.1f} {float(np.abs(out).sum()):10.3f}")
        ep.release()


main()
