"""A picture of a trace: one line a rank, virtual time to the right, what each rank was doing as colour."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from emulator.errors import UsageError
from launch.tracefile import Event, read

COLOURS = {
    "attention": "#4878a8",
    "experts": "#e08a3c",
    "dispatch": "#5aa469",
    "combine": "#b05a7a",
    "other": "#9a9a9a",
    "exchange (transfer and waiting)": "#dfe3e8",
}
_REGIONS = {1: "attention", 2: "experts", 3: "dispatch", 4: "combine"}
_MS = 1e9
Bars = dict[str, dict[int, list[tuple[float, float]]]]


def region(event: Event) -> str | None:
    """What a call is shown as; None for what takes no time worth showing."""
    if event.name == "compute":
        return _REGIONS.get(event.args["peer"], "other")
    return "exchange (transfer and waiting)" if event.name == "exchange" else None


def bars(events: Iterable[Event], from_ms: float, to_ms: float) -> Bars:
    """(begin, length) in ms of each region by rank, cut to the span asked for."""
    found: Bars = defaultdict(lambda: defaultdict(list))
    for event in events:
        name = region(event) if event.track == "calls" else None
        begin, end = max(event.start_ps / _MS, from_ms), min(event.end_ps / _MS, to_ms)
        if name is not None and end > begin:
            found[name][event.rank].append((begin, end - begin))
    return found


def plot(trace: Path, out: Path, from_ms: float = 0.0, to_ms: float = np.inf) -> int:
    """Draw a trace into an image file (the suffix chooses the format); returns the number of ranks drawn.

    Raises:
        UsageError: nothing in that span, or a format that cannot be written.
    """
    found = bars(read(trace), from_ms, to_ms)
    ranks = {rank for lines in found.values() for rank in lines}
    if not ranks:
        raise UsageError(f"{trace}: no rank does anything between {from_ms} and {to_ms} ms")
    _draw(found, max(ranks) + 1, out)
    return len(ranks)


def _draw(found: Mapping[str, Mapping[int, list[tuple[float, float]]]], num_ranks: int, out: Path) -> None:
    from matplotlib.figure import Figure  # half a second: only for whoever draws

    figure = Figure(figsize=(10, min(8.0, 1.6 + 0.12 * num_ranks)), layout="constrained")
    axes: Any = figure.subplots()
    for name, colour in COLOURS.items():
        for rank, spans in found.get(name, {}).items():
            axes.broken_barh(spans, (rank - 0.45, 0.9), color=colour, linewidth=0)
        axes.barh(0, 0, color=colour, label=name)
    axes.set(xlabel="virtual time (ms)", ylabel="rank", ylim=(num_ranks - 0.5, -0.5))
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    try:
        figure.savefig(out, dpi=130)
    except (ValueError, OSError) as error:
        raise UsageError(f"{out}: cannot write the picture: {error}") from None
