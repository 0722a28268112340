"""Wall time of one dispatch + combine pair: superpod run -n 384 benchmarks/moe_pair.py

4 tokens a rank, top-8 of 256 experts, hidden 128, float32, experts the identity. Every result is checked, bit
for bit, against the weighted sum. Prints the median of 50 pairs, each from the moment the first rank begins
(all leave a barrier) to the moment the last rank has its sums.
"""

import argparse
import json
import time

import numpy as np

import emulator
from collectives.moe import ExpertExchange

EXPERTS, TOPK, HIDDEN = 256, 8, 128


def inputs(rank: int, tokens: int, slots: int, step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, slots of the chosen experts (distinct per token) and weights, from the rank and step alone."""
    rng = np.random.default_rng((rank, step))
    x = rng.standard_normal((tokens, HIDDEN), dtype=np.float32)
    ids = np.stack([np.sort(rng.permutation(EXPERTS)[:TOPK]) for _ in range(tokens)]) if tokens else None
    idx = np.empty((0, TOPK), np.int64) if ids is None else ids.astype(np.int64)
    return x, idx, rng.random((tokens, TOPK), dtype=np.float32)


def expected(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The combine of identity experts, summed in k order as the collective promises."""
    out = np.zeros_like(x)
    for k in range(w.shape[1]):
        out += w[:, k : k + 1] * x
    return out


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=50)
    args = parser.parse_args()
    dev = emulator.init()
    slots = -(-EXPERTS // dev.num_ranks)
    ep = ExpertExchange(
        dev, slots, HIDDEN, max(1, args.tokens), TOPK, max_rows=64 * TOPK * max(1, args.tokens)
    )
    walls = []
    for step in range(args.pairs + 3):
        x, idx, w = inputs(dev.rank, args.tokens, slots, step)
        dev.barrier()
        begin = time.monotonic_ns()
        handle = ep.dispatch(x, idx)
        out = ep.combine(handle, handle.rows, w)
        end = time.monotonic_ns()
        first, last = (dev.exchange(0, None, 0, tag=moment).tags for moment in (begin, end))
        walls.append(int(last.max() - first.min()) / 1e6)
        assert np.array_equal(out, expected(x, w)), f"rank {dev.rank} step {step}: wrong rows"
    if dev.rank == 0:
        kept = np.array(walls[3:])
        figures = {
            "ranks": dev.num_ranks,
            "tokens": args.tokens,
            "pair_ms_median": round(float(np.median(kept)), 2),
            "pair_ms_min": round(float(kept.min()), 2),
            "pair_ms_max": round(float(kept.max()), 2),
            "checked": True,
        }
        print(json.dumps(figures), flush=True)
    emulator.finalize()


if __name__ == "__main__":
    main()
