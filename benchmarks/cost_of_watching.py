"""What heartbeats, membership and the outbox cost when nothing fails.

    python benchmarks/cost_of_watching.py --ranks 16 --runs 5

Runs `superpod replay` with and without `--recovery in-place`, in turns, and compares virtual and wall time
(medians). Prints one line of JSON; exit code 1 where virtual time grows by more than 0.5 % or wall time by
more than 5 %.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MOST_VIRTUAL, MOST_WALL = 0.005, 0.05
WAYS: dict[str, list[str]] = {"plain": [], "watched": ["--recovery", "in-place"]}


def one(ranks: int, requests: int, more: list[str]) -> tuple[float, float]:
    """One replay: (virtual seconds, wall seconds)."""
    with tempfile.TemporaryDirectory(prefix="watching-") as folder:
        out = Path(folder, "result.json")
        words = ["replay", "-n", ranks, "--requests", requests, "--token-scale", 64, "--no-memory-check"]
        command = [str(Path(sys.executable).parent / "superpod"), *map(str, words), *more]
        begin = time.monotonic()
        subprocess.run([*command, "--json", str(out)], check=True, capture_output=True)
        wall_s = time.monotonic() - begin
        return float(json.loads(out.read_text())["virtual_duration_s"]), wall_s


def main() -> int:
    """Run in turns, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    for more in WAYS.values():  # the first of each loads what the others find loaded
        one(args.ranks, args.requests, more)
    seen = [
        {name: one(args.ranks, args.requests, more) for name, more in WAYS.items()} for _ in range(args.runs)
    ]
    virtual = {name: seen[0][name][0] for name in WAYS}
    wall = {name: [run[name][1] for run in seen] for name in WAYS}
    medians = {name: statistics.median(values) for name, values in wall.items()}
    told = {
        "ranks": args.ranks,
        "requests": args.requests,
        "virtual_s": virtual,
        "virtual_share": virtual["watched"] / virtual["plain"] - 1,
        "wall_s": wall,
        "wall_share": medians["watched"] / medians["plain"] - 1,
    }
    print(json.dumps(told))
    return int(told["virtual_share"] > MOST_VIRTUAL or told["wall_share"] > MOST_WALL)


if __name__ == "__main__":
    sys.exit(main())
