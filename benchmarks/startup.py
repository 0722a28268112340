"""Time and memory of a start: from the command's first instruction to the last rank in user code with MPI up.

    python benchmarks/startup.py [RANKS …] [--no-accelerate] [--runs N]

Every run is a `superpod run` of its own, so its fork server's imports are included. Targets on 2 cores with
24 GB: 64 ranks 4 s, 384 ranks 15 s, 768 ranks 45 s.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = "from mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\n"
DEFAULT_RANKS = (64, 384, 768)


def measure(num_ranks: int, accelerate: bool, timeout_s: float = 300) -> dict[str, float]:
    """Start a barrier on `num_ranks` ranks; return what `superpod run --json` says of it."""
    superpod = str(Path(sys.executable).parent / "superpod")
    with tempfile.TemporaryDirectory() as place:
        program, out = Path(place) / "barrier.py", Path(place) / "out.json"
        program.write_text(PROGRAM)
        options = ["-n", str(num_ranks), "--json", str(out), *([] if accelerate else ["--no-accelerate"])]
        subprocess.run([superpod, "run", *options, str(program)], check=True, timeout=timeout_s)
        return dict(json.loads(out.read_text()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ranks", nargs="*", type=int, default=DEFAULT_RANKS)
    parser.add_argument("--no-accelerate", action="store_true")
    parser.add_argument("--runs", type=int, default=1)
    args = parser.parse_args()
    print(f"{'ranks':>6} {'start-up s':>11} {'whole run s':>12} {'peak PSS GB':>12}")
    for n in args.ranks:
        found = [measure(n, not args.no_accelerate) for _ in range(args.runs)]
        start, wall, pss = (
            statistics.median(f[k] for f in found) for k in ("startup_wall_s", "wall_s", "pss_gb")
        )
        print(f"{n:>6} {start:>11.2f} {wall:>12.2f} {pss:>12.2f}", flush=True)


if __name__ == "__main__":
    main()
