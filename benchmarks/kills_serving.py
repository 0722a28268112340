"""Serving ranks killed by hand: python benchmarks/kills_serving.py --ranks 64 --kills 100 --seed 7

Runs `superpod replay --recovery in-place` and sends `kill -9` to one rank after the other at seeded random
instants. Checks that each run ends by itself with every request answered as one process answers it, and that
nothing is left in /dev/shm, among sockets and processes.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from kills import BIN, marked, wait_for

from serving.recovery.pids import FILE, read_pids


def alive(pid: int) -> bool:
    """Whether a process runs (one that waits for its parent does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def served(tmp: Path) -> list[Path]:
    """Directories of rounds whose ranks have noted their processes; others may come and go meanwhile."""
    return [Path(place) for place, _, files in os.walk(tmp) if FILE in files]


def kill_some(
    tmp: Path, ranks: int, kills: int, draw: random.Random, span_s: float, run: subprocess.Popen
) -> int:
    """Wait until all serve, then kill; how many were still running when it was their turn."""
    wait_for(
        lambda: any(len(read_pids(place)) == ranks for place in served(tmp)) or run.poll(),
        600,
        "the start",
    )
    place = next(iter(served(tmp)), None)
    done = 0
    for rank in draw.sample(range(ranks), kills) if place is not None else ():
        time.sleep(draw.random() * 2 * span_s / kills)
        pid = read_pids(place)[rank] if run.poll() is None and place.exists() else 0
        if pid and alive(pid):
            os.kill(pid, signal.SIGKILL)
            done += 1
    return done


def one_run(args: argparse.Namespace, kills: int, draw: random.Random) -> dict[str, object]:
    """Serve, kill, let it end; what was seen."""
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        tmp, out = Path(folder, "tmp"), Path(folder, "result.json")
        tmp.mkdir()
        mark = f"SUPERPOD_KILLS_MARK={draw.randrange(1 << 60)}"
        environment = {**os.environ, "TMPDIR": str(tmp), "SUPERPOD_IDLE_S": "1", "PYTHON_KILLS": mark}
        shm = set(os.listdir("/dev/shm"))
        words = ["replay", "-n", args.ranks, "--requests", args.requests, "--token-scale", 64]
        words += [
            "--recovery",
            "in-place",
            "--check-reference",
            "--no-memory-check",
            "--max-output",
            24,
            "--json",
            out,
        ]
        command = [str(BIN / "superpod"), *map(str, words)]
        begun = time.monotonic()
        run = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        done = kill_some(tmp, args.ranks, kills, draw, args.span_s, run)
        _, said = run.communicate(timeout=600)
        wait_for(lambda: not marked(mark), 30, "the end of all processes")
        left = [name for name in set(os.listdir("/dev/shm")) - shm if str(run.pid) in name]
        left += [str(path) for path in tmp.rglob("*")]
        result = json.loads(out.read_text()) if out.exists() else {}
        recoveries = result.get("recoveries", [])
        row = {
            "kills": done,
            "exact": result.get("exact"),
            "requests": result.get("requests"),
            "lost_ranks": sorted(rank for entry in recoveries for rank in entry["dead"]),
            "recoveries": len(recoveries),
            "restarts": len(result.get("restarts", [])),
            "recomputed": result.get("recomputed"),
            "left": len(left),
            "wall_s": round(time.monotonic() - begun, 1),
        }
        if run.returncode or left or row["exact"] != row["requests"]:
            raise SystemExit(f"exit code {run.returncode}, {row}, left {left}, said {said[-3000:]}")
        return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--per-run", type=int, default=20)
    parser.add_argument("--span-s", type=float, default=6.0, help="host seconds for a run's kills")
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    draw, left, begun = random.Random(args.seed), args.kills, time.monotonic()
    print(f"seed {args.seed}", flush=True)
    while left > 0:
        row = one_run(args, min(args.per_run, left, args.ranks - 1), draw)
        print(json.dumps(row), flush=True)
        left -= int(str(row["kills"])) or left
    print(
        json.dumps({"ranks": args.ranks, "kills": args.kills, "wall_s": round(time.monotonic() - begun, 1)})
    )


if __name__ == "__main__":
    main()
