"""Everything that is claimed of the wall clock, measured: run it on a quiet machine.

    python benchmarks/clocks.py [--only NAME,…] [--ranks 8] [--large 64] [--json OUT] [--plot docs/clocks.svg]

operations: p50 of put, get, dispatch and all-reduce, wall beside virtual, at the suggested dilation
linear:     doubling an injected delay doubles the achieved one
apart:      latency alone leaves bandwidth untouched, and the reverse, over 1:1,000
sweep:      achieved against requested delay over dilations (the plot)
replay:     8 requests that arrive together, 4 output tokens, on --ranks; both clocks
large:      dispatch and a replay on --large ranks at the suggested dilations, and far below them
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CHOSEN = {  # what a rank program times, and how often; the first time is left out
    "operations": (("put", "get", "small get", "dispatch", "all-reduce"), 12),
    "linear": (("small get",), 12),
    "latency": (("get", "small get"), 8),
    "bandwidth": (("middle get", "small get"), 8),
    "sweep": (("put", "small get"), 12),
    "large": (("dispatch",), 4),
}
PARTS = ("operations", "linear", "apart", "sweep", "replay", "large")


def run(ranks: int, part: str, out: Path, dilation: float | None, *words: str, limit_s: float = 600) -> Any:
    """Run this file as a rank program; (what rank 0 measured, the run's result)."""
    report, facts = out / "report.json", out / "facts.json"
    clock = ["--clock", "wall", "--dilation", f"{dilation:g}", "--grace-s", "60"] if dilation else []
    env = {**os.environ, "SUPERPOD_CONFIG": json.dumps({"report": str(report)})}
    command = ["superpod", "run", "-n", str(ranks), *clock, *words, __file__, "--rank-part", part, str(facts)]
    subprocess.run(command, env=env, check=True, timeout=limit_s, stderr=subprocess.DEVNULL)
    return json.loads(facts.read_text()), json.loads(report.read_text())


def rank_program(part: str, out: str) -> None:
    """Time operations on the host and in emulated time; rank 0 writes the medians over all its calls."""
    import numpy as np

    import emulator
    from collectives import coll
    from collectives.groups import Group

    device = emulator.init()
    n, me, group = device.num_ranks, device.rank, Group.world(device)
    near, data = (me + n // 2) % n, np.ones(4096, np.uint8)
    vector, total, row = (
        np.ones(1 << 10, np.float32),
        np.zeros(1 << 10, np.float32),
        np.zeros(n * 16, np.int32),
    )

    def put() -> None:
        device.put(near, 0, data, 1 << 20)
        device.quiet()

    calls = {
        "put": put,
        "get": lambda: device.get(near, 0, 4096, 1 << 20),
        "middle get": lambda: device.get(near, 0, 4096, 1 << 16),
        "small get": lambda: device.get(near, 0, 1, 1),
        "dispatch": lambda: coll.all_to_all(group, row, row.copy(), charge_bytes=1 << 18),
        "all-reduce": lambda: coll.all_reduce(group, vector, total, charge_bytes=1 << 22),
    }
    chosen, times_each = CHOSEN[part]
    found = {}
    for name in chosen:
        times: list[tuple[int, int]] = []
        for _ in range(times_each):
            device.barrier()
            device.sleep_ps(20_000_000)  # everybody is on time again
            host, ps = time.monotonic_ns(), device.now_ps
            calls[name]()
            times.append((time.monotonic_ns() - host, device.now_ps - ps))
        host_ns, emulated_ps = (statistics.median(t[i] for t in times[1:]) for i in (0, 1))
        found[name] = {"host_ms": host_ns / 1e6, "emulated_us": emulated_ps / 1e6}
    if not me:
        Path(out).write_text(json.dumps(found))


def error(row: dict[str, float], dilation: float) -> float:
    """How far an achieved delay is from the emulated one."""
    return row["host_ms"] * 1e3 / (dilation * row["emulated_us"]) - 1


@functools.cache
def suggested(ranks: int, out: Path) -> float:
    """What a short run on this host suggests for this many ranks."""
    _, result = run(ranks, "large", out, 1000.0)
    wall = result["wall"]
    return float(max(wall["suggested_dilation"], wall["kept"]["suggested_dilation"]))


def operations(a: argparse.Namespace, out: Path) -> dict[str, Any]:
    dilation = suggested(a.ranks, out)
    virtual, _ = run(a.ranks, "operations", out, None)
    wall, result = run(a.ranks, "operations", out, dilation)
    for name, row in wall.items():
        row |= {"error": error(row, dilation), "virtual_us": virtual[name]["emulated_us"]}
        print(
            f"  {name:<12}{row['virtual_us']:10.2f} us x {dilation:g}: "
            f"{row['host_ms']:9.3f} ms {row['error']:+.2%}"
        )
    low, small = run(a.ranks, "linear", out, dilation / 50)
    print(f"  below it (x {dilation / 50:g}): trustworthy {small['wall']['kept']['trustworthy']}")
    return {
        "dilation": dilation,
        "rows": wall,
        "kept": result["wall"]["kept"],
        "below": small["wall"]["kept"],
    }


def linear(a: argparse.Namespace, out: Path) -> dict[str, Any]:
    dilation, got = suggested(a.ranks, out), {}
    for latency in (2, 4, 8, 16, 32):
        rows, _ = run(a.ranks, "linear", out, dilation, "--set", f"ub.latency_intra_us={latency}")
        got[latency] = rows["small get"]
    for low, high in itertools.pairwise(got):
        wanted = got[high]["emulated_us"] / got[low]["emulated_us"]
        ratio = got[high]["host_ms"] / got[low]["host_ms"]
        print(
            f"  {low} -> {high} us: emulated x {wanted:.4f}, achieved x {ratio:.4f}, "
            f"{ratio / wanted - 1:+.2%}"
        )
    return {"dilation": dilation, "rows": got}


def apart(a: argparse.Namespace, out: Path) -> dict[str, Any]:
    """What the first byte takes and what the bytes add, under latencies 1:1,000 and bandwidths 1:1,000."""
    found, dilation = {}, 3 * suggested(a.ranks, out)  # the least of the delays is kept as well
    for part, bulk, key, values in (
        ("latency", "get", "ub.latency_intra_us", (0.5, 5, 50, 500)),
        ("bandwidth", "middle get", "ub.read_intra_gb_per_s", (100, 10, 1, 0.1)),
    ):
        for value in values:
            rows, _ = run(a.ranks, part, out, dilation, "--set", f"{key}={value}")
            first = rows["small get"]
            added = {unit: rows[bulk][unit] - first[unit] for unit in first}
            found[f"{key}={value}"] = {"first": first, "added": added}
            print(
                f"  {key}={value}: 1 B {first['host_ms']:.3f} ms ({error(first, dilation):+.2%}), "
                f"{bulk} adds {added['host_ms']:.3f} ms ({error(added, dilation):+.2%})"
            )
    return {"dilation": dilation, "rows": found}


def sweep(a: argparse.Namespace, out: Path) -> dict[str, Any]:
    points = []
    for dilation in (10, 30, 100, 300, 1000, 3000, 10000):
        rows, result = run(a.ranks, "sweep", out, dilation)
        points.append((dilation, error(rows["put"], dilation), error(rows["small get"], dilation)))
        kept = result["wall"]["kept"]
        print(
            f"  x {dilation}: put {points[-1][1]:+.1%}, "
            f"small get {points[-1][2]:+.1%}, run {kept['error']:.1%}"
        )
    if a.plot:
        plot(points, a.plot)
    return {"points": points}


def plot(points: list[tuple[float, float, float]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "clocks"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.5))
    for i, name in ((1, "put of 1 MiB and quiet"), (2, "get of 1 byte")):
        axes.plot([p[0] for p in points], [1 + p[i] for p in points], "o-", label=name)
    axes.axhspan(0.95, 1.05, alpha=0.2)
    axes.set(xscale="log", yscale="log", xlabel="dilation", ylabel="achieved / requested delay")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def serve(ranks: int, out: Path, dilation: float | None, limit_s: float) -> tuple[Any, float]:
    """A replay of 8 requests that arrive together, 4 output tokens; its JSON and host seconds."""
    trace, found = out / "trace.jsonl", out / "replay.json"
    line = {"timestamp": 0, "input_length": 16, "output_length": 4}
    trace.write_text("".join(json.dumps({**line, "hash_ids": [i]}) + "\n" for i in range(8)))
    clock = ["--clock", "wall", "--dilation", f"{dilation:g}", "--grace-s", "60"] if dilation else []
    words = ["-n", str(ranks), "--trace", str(trace), "--requests", "8", "--max-output", "4"]
    command = ["superpod", "replay", *words, "--no-memory-check", *clock, "--json", str(found)]
    began = time.monotonic()
    subprocess.run(command, check=True, timeout=limit_s, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return json.loads(found.read_text()), time.monotonic() - began


def paced(ranks: int, out: Path, virtual: Any, dilation: float, limit_s: float) -> dict[str, Any]:
    """The replay under the wall clock beside the virtual one."""
    result, host_s = serve(ranks, out, dilation, limit_s)
    wall, emulated_s = result["wall"], virtual["virtual_duration_s"]
    same = all(result[key] == virtual[key] for key in ("tokens_sha256", "virtual_duration_s"))
    kept, achieved_s = wall["kept"], wall["achieved_duration_s"]
    print(
        f"  {ranks} ranks x {dilation:g}: emulated {emulated_s:.4f} s, achieved {achieved_s:.4f} s "
        f"({achieved_s / emulated_s - 1:+.2%}), tokens and emulated duration equal: {same}; command "
        f"{host_s:.0f} s; error {kept['error']:.2%} of {kept['requested_s']:.1f} s, "
        f"trustworthy {kept['trustworthy']}",
        flush=True,
    )
    return {"dilation": dilation, "command_s": host_s, "virtual_s": emulated_s, "same": same, "wall": wall}


def replay(a: argparse.Namespace, out: Path) -> list[dict[str, Any]]:
    """At the dilation a short run suggests, and at the largest that keeps the command under 3 minutes."""
    virtual, start_s = serve(a.ranks, out, None, 600)
    short = paced(a.ranks, out, virtual, 20 / virtual["virtual_duration_s"], 300)
    largest = 0.8 * (180 - start_s) / virtual["virtual_duration_s"]
    chosen = short["wall"]["kept"]["suggested_dilation"]
    return [short, *(paced(a.ranks, out, virtual, d, 300) for d in (chosen, largest))]


def large(a: argparse.Namespace, out: Path) -> dict[str, Any]:
    dilation, found = suggested(a.large, out), {}
    for d in (dilation, dilation / 50):
        rows, result = run(a.large, "large", out, d)
        kept = result["wall"]["kept"]
        print(
            f"  dispatch x {d:g}: {error(rows['dispatch'], d):+.2%}, error {kept['error']:.2%}, "
            f"trustworthy {kept['trustworthy']}",
            flush=True,
        )
        found[d] = {"rows": rows, "kept": kept}
    virtual, _ = serve(a.large, out, None, 600)
    short = paced(a.large, out, virtual, 10 / virtual["virtual_duration_s"], 600)
    chosen = paced(a.large, out, virtual, short["wall"]["kept"]["suggested_dilation"], 600)
    return {"dispatch": found, "replay": [short, chosen]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--large", type=int, default=64)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    a, found = parser.parse_args(), {}
    with tempfile.TemporaryDirectory(prefix="superpod-clocks-") as folder:
        for part in a.only.split(","):
            print(f"{part}:", flush=True)
            found[part] = globals()[part](a, Path(folder))
    if a.json:
        a.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    if "--rank-part" in sys.argv:
        rank_program(*sys.argv[2:4])
    else:
        main()
