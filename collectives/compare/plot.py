"""A picture of a comparison: time and bandwidth against size, one line a path; PNG or SVG by the suffix."""

from __future__ import annotations

from pathlib import Path

from collectives.compare.report import NAMES, PATHS, Comparison
from emulator.clock import clock_said
from emulator.errors import UsageError

COLOURS = {"mem": "#4878a8", "verbs": "#e08a3c", "mpi": "#5aa469"}
SUFFIXES = (".png", ".svg")


def check_plot(path: Path) -> None:
    """Refuse a file name that names no format. Raises UsageError."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"--plot {path}: name a file ending in {' or '.join(SUFFIXES)}")


def plot(comparison: Comparison, path: Path) -> None:
    """Draw time (µs) and bandwidth (GB/s) against size, logarithmic. Raises UsageError for a bad suffix."""
    from matplotlib.figure import Figure  # half a second: only for whoever draws

    check_plot(path)
    wall = comparison.clock.get("wall")
    kind = "virtual" if wall is None else "emulated"
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    latency, bandwidth = figure.subplots(1, 2)
    for name in PATHS:
        rows = comparison.of(name)
        style = {"color": COLOURS[name], "marker": "o", "markersize": 3, "label": NAMES[name]}
        sizes = [row.size for row in rows]
        latency.plot(sizes, [row.virtual_ps / 1e6 for row in rows], **style)
        bandwidth.plot(sizes, [row.gb_per_s for row in rows], **style)
    for axes, unit in ((latency, f"{kind} time (µs)"), (bandwidth, "bandwidth (GB/s, payload of all ranks)")):
        axes.set(xscale="log", yscale="log", xlabel="size (B)", ylabel=unit)
        axes.grid(True, which="both", linewidth=0.3)
        axes.legend()
    said = "" if wall is None else f"; clock: {clock_said(wall)}"
    figure.suptitle(f"{comparison.op}, {comparison.num_ranks} ranks{said}")
    figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
