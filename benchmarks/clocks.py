"""Everything that is claimed of the wall clock, measured and judged: run it on a quiet machine.

    python benchmarks/clocks.py [--only NAME,…] [--ranks 8] [--large 64] [--json OUT] [--plot OUT.svg]

operations: p50 of put, get, dispatch and all-reduce, wall beside virtual, where each kind of delay is kept
linear:     doubling an injected delay doubles the achieved one
apart:      latency alone leaves bandwidth untouched, and the reverse, over 1:1,000
replay:     8 requests that arrive together, 4 output tokens, on --ranks; both clocks
large:      dispatch and a replay on --large ranks at the suggested dilations, and below them
refused:    dilations that are none, and one too small for this machine
sweep:      achieved against requested delay over dilations (the plot; nothing is judged)

Each part takes less than 4 minutes and ends with its verdicts (what must hold, the limit, what was measured,
the command), the whole with a table of them; exit code 0 if all are met, else 1.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from clock_runs import (
    LIMIT,
    Verdict,
    error,
    marked,
    paced,
    replay_verdicts,
    run,
    serve,
    show,
    suggested,
    told,
)

DOUBLING_LIMIT = 0.02
LEAST_MS = 2.0
"""Delays of at least so many host ms are judged."""
REPLAY_S, LARGE_S = 180.0, 600.0
BELOW = 8
"""A run below the suggested dilation has a so many times smaller one."""
APART = (
    ("latency", "large get", "ub.latency_intra_us", ((0.5, 64_000), (5, 8_000), (50, 1_000), (500, 800))),
    (
        "bandwidth",
        "middle get",
        "ub.read_intra_gb_per_s",
        ((100, 80_000), (10, 32_000), (1, 32_000), (0.1, 24_000)),
    ),
)
"""What is varied, the transfer whose bytes count, the key, and its values, each with a dilation at which both
delays last at least 25 ms."""
PARTS = ("operations", "linear", "apart", "replay", "large", "refused", "sweep")


class Case(NamedTuple):
    """What a part is told: sizes, and where files go."""

    ranks: int
    large: int
    out: Path
    plot: Path | None


Told = tuple[Any, list[Verdict]]


def operations(a: Case) -> Told:
    dilation = max(suggested(a.ranks, part, a.out)[1] for part in ("operations", "linear"))
    virtual, _ = run(a.ranks, "operations", a.out, None)
    wall, result = run(a.ranks, "operations", a.out, dilation)
    verdicts, kept = [], result["wall"]["kept"]
    for name, row in wall.items():
        row |= {"error": error(row, dilation), "virtual_us": virtual[name]["emulated_us"]}
        print(
            f"  {name:<12}{row['virtual_us']:10.2f} us x {dilation:g}: "
            f"{row['host_ms']:9.3f} ms {row['error']:+.2%}"
        )
        same = row["virtual_us"] == row["emulated_us"]
        found = f"{row['error']:+.2%} of {row['host_ms']:.1f} ms" + ("" if same else ", NOT the virtual time")
        met = same and (abs(row["error"]) <= LIMIT or row["host_ms"] < LEAST_MS)
        verdicts.append(Verdict(f"{a.ranks} ranks, p50 of {name}", "5 %", found, met, result["command"]))
    verdicts += both_sides(a)
    return {"dilation": dilation, "rows": wall, "kept": kept}, verdicts


def both_sides(a: Case) -> list[Verdict]:
    """A run of single transfers at its suggested dilation is trustworthy, one below is marked."""
    name, (dilation, _) = f"{a.ranks} ranks, single transfers", suggested(a.ranks, "linear", a.out)
    _, at = run(a.ranks, "linear", a.out, dilation)
    _, below = run(a.ranks, "linear", a.out, dilation / BELOW)
    kept = at["wall"]["kept"]
    line = f"{name} at the suggested dilation of {dilation:g}: trustworthy"
    return [
        Verdict(line, "5 %", f"error {kept['error']:.2%}", kept["trustworthy"], at["command"]),
        marked(name, below["wall"]["kept"], dilation / BELOW, below["command"]),
    ]


def linear(a: Case) -> Told:
    (dilation, _), got, verdicts = suggested(a.ranks, "linear", a.out), {}, []
    for latency in (2, 4, 8, 16, 32):
        rows, result = run(a.ranks, "linear", a.out, dilation, "--set", f"ub.latency_intra_us={latency}")
        got[latency] = rows["small get"]
    for low, high in itertools.pairwise(got):
        wanted = got[high]["emulated_us"] / got[low]["emulated_us"]
        ratio = got[high]["host_ms"] / got[low]["host_ms"]
        off = ratio / wanted - 1
        found = f"emulated x {wanted:.4f}, achieved x {ratio:.4f}, {off:+.2%}"
        print(f"  {low} -> {high} us: {found}")
        verdicts.append(
            Verdict(
                f"latency {low} to {high} us doubles",
                "2 %",
                found,
                abs(off) <= DOUBLING_LIMIT,
                result["command"].replace("latency_intra_us=32", f"latency_intra_us={high}"),
            )
        )
    return {"dilation": dilation, "rows": got}, verdicts


def apart(a: Case) -> Told:
    """What the first byte takes and what the bytes add, under latencies 1:1,000 and bandwidths 1:1,000."""
    found, verdicts = {}, []
    for part, bulk, key, values in APART:
        kept, varied = ("added", "first") if part == "latency" else ("first", "added")
        off = {"first": [], "added": []}
        for value, dilation in values:
            rows, result = run(a.ranks, part, a.out, dilation, "--set", f"{key}={value}")
            first = rows["small get"]
            added = {unit: rows[bulk][unit] - first[unit] for unit in first}
            found[f"{key}={value}"] = {"dilation": dilation, "first": first, "added": added}
            off["first"].append(error(first, dilation))
            off["added"].append(error(added, dilation))
            print(
                f"  {key}={value} x {dilation}: 1 B {first['emulated_us']:.2f} us, {first['host_ms']:.3f} ms "
                f"({off['first'][-1]:+.2%}), {bulk} adds {added['emulated_us']:.2f} us, "
                f"{added['host_ms']:.3f} ms ({off['added'][-1]:+.2%})",
                flush=True,
            )
        for name, which in (("alone changes its delay", varied), ("leaves the other untouched", kept)):
            worst, line = max(off[which], key=abs), f"{part} over 1:1,000 {name}"
            most = f"{worst:+.2%} at most"
            verdicts.append(Verdict(line, "5 %", most, abs(worst) <= LIMIT, result["command"]))
    return {"rows": found}, verdicts


def sweep(a: Case) -> Told:
    points = []
    for dilation in (10, 30, 100, 300, 1000, 3000, 10000):
        rows, result = run(a.ranks, "sweep", a.out, dilation)
        points.append((dilation, error(rows["put"], dilation), error(rows["small get"], dilation)))
        kept = result["wall"]["kept"]
        print(
            f"  x {dilation}: put {points[-1][1]:+.1%}, "
            f"small get {points[-1][2]:+.1%}, run {kept['error']:.1%}"
        )
    if a.plot:
        draw(points, a.plot)
    return {"points": points}, []


def draw(points: list[tuple[float, float, float]], path: Path) -> None:
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


def replay(a: Case) -> Told:
    """At what a short run suggests, but no more than keeps the command under 3 minutes."""
    virtual, start_s, _ = serve(a.ranks, a.out, None)
    short = paced(a.ranks, a.out, virtual, 20 / virtual["virtual_duration_s"])
    largest = 0.8 * (REPLAY_S - start_s) / virtual["virtual_duration_s"]
    chosen = min(max(short["wall"]["kept"]["suggested_dilation"], largest / 2), largest)
    found = paced(a.ranks, a.out, virtual, chosen)
    return {"short": short, "chosen": found}, replay_verdicts(a.ranks, found, REPLAY_S)


def large(a: Case) -> Told:
    began, (found, verdicts) = time.monotonic(), large_dispatch(a)
    virtual, start_s, _ = serve(a.large, a.out, None)
    short = paced(a.large, a.out, virtual, 15 / virtual["virtual_duration_s"])
    largest = (LARGE_S / 2 - start_s) / virtual["virtual_duration_s"]
    chosen = paced(a.large, a.out, virtual, min(short["wall"]["kept"]["suggested_dilation"], largest))
    verdicts.append(
        marked(f"{a.large} ranks, replay", short["wall"]["kept"], short["dilation"], short["command"])
    )
    verdicts += replay_verdicts(a.large, chosen, LARGE_S)
    took_s = time.monotonic() - began
    verdicts.append(
        Verdict(f"{a.large} ranks, all of it", f"{LARGE_S:g} s", f"{took_s:.0f} s", took_s < LARGE_S)
    )
    return {"dispatch": found, "replay": [short, chosen]}, verdicts


def large_dispatch(a: Case) -> Told:
    (dilation, _), found, verdicts = suggested(a.large, "large", a.out), {}, []
    for d in (dilation, dilation / BELOW):
        began = time.monotonic()
        rows, result = run(a.large, "large", a.out, d)
        kept, off, command = result["wall"]["kept"], error(rows["dispatch"], d), result["command"]
        took = f"{off:+.2%}, delays {kept['error']:.2%}, {time.monotonic() - began:.0f} s"
        print(f"  dispatch x {d:g}: {took}, trustworthy {kept['trustworthy']}", flush=True)
        found[d] = {"rows": rows, "kept": kept}
        if d == dilation:
            met = abs(off) <= LIMIT and kept["trustworthy"]
            line = f"{a.large} ranks, dispatch at the suggested dilation of {d:g}"
            verdicts.append(Verdict(line, "5 %", took, met, command))
        else:
            verdicts.append(marked(f"{a.large} ranks, dispatch", kept, d, command))
    return found, verdicts


def refused(a: Case) -> Told:
    """Dilations that are none end with exit code 2 and one line; one that is too small is warned of."""
    verdicts, program = [], a.out / "nothing.py"
    program.write_text("import emulator\nemulator.init().barrier()\n")
    for value in ("0", "-1", "nan", "inf", "much", "", "0.001", "1e-30"):
        words = ["superpod", "run", "-n", "2", "--clock", "wall", "--dilation", value, str(program)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120)
        said = done.stderr.splitlines()[0] if done.stderr else ""
        if value in ("0.001", "1e-30"):
            met = done.returncode == 0 and "expect errors of about" in said
            line = f"dilation {value}: accepted with a warning that says what error to expect"
        else:
            met = done.returncode == 2 and done.stderr.count("\n") == 1 and value in said
            line = f"dilation {value}: refused in one line"
        print(f"  {said}")
        verdicts.append(Verdict(line, "", f"exit code {done.returncode}", met, told(words)))
    return {}, verdicts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--large", type=int, default=64)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    given, found, verdicts = parser.parse_args(), {}, []
    chosen = given.only.split(",")
    if unknown := [name for name in chosen if name not in PARTS]:
        parser.error(f"--only {unknown[0]}: choose among {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory(prefix="superpod-clocks-") as folder:
        case = Case(given.ranks, given.large, Path(folder), given.plot)
        for part in chosen:
            began = time.monotonic()
            print(f"{part}:", flush=True)
            found[part], judged = globals()[part](case)
            show(judged)
            print(f"{part} took {time.monotonic() - began:.0f} s", flush=True)
            verdicts += judged
    if len(chosen) > 1:
        print("\nall together:")
        show(verdicts)
    if given.json:
        found["verdicts"] = [v._asdict() for v in verdicts]
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if all(v.met for v in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
