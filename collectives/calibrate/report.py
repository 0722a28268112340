"""Published, emulated, error and status of every row, and what they come to. Pure."""

from __future__ import annotations

import fnmatch
import json
import statistics
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from typing import Any, Final

from collectives.calibrate.cases import CASES
from collectives.calibrate.emulated import Value
from emulator.errors import InternalError

STATUSES: Final = ("input", "fitted", "predicted", "superseded", "out of scope")
MEASURED: Final = ("fitted", "predicted")
BOUNDS: Final = {"expert-parallel": (5.0, 12.0), "normal": (7.0, 15.0), "all": (5.0, 20.0)}
"""Median and worst error allowed, percent."""
LEAST_PREDICTED: Final = 40
_TWINS: Final = {case.twin: case.row for case in CASES if case.twin}


@dataclass(frozen=True)
class Row:
    """One published figure.

    Attributes:
        emulated, error_pct: None where nothing is measured. error_pct is signed; 0 inside a bound or range.
        label: how good the published figure is: published, derived, figure-read, memory.
        status: see `STATUSES`; that of a superseded row names the other.
        counted: it goes into statistics; not the GB/s of a row in us, nor what is not gated.
        group: which statistics beside all. counts: for GB/s, which bytes; why: the reason of the status.
    """

    name: str
    published: Any
    emulated: Value | None
    unit: str
    error_pct: float | None
    label: str
    status: str
    counted: bool
    group: str
    counts: str
    why: str
    source: str
    conditions: str


@cache
def published() -> list[dict[str, Any]]:
    """All published figures, in the file's order."""
    rows: list[dict[str, Any]] = json.loads(_text("published.json"))
    return rows


@cache
def _rules() -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = tomllib.loads(_text("rows.toml"))["rule"]
    return rules


def _text(name: str) -> str:
    return resources.files("collectives.calibrate").joinpath(name).read_text(encoding="utf-8")


def rule_of(name: str) -> dict[str, Any]:
    """Return the first rule of `rows.toml` for a row. Raises: InternalError, there is none."""
    for rule in _rules():
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in rule["match"]):
            return rule
    raise InternalError(f"calibrate: row {name!r} has no rule in rows.toml")


def rows(emulated: Mapping[str, Value]) -> list[Row]:
    """Put both sides together.

    Args:
        emulated: measured values by row; what is missing stays without.
    """
    return [_row(entry, emulated.get(entry["name"])) for entry in published()]


def _row(entry: Mapping[str, Any], value: Value | None) -> Row:
    name, rule = entry["name"], rule_of(entry["name"])
    status = f"superseded by {rule['by']}" if rule["status"] == "superseded" else rule["status"]
    measured = rule["status"] in MEASURED and value is not None
    evidence = entry["evidence"]
    return Row(
        name=name,
        published=entry["value"],
        emulated=value,
        unit=entry["unit"],
        error_pct=None if value is None else _error(entry["value"], value, rule.get("bound", "")),
        label="published" if evidence in ("primary", "secondary") else evidence,
        status=status,
        counted=measured and rule.get("gated", True) and name not in _TWINS,
        group=rule.get("group", ""),
        counts=counted_bytes(name) if "GB/s" in entry["unit"] else "",
        why=rule["why"] if name not in _TWINS else f"{rule['why']}; one measurement with {_TWINS[name]}",
        source=entry["source"],
        conditions=entry["conditions"],
    )


def _error(given: Any, value: Value, bound: str) -> float:
    """Return the error in percent; of several values the largest."""
    if isinstance(value, list):
        return max((_percent(g, v) for g, v in zip(given, value, strict=True)), key=abs)
    low, high = (min(given), max(given)) if isinstance(given, list) else (given, given)
    if (bound == "max" and value <= high) or (bound == "min" and value >= low) or low <= value <= high:
        return 0.0
    return _percent(low if value < low else high, value)


def _percent(given: float, value: float) -> float:
    return 100 * (value / given - 1)


def counted_bytes(name: str) -> str:
    """Say which bytes a row in GB/s counts, and over which routing."""
    case = next((c for c in CASES if name in (c.row, c.twin)), None)
    if case is None:
        return "bytes moved" if rule_of(name)["status"] in MEASURED else ""
    limit = f" of the {case.best_nodes} best nodes" if case.best_nodes else ""
    each = case.counted if case.counted == "expert" else f"distinct {case.counted}"
    routing = f"random best 8 of 256 experts{limit}"
    return f"{case.row_bytes} B for each token and {each}, own share included; {routing}"


@dataclass(frozen=True)
class Summary:
    """Errors of some rows, percent, and the bounds asked for (None: none)."""

    name: str
    count: int
    median: float
    worst: float
    worst_row: str
    bounds: tuple[float, float] | None

    @property
    def is_met(self) -> bool:
        """Whether the errors lie within the bounds."""
        return self.bounds is None or (self.median <= self.bounds[0] and self.worst <= self.bounds[1])


def summaries(found: Iterable[Row]) -> list[Summary]:
    """Errors of all counted rows, by group and status."""
    counted = [row for row in found if row.counted]
    made = []
    for group, bounds in BOUNDS.items():
        chosen = [row for row in counted if group == "all" or row.group == group]
        for status in (*MEASURED, ""):
            made.append(
                _summary(group, status, [r for r in chosen if not status or r.status == status], bounds)
            )
    return [summary for summary in made if summary is not None]


def _summary(group: str, status: str, chosen: list[Row], bounds: tuple[float, float]) -> Summary | None:
    if not chosen:
        return None
    worst = max(chosen, key=_size)
    name = f"{group}, {status}" if status else group
    return Summary(name, len(chosen), statistics.median(map(_size, chosen)), _size(worst), worst.name, bounds)


def _size(row: Row) -> float:
    return abs(row.error_pct or 0.0)


def as_json(found: list[Row], parameters: Mapping[str, Any], wall: Mapping[str, Any] | None = None) -> str:
    """Return all rows, summaries and the numbers they were measured with.

    wall: under the wall clock, by job, its honesty report.
    """
    return json.dumps(
        {
            "rows": [asdict(row) for row in found],
            "summary": [{**asdict(s), "is_met": s.is_met} for s in summaries(found)],
            "parameters": parameters,
            **({"wall": wall} if wall else {}),
        },
        indent=1,
    )
