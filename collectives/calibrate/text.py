"""The report as text: measured rows by status, the others with their reason, errors at the end. Pure."""

from __future__ import annotations

from typing import Any

from collectives.calibrate.cases import Case
from collectives.calibrate.report import LEAST_PREDICTED, MEASURED, Row, summaries


def as_text(found: list[Row], every: bool) -> str:
    """Return the tables.

    Args:
        every: also the rows that are not measured, each with its reason.
    """
    lines: list[str] = []
    for status in MEASURED:
        lines += ["", f"{status}", _HEAD]
        lines += [_line(row) for row in found if row.status == status and row.emulated is not None]
    if every:
        for status in ("input", "superseded", "out of scope"):
            lines += ["", status]
            lines += [_short(row) for row in found if row.status.startswith(status)]
    return "\n".join([*lines, "", *_totals(found)]).lstrip("\n") + "\n"


_HEAD = f"  {'row':40} {'published':>13} {'emulated':>13} {'unit':11} {'error':>8}  label"


def _line(row: Row) -> str:
    error = "" if row.error_pct is None else f"{row.error_pct:+.1f} %"
    note = "" if row.counted else "  not counted"
    head = f"  {row.name:40} {_number(row.published):>13} {_number(row.emulated):>13} {row.unit:11}"
    return f"{head} {error:>8}  {row.label}{note}".rstrip()


def _short(row: Row) -> str:
    by = f"{row.status.removeprefix('superseded ')}: " if row.status.startswith("superseded") else ""
    return f"  {row.name:40} {_number(row.published):>13} {row.unit:11} {by}{row.why}"


def _number(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return " ".join(_number(v) for v in value)
    return f"{value:.4g}" if abs(value) < 10_000 else f"{value:.0f}"


def _totals(found: list[Row]) -> list[str]:
    lines = []
    for s in summaries(found):
        asked = f"asked {s.bounds[0]:g} and {s.bounds[1]:g}" if s.bounds else ""
        verdict = "met" if s.is_met else "MISSED"
        lines.append(
            f"{s.name:28} {s.count:3} rows: median {s.median:4.1f} %, worst {s.worst:4.1f} % "
            f"({s.worst_row}); {asked}: {verdict}"
        )
    predicted = sum(row.counted and row.status == "predicted" for row in found)
    counts = ", ".join(f"{n} {status}" for status, n in _census(found).items())
    return [*lines, f"{predicted} predicted rows counted, {LEAST_PREDICTED} asked", f"all rows: {counts}"]


def _census(found: list[Row]) -> dict[str, int]:
    census: dict[str, int] = {}
    for row in found:
        status = "superseded" if row.status.startswith("superseded") else row.status
        census[status] = census.get(status, 0) + 1
    return census


def case_text(case: Case, times: dict[str, int]) -> str:
    """Return a line on an exchange that nobody published."""
    mean, least, most = (times[key] / 1e6 for key in ("mean_ps", "min_ps", "max_ps"))
    rate = 1000 * times["counted_bytes"] / times["mean_ps"]
    spread = f"mean {mean:.1f} us ({least:.1f} to {most:.1f} over ranks)"
    return f"{case.row}: {spread}, {rate:.1f} GB/s of {case.row_bytes} B a token and {case.counted}"
