"""Published, emulated, error and status of every row of serving, and what they come to. Pure."""

from __future__ import annotations

import fnmatch
import json
import statistics
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from typing import Any, Final

from collectives.calibrate.report import published
from emulator.errors import InternalError
from serving.published.figures import Value

STATUSES: Final = ("fitted", "predicted", "input", "out of scope")
MEASURED: Final = ("fitted", "predicted")
SERVING: Final = (
    "e2e.coloc.*", "cm.prefill.*", "cm.decode.*", "cm.decode_stream_time", "cm.microbatch_*", "cm.mtp_*",
    "fs.mtp.*",
)  # fmt: skip
"""Published rows that are about serving on this machine, and those beside them that are not."""
MEDIAN_BOUND: Final = 8.0
"""Median error asked for, percent."""


@dataclass(frozen=True)
class Row:
    """One published figure.

    Attributes:
        emulated, error_pct: None where nothing is measured; of a range or several values the largest error.
        points: of gains, how far apart in percentage points.
        counted: it goes into the median; not another row's twin.
        label: how good the published figure is: published, derived.
    """

    name: str
    published: Any
    emulated: Value | None
    unit: str
    error_pct: float | None
    points: float | None
    status: str
    counted: bool
    case: str
    label: str
    why: str
    source: str
    conditions: str


@cache
def _rules() -> list[dict[str, Any]]:
    text = resources.files("serving.published").joinpath("rows.toml").read_text(encoding="utf-8")
    rules: list[dict[str, Any]] = tomllib.loads(text)["rule"]
    return rules


def rule_of(name: str) -> dict[str, Any]:
    """The first rule for a row. Raises InternalError: there is none."""
    for rule in _rules():
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in rule["match"]):
            return rule
    raise InternalError(f"published figures of serving: row {name!r} has no rule in rows.toml")


def rows(emulated: Mapping[str, Value]) -> list[Row]:
    """Both sides of every row of serving, in the published order."""
    chosen = [e for e in published() if any(fnmatch.fnmatchcase(e["name"], p) for p in SERVING)]
    return [_row(entry, emulated.get(entry["name"])) for entry in chosen]


def _row(entry: Mapping[str, Any], value: Value | None) -> Row:
    rule = rule_of(entry["name"])
    measured = rule["status"] in MEASURED and value is not None
    error = _error(entry["value"], value, rule) if measured and value is not None else None
    points = _apart(entry["value"], value) if rule.get("gain") and value is not None else None
    return Row(
        name=entry["name"],
        published=entry["value"],
        emulated=value,
        unit=entry["unit"],
        error_pct=error,
        points=points,
        status=rule["status"],
        counted=measured and "twin" not in rule,
        case=rule.get("case", ""),
        label="published" if entry["evidence"] in ("primary", "secondary") else entry["evidence"],
        why=rule["why"] + (f"; one measurement with {rule['twin']}" if "twin" in rule else ""),
        source=entry["source"],
        conditions=entry["conditions"],
    )


def _error(given: Any, value: Value, rule: Mapping[str, Any]) -> float:
    """Percent; 0 inside a range or bound; of several values the largest. Gains compare 1 + gain."""
    lift = 100.0 if rule.get("gain") else 0.0
    if rule.get("bound") == "max" and isinstance(value, float) and value <= given:
        return 0.0
    return max((100 * ((v + lift) / (g + lift) - 1) for g, v in _pairs(given, value)), key=abs)


def _apart(given: Any, value: Value) -> float:
    return max((v - g for g, v in _pairs(given, value)), key=abs)


def _pairs(given: Any, value: Value) -> list[tuple[float, float]]:
    """Published and emulated values that belong together; one value is held against the nearer end of a
    range, or itself inside it."""
    if isinstance(value, list):
        return list(zip(given, value, strict=True))
    if isinstance(given, list):
        return [(min(max(value, given[0]), given[1]), value)]
    return [(float(given), value)]


