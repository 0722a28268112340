"""What reuse of prefixes saves in prefill: `python benchmarks/prefix_cache.py [-n 32]`.

The published case (arXiv 2506.12708, summary): 16,384 tokens on each NPU (8,192 on a die), prompts of 4,096,
blocks of 128, the cache in the pool of host memory; prefill throughput 1.42 and 2.28 times that without reuse
at 50 and 90 % of it, TTFT 34 and 59 % shorter, and up to 1.52 times the throughput over UB of that over VPC.

Every rank serves three waves of prompts: one whose KV fills the cache, one that pushes it out to the pool,
and the measured one, whose prompts begin as those of the first. All are really served: tokens equal those of
one process (`--check-reference`). KV counts as 16 bit here, 70,272 B a token, because the published pool is
older than INT8 KV.

One number is fitted (`reuse.unsaved_share` in serving/kv/tiers.toml); load times are computed, and the ratio
of UB to VPC is a prediction.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from launch import paths
from launch.cmd_replay import Running, _opening, run_replay
from serving.job import PagingOptions, ReplayJob
from serving.model import preset_config
from serving.replay import plan_specs
from serving.request import RequestSpec

PROMPT, BLOCK, PER_DIE, SCALE, VOCAB = 4096, 128, 2, 64, 512
PAUSE_PS = 20 * 10**12
PUBLISHED = {50: (1.42, 34.0), 90: (2.28, 59.0)}
PUBLISHED_UB_OVER_VPC = 1.52


def waves(num_ranks: int, percent: int) -> list[RequestSpec]:
    """Three waves of `PER_DIE` prompts a rank; of the last one's tokens so many percent are the first's.

    90 % of 4,096 tokens are 28.8 blocks: four prompts of five share 29 blocks, the fifth 28.
    """
    rng = np.random.default_rng(1)
    tokens, block = PROMPT // SCALE, BLOCK // SCALE
    first = [rng.integers(0, VOCAB, tokens) for _ in range(PER_DIE * num_ranks)]
    specs: list[RequestSpec] = []
    for wave in range(3):
        for i, old in enumerate(first):
            prompt = old if wave == 0 else rng.integers(0, VOCAB, tokens)
            if wave == 2:
                blocks = PROMPT // BLOCK * percent
                shared = (blocks // 100 + (i % 5 < blocks % 100 * 5 // 100)) * block
                prompt = np.concatenate([old[:shared], prompt[shared:]])
            specs.append(
                RequestSpec(len(specs), wave * PAUSE_PS, prompt.astype(np.int64), PROMPT, SCALE, 1, False, 0)
            )
    return specs


def measure(num_ranks: int, percent: int, path: str, check: bool) -> dict[str, float]:
    """TTFT of the third wave, ms, and tokens a second of a chip (two dies)."""
    own = paths.RunDirectory()
    try:
        config = preset_config("mini")
        held = PER_DIE * (PROMPT // BLOCK + 1)
        job = ReplayJob(
            model_dir=str(own.path / "model"),
            num_ranks=num_ranks,
            priced_as="deepseek-r1",
            profile="cloudmatrix384",
            token_scale=SCALE,
            batched_tokens=PER_DIE * PROMPT,
            max_seqs=PER_DIE,
            check_memory=False,
            priced_overrides={"cost.kv_latent_bytes": "2"},
            paging=PagingOptions(BLOCK, held, True, True, 4 * held, path),
            balancing="round-robin",
        )
        plan = plan_specs(job, config, waves(num_ranks, percent))
        with _opening(job, config, own, is_made=True) as opening:
            result = run_replay(plan, own, Running("shared", check, False, None), opening)
        assert all(result["invariants"].values()), result["invariants"]
        return figures(own.path, num_ranks, result)
    finally:
        own.remove()


def figures(directory: Path, num_ranks: int, result: dict) -> dict[str, float]:
    ends = []
    for line in (directory / "results.jsonl").read_text().splitlines():
        rank = json.loads(line)
        third = [e for e in rank["requests"] if e["id"] >= 2 * PER_DIE * num_ranks]
        ends += [e["times_ps"][0] - 2 * PAUSE_PS for e in third]
    seconds = max(ends) / 1e12
    return {
        "ttft_ms": sum(ends) / len(ends) / 1e9,
        "tokens_per_s": 2 * PER_DIE * PROMPT / seconds,
        "load_ms": 1e3 * result["virtual_time"].get("kv_load", {"mean_s": 0.0})["mean_s"],
        "hit": result["cache"]["hit"],
        "loaded": result["cache"]["loaded"],
    }


def main() -> None:
    """Print the table; with --json write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=32)
    parser.add_argument("--check-reference", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    cases = {
        (p, path): measure(given.n, p, path, given.check_reference)
        for p, path in ((0, "ub"), (50, "ub"), (90, "ub"), (50, "vpc"), (90, "vpc"))
    }
    base = cases[0, "ub"]
    table = Table(title=f"Prefix reuse, {given.n} dies, 8,192 tokens each, prompts of 4,096")
    for column in (
        "reuse",
        "pool over",
        "TTFT ms",
        "tok/s a chip",
        "gain (published)",
        "TTFT cut % (published)",
        "load ms",
    ):
        table.add_column(column, justify="right")
    for (percent, path), case in cases.items():
        gain = case["tokens_per_s"] / base["tokens_per_s"]
        cut = 100 * (1 - case["ttft_ms"] / base["ttft_ms"])
        case["gain"], case["ttft_cut_percent"] = gain, cut
        known = PUBLISHED.get(percent) if path == "ub" else None
        table.add_row(
            f"{percent} %", path, f"{case['ttft_ms']:.0f}", f"{case['tokens_per_s']:.0f}",
            f"{gain:.2f}" + (f" ({known[0]})" if known else ""),
            f"{cut:.1f}" + (f" ({known[1]})" if known else ""), f"{case['load_ms']:.1f}",
        )  # fmt: skip
    Console(width=110).print(table)
    ratio = cases[90, "ub"]["tokens_per_s"] / cases[90, "vpc"]["tokens_per_s"]
    print(f"UB over VPC at 90 %: {ratio:.2f} (published: up to {PUBLISHED_UB_OVER_VPC}), a prediction")
    if given.json is not None:
        rows = [{"reuse": p, "path": path, **case} for (p, path), case in cases.items()]
        given.json.write_text(json.dumps({"rows": rows, "ub_over_vpc": ratio}, indent=2) + "\n")


if __name__ == "__main__":
    main()
