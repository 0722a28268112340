"""`superpod calibrate --serving`: published figures of serving (docs/calibration_serving.md)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from collectives.calibrate import emulated
from emulator.errors import UsageError
from launch import run
from launch.outputs import write_out
from launch.workplace import work_directory
from serving.published.cases import PUBLISHED, Case, parse_case
from serving.published.figures import Figures, Value, values
from serving.published.inputs import inputs
from serving.published.job import MANAGED_BYTES
from serving.published.kept import Kept
from serving.published.report import as_json, as_text, rows
from serving.published.split import attention_cores
from serving.published.system import MACHINE, load_system


def measure_serving(
    asked: Iterable[str],
    decode: Mapping[str, Any] | None,
    out: Path | None,
    to_json: bool,
    every: bool,
    keep: Path | None = None,
) -> int:
    """Measure and tell.

    Args:
        asked: cases of the user's own; none: all published ones.
        decode: what `superpod decode --json` wrote; its rows go before those measured here.
        out: of the JSON; None with `to_json`: it is the output.
        every: rows that are not measured and all inputs as well.
        keep: folder of measured cases; those in it are not measured again.
    """
    own = [parse_case(text) for text in asked]
    with work_directory() as folder:
        found = measured(own or PUBLISHED, Kept(keep or folder), keep or folder)
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


def measured(cases: Iterable[Case], kept: Kept, folder: Path) -> dict[str, Any]:
    """What is found by name of the case: kept in the folder, or measured by ranks that start once for all
    cases of one size."""
    asked = [replace(case, attention_cores=attention_cores(case)) for case in cases]
    by_size: dict[int, list[Case]] = {}
    for case in asked:
        load_system(case.system)
        if kept.read(case) is None:
            by_size.setdefault(case.ranks, []).append(case)
    for ranks in sorted(by_size):
        typer.echo(f"calibrate: {len(by_size[ranks])} cases of serving on {ranks} ranks", err=True)
        _run(ranks, by_size[ranks], folder)
    found: dict[str, Any] = {}
    for case in asked:
        if (one := kept.read(case)) is None:
            raise UsageError(f"calibrate: the ranks ended without a result of {case.name}")
        found[case.name] = one
    return found


def _run(ranks: int, cases: list[Case], folder: Path) -> None:
    what = json.dumps([[case.name, case.passes, case.attention_cores] for case in cases])
    config = {"profile": MACHINE, "managed_bytes": MANAGED_BYTES}
    argv = ["-m", "serving.published", what, str(folder.resolve())]
    ended = run.run_job(ranks, argv, config, started_s=run.command_start_s())
    if ended.exit_code:
        raise typer.Exit(ended.exit_code)


def _figures(name: str, found: Mapping[str, Any]) -> Figures:
    return Figures(parse_case(name), found)


def _cases_text(found: Mapping[str, Any]) -> str:
    lines = []
    for name, one in found.items():
        told = _figures(name, one).as_dict()
        lines.append(f"{name}: " + ", ".join(f"{key} {value:.4g}" for key, value in told.items()))
    return "\n".join(lines) + "\n"