@dataclass(frozen=True)
class Summary:
    """Errors of some rows, percent. bound: of the median, None where nothing is asked."""

    name: str
    count: int
    median: float
    worst: float
    worst_row: str
    bound: float | None

    @property
    def is_met(self) -> bool:
        """Whether the median lies within the bound."""
        return self.bound is None or self.median <= self.bound


def summaries(found: Iterable[Row]) -> list[Summary]:
    """All counted rows, fitted and predicted ones apart, and all rows with an error, twins among them."""
    every = [row for row in found if row.error_pct is not None]
    counted = [row for row in every if row.counted]
    made = [_summary("all", counted, MEDIAN_BOUND)]
    made += [
        _summary(status, [r for r in counted if r.status == status], MEDIAN_BOUND) for status in MEASURED
    ]
    made.append(_summary("all, twins counted too", every, MEDIAN_BOUND))
    return [summary for summary in made if summary is not None]


def _summary(name: str, chosen: Sequence[Row], bound: float | None) -> Summary | None:
    if not chosen:
        return None
    sizes = {row.name: abs(row.error_pct or 0.0) for row in chosen}
    worst = max(sizes, key=lambda name: sizes[name])
    return Summary(name, len(sizes), statistics.median(sizes.values()), sizes[worst], worst, bound)


def as_json(
    found: Sequence[Row],
    inputs: Sequence[Mapping[str, Any]],
    cases: Mapping[str, Any],
    measured: Mapping[str, Any],
) -> str:
    """Rows, summaries, everything put in, each case's figures, and what its ranks measured."""
    told = {
        "rows": [asdict(row) for row in found],
        "summary": [{**asdict(s), "is_met": s.is_met} for s in summaries(found)],
        "inputs": list(inputs),
        "cases": dict(cases),
        "measured": dict(measured),
    }
    return json.dumps(told, indent=1) + "\n"


def as_text(found: Sequence[Row], inputs: Sequence[Mapping[str, Any]], every: bool) -> str:
    """Tables: rows by status, what was put in, errors.

    Args:
        every: also rows that are not measured, with the reason, and all inputs.
    """
    lines: list[str] = []
    for status in MEASURED:
        lines += ["", status, _HEAD]
        lines += [_line(row) for row in found if row.status == status and row.emulated is not None]
    if every:
        for status in ("input", "out of scope"):
            lines += ["", status, *(_short(row) for row in found if row.status == status)]
        lines += ["", f"numbers put in ({len(inputs)})"]
        lines += [
            f"  {i['name']:44} {i['value']:>10} {i['unit']:9} {i['label']:10} {i['source']}" for i in inputs
        ]
    for s in summaries(found):
        verdict = "met" if s.is_met else "MISSED"
        lines.append(
            f"{s.name:24} {s.count:3} rows: median {s.median:4.1f} %, worst {s.worst:5.1f} % "
            f"({s.worst_row}); median asked {s.bound:g}: {verdict}"
        )
    return "\n".join(lines).lstrip("\n") + "\n"


_HEAD = f"  {'row':40} {'published':>12} {'emulated':>14} {'unit':13} {'error':>8}  case"


def _line(row: Row) -> str:
    error = "" if row.error_pct is None else f"{row.error_pct:+.1f} %"
    points = "" if row.points is None else f"  ({row.points:+.1f} points)"
    note = "" if row.counted else "  not counted"
    head = f"  {row.name:40} {_number(row.published):>12} {_number(row.emulated):>14} {row.unit:13}"
    return f"{head} {error:>8}  {row.case}{points}{note}"


def _short(row: Row) -> str:
    return f"  {row.name:40} {_number(row.published):>12} {row.unit:13} {row.why}"


def _number(value: Any) -> str:
    if isinstance(value, list):
        return " to ".join(_number(v) for v in value)
    return f"{value:.4g}" if abs(value) < 10_000 else f"{value:.0f}"
