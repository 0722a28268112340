"""`superpod calibrate --serving`: published figures of serving (docs/calibration_serving.md)."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import typer

from collectives.calibrate import emulated
from emulator.errors import UsageError
from launch import run
from launch.cmd_run import write_out
from serving.published.cases import PUBLISHED, Case, parse_case
from serving.published.figures import Figures, Value, values
from serving.published.inputs import inputs
from serving.published.job import MANAGED_BYTES
from serving.published.report import as_json, as_text, rows
from serving.published.system import MACHINE, load_system


def measure_serving(
    asked: Iterable[str], decode: Mapping[str, Any] | None, out: Path | None, to_json: bool, every: bool
) -> int:
    """Measure and tell.

    Args:
        asked: cases of the user's own; none: all published ones.
        decode: what `superpod decode --json` wrote; its rows go before those measured here.
        out: of the JSON; None with `to_json`: it is the output.
        every: rows that are not measured and all inputs as well.
    """
    own = [parse_case(text) for text in asked]
    found = measured(own or PUBLISHED)
    if not own:
        told: dict[str, Value] = values(found) | (emulated.decode(decode) if decode else {})
        figures = rows(told)
    put_in = inputs(own or PUBLISHED)
    text = as_json(
        [] if own else figures, put_in, {n: _figures(n, f).as_dict() for n, f in found.items()}, found
    )
    if to_json and out is None:
        typer.echo(text, nl=False)
        return 0
    if out is not None:
        write_out("--json", out, text)
    typer.echo(_cases_text(found) if own else as_text(figures, put_in, every), nl=False)
    return 0


def measured(cases: Iterable[Case]) -> dict[str, Any]:
    """Run the ranks of all cases, those of one size together; what was found by name of the case."""
    by_size: dict[int, list[Case]] = {}
    for case in cases:
        load_system(case.system)
        by_size.setdefault(case.ranks, []).append(case)
    found: dict[str, Any] = {}
    for ranks in sorted(by_size):
        typer.echo(f"calibrate: {len(by_size[ranks])} cases of serving on {ranks} ranks", err=True)
        found |= _run(ranks, by_size[ranks])
    return found


def _run(ranks: int, cases: list[Case]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="superpod-calibrate-") as folder:
        out = Path(folder) / "found.json"
        what = json.dumps([[case.name, case.passes] for case in cases])
        config = {"profile": MACHINE, "managed_bytes": MANAGED_BYTES}
        ended = run.run_job(
            ranks, ["-m", "serving.published", what, str(out)], config, started_s=run.command_start_s()
        )
        if ended.exit_code:
            raise typer.Exit(ended.exit_code)
        if not out.exists():
            raise UsageError("calibrate: the ranks ended without a result")
        found: dict[str, Any] = json.loads(out.read_text())
        return found


def _figures(name: str, found: Mapping[str, Any]) -> Figures:
    return Figures(parse_case(name), found)


def _cases_text(found: Mapping[str, Any]) -> str:
    lines = []
    for name, one in found.items():
        told = _figures(name, one).as_dict()
        lines.append(f"{name}: " + ", ".join(f"{key} {value:.4g}" for key, value in told.items()))
    return "\n".join(lines) + "\n"
