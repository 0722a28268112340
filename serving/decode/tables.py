"""A decode measurement as tables for a person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

_WORD = {True: "yes", False: "NO", None: ""}


def figures_table(result: Mapping[str, Any]) -> Table:
    """Published, emulated and error of every figure."""
    case = result["case"]
    table = Table(
        title=f"Decode iteration, DP{case['ranks']}/EP{case['ranks']}, {case['batch']} sequences a die, "
        f"{case['context_mean']:.0f} tokens of context, priced as {case['priced_as']}",
        caption=_caption(result),
    )
    for column in ("figure", "published", "emulated", "unit", "error %", "bound %", "within"):
        table.add_column(column, justify="left" if column in ("figure", "unit") else "right")
    for row in result["rows"]:
        published = "" if row["published"] is None else f"{row['published']:g}"
        error = "" if row["error_pct"] is None else f"{row['error_pct']:+.1f}"
        bound = "" if row["bound_pct"] is None else f"{row['bound_pct']:g}"
        if row["unit"] == "ratio" and row["within"] is not None:
            bound = "3 to 15 x"
        figure = f"{row['emulated']:.2f}"
        table.add_row(row["name"], published, figure, row["unit"], error, bound, _WORD[row["within"]])
    return table


def _caption(result: Mapping[str, Any]) -> str:
    conflict, imbalance = result["conflicts"][0], result["imbalance"]
    implied = " and ".join(f"{value:g}" for value in conflict["implied_by_published_shares"].values())
    return (
        f"{result['case']['dispatch_calls']} dispatches and combines in an iteration (published shares imply "
        f"{implied}: a conflict, see `conflicts`). Busiest die's rows over the mean: "
        f"{imbalance['busiest_die_over_mean']:g}. Published: arXiv 2508.02520v6 7.1."
    )


def accounts_table(result: Mapping[str, Any]) -> Table:
    """Where the iteration's time goes, and what of a call is waiting."""
    table = Table(title="Where the time goes (mean of a die)")
    for column in ("part", "ms", "us a call", "of it waiting", "p99", "maximum"):
        table.add_column(column, justify="left" if column == "part" else "right")
    for name, ms in result["accounts_ms"].items():
        call = result["calls"].get(name)
        cells = ["", "", "", ""]
        if call is not None:
            keys = ("average_us", "average_waiting_us", "p99_us", "maximum_us")
            cells = [f"{call[key]:.0f}" for key in keys]
        table.add_row(name, f"{ms:.2f}", *cells)
    return table


def inputs_table(result: Mapping[str, Any]) -> Table:
    """What was put in, with label and source."""
    table = Table(title="Inputs")
    for column in ("input", "value", "unit", "label", "source"):
        table.add_column(column, justify="right" if column == "value" else "left", overflow="fold")
    for entry in result["inputs"]:
        table.add_row(entry["name"], f"{entry['value']:g}", entry["unit"], entry["label"], entry["source"])
    return table
