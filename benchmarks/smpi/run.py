"""Wall time of collectives in SimGrid's SMPI, to stand beside ours: python benchmarks/smpi/run.py [RANKS]

Needs Debian's libsimgrid-dev (3.32 on Debian 12). Ranks are threads of one process there. The platform is a
crossbar with the UB plane's published write bandwidth and latency. Each figure is the wall time of a run with
some calls less that of one with none, divided by the calls; runs longer than LIMIT_S are ended.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from emulator.profile import load_profile

LIMIT_S = 900
CASES = [
    ("alltoall", 64, 3, ("bruck", "ring")),
    ("alltoall", 7680, 1, ("ring", "bruck")),
    ("allreduce", 1 << 20, 1, ("lr", "rab", "rdb")),
    ("barrier", 0, 10, ("ompi", "mpich")),
]
"""Operation, bytes, calls, SMPI's names of algorithms."""


def platform(ranks: int) -> str:
    """A crossbar of `ranks` hosts with the plane's bandwidth and half its latency on each host's link."""
    profile = load_profile("cloudmatrix384", {})
    bandwidth = profile.value("ub.write_inter_gb_per_s") * 1e9
    latency = profile.value("ub.latency_inter_us") * 1e-6 / 2
    return (
        '<?xml version="1.0"?>\n<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">\n'
        '<platform version="4.1">\n'
        f'  <cluster id="pod" prefix="d-" suffix="" radical="0-{ranks - 1}" speed="1Gf" '
        f'bw="{bandwidth:.0f}Bps" lat="{latency:.9f}s" sharing_policy="SPLITDUPLEX"/>\n</platform>\n'
    )


def run(directory: Path, ranks: int, case: tuple[str, int, int], algorithm: str) -> tuple[float, str]:
    """Wall seconds and output of one run; the time limit where it was reached."""
    operation, nbytes, times = case
    command = [
        "smpirun", "-np", str(ranks),
        "-platform", str(directory / "pod.xml"), "-hostfile", str(directory / "hosts"),
        "--cfg=smpi/simulate-computation:no", "--cfg=contexts/stack-size:256", "--log=root.thres:critical",
        *([f"--cfg=smpi/{operation}:{algorithm}"] if algorithm else []),
        str(directory / "collective"), operation, str(nbytes), str(times),
    ]  # fmt: skip
    begin = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return float(LIMIT_S), ""
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr[-500:]}")
    return time.perf_counter() - begin, done.stdout


def main() -> None:
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 384
    if shutil.which("smpicc") is None:
        raise SystemExit("smpicc is not there: apt-get install libsimgrid-dev")
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        source = Path(__file__).with_name("collective.c")
        subprocess.run(["smpicc", "-O2", str(source), "-o", str(directory / "collective")], check=True)
        (directory / "pod.xml").write_text(platform(ranks))
        (directory / "hosts").write_text("".join(f"d-{r}\n" for r in range(ranks)))
        for operation, nbytes, times, algorithms in CASES:
            times *= max(1, 384 // ranks) ** 2  # few ranks take less than starting the program
            for algorithm in algorithms:
                empty, _ = run(directory, ranks, (operation, nbytes, 0), algorithm)
                full, said = run(directory, ranks, (operation, nbytes, times), algorithm)
                row = {"operation": operation, "bytes": nbytes, "ranks": ranks, "algorithm": algorithm}
                wall = round(max(full - empty, 0) / times, 4)
                simulated = round(float(said.split()[-1]) / times, 3) if said else None
                print(json.dumps(row | {"wall_s": wall, "simulated_us": simulated}), flush=True)


if __name__ == "__main__":
    main()
