"""Ranks killed from outside at random instants: python benchmarks/kills.py --ranks 64 --kills 100 --seed 7

Starts pods of busy ranks (puts with signals around a ring of those believed alive) that keep going, and sends
`kill -9` to one rank after the other at seeded random instants, `--per-run` of each pod's. Checks that every
survivor ends by itself with status 0, and that nothing is left in /dev/shm, among sockets and processes.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAM = """
import os, sys
import numpy as np
import emulator
from emulator.errors import RankLostError
from memsem import Window
device = emulator.init()
window = Window.create(4096, np.uint8, signals=4)
device.barrier()
here, me, n = sys.argv[1], device.rank, device.num_ranks
open(f"{here}/{me}.new", "w").write(str(os.getpid()))
os.rename(f"{here}/{me}.new", f"{here}/{me}")
told = 0
while not os.path.exists(f"{here}/stop"):
    for step in range(1, n):
        try:
            window.put_signal((me + step) % n, np.zeros(64, np.uint8), 0, signal=0, value=1)
            window.quiet()
        except RankLostError:
            told += 1
open(f"{here}/{me}.done", "w").write(str(told))
"""
BIN = Path(sys.executable).parent


def wait_for(done, limit_s: float, what: str) -> None:
    """Wait on the host until done()."""
    end = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > end:
            raise SystemExit(f"not within {limit_s} s: {what}")
        time.sleep(0.02)


def marked(mark: str) -> list[int]:
    """Processes that carry the run's mark in their environment."""
    found = []
    for entry in os.scandir("/proc"):
        try:
            if entry.name.isdigit() and mark.encode() in Path(entry.path, "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def one_run(ranks: int, kills: int, draw: random.Random) -> dict[str, int]:
    """Start a pod, kill, let the survivors end; what was seen."""
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        here, tmp = Path(folder, "ranks"), Path(folder, "tmp")
        here.mkdir()
        tmp.mkdir()
        Path(folder, "program.py").write_text(PROGRAM)
        mark = f"SUPERPOD_KILLS_MARK={draw.randrange(1 << 60)}"
        environment = {**os.environ, "TMPDIR": str(tmp), "SUPERPOD_IDLE_S": "1", "PYTHON_KILLS": mark}
        shm = set(os.listdir("/dev/shm"))
        command = [BIN / "superpod", "run", "-n", str(ranks), "--keep-going", f"{folder}/program.py", here]
        run = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        wait_for(lambda: all((here / str(r)).exists() for r in range(ranks)), 120, "the start")
        doomed = draw.sample(range(ranks), kills)
        for rank in doomed:
            time.sleep(draw.random() * 0.1)
            os.kill(int((here / str(rank)).read_text()), signal.SIGKILL)
        (here / "stop").touch()
        _, said = run.communicate(timeout=180)
        survivors = [r for r in range(ranks) if (here / f"{r}.done").exists()]
        told = sum(int((here / f"{r}.done").read_text()) > 0 for r in survivors)
        wait_for(lambda: not marked(mark), 30, "the end of all processes")
        names = {p.name for p in tmp.rglob("*")}
        left = [x for x in set(os.listdir("/dev/shm")) - shm if any(n in x for n in names)]
        left += [str(p) for p in tmp.rglob("*")]
        if len(survivors) != ranks - kills or left:
            raise SystemExit(
                f"survivors {len(survivors)} of {ranks - kills}, left {left}, said {said[-2000:]}"
            )
        return {"kills": kills, "survivors": len(survivors), "told": told, "left": len(left)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--per-run", type=int, default=25)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    draw, left, begun = random.Random(args.seed), args.kills, time.monotonic()
    print(f"seed {args.seed}", flush=True)
    while left:
        kills = min(args.per_run, left, args.ranks - 1)
        print(json.dumps(one_run(args.ranks, kills, draw)), flush=True)
        left -= kills
    print(
        json.dumps({"ranks": args.ranks, "kills": args.kills, "wall_s": round(time.monotonic() - begun, 1)})
    )


if __name__ == "__main__":
    main()
