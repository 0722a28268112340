"""`superpod calibrate`: published figures, measured again on the emulator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from collectives.calibrate import emulated
from collectives.calibrate.cases import Case, parse_case
from collectives.calibrate.emulated import Value
from collectives.calibrate.parameters import parameters
from collectives.calibrate.plan import GROUPS, Job, chosen
from collectives.calibrate.report import as_json, rows
from collectives.calibrate.text import as_text, case_text
from collectives.calibrate.xccl_job import MANAGED_BYTES
from emulator.clock import clock_said
from emulator.errors import UsageError
from launch import run
from launch.calibrate_serving import measure_serving
from launch.clock_report import duration_and_clock, with_report
from launch.cmd_run import check_choice
from launch.outputs import write_out
from launch.workplace import work_directory


def register(app: typer.Typer) -> None:
    """Add the subcommand."""
    app.command("calibrate")(calibrate_command)


def calibrate_command(
    out: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Of --json: where to; else it is the output.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help=f"Measure this group alone: {', '.join(GROUPS)}; repeatable.")
    ] = None,
    case: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LIBRARY:OPERATION:MODE:RANKS[:TOKENS]",
            help="Measure an exchange nobody published, e.g. xccl:dispatch:low-latency:64:32; repeatable.",
        ),
    ] = None,
    decode: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Result of superpod decode -n 288 --json FILE: its rows as well."),
    ] = None,
    measured: Annotated[
        bool, typer.Option("--measured", help="Leave rows out that are not measured, and their reasons.")
    ] = False,
    as_rows: Annotated[
        bool, typer.Option("--json", help="All rows as JSON: --json FILE, or --json.")
    ] = False,
    serving: Annotated[
        bool,
        typer.Option(
            "--serving",
            help="Figures of serving instead: iterations of decode and prefill, priced as DeepSeek-R1. With "
            "--case decode:SYSTEM:DIES:BATCH:LOW-HIGH or prefill:SYSTEM:DIES:TOKENS:PROMPT any other.",
        ),
    ] = False,
    keep: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Of --serving: keep each case there, and go on from those kept."),
    ] = None,
) -> int:
    """Measure published figures again on the emulator: both values, how far apart, label, status.

    Emulated time: the figures do not depend on this host. Jobs of 2 to 448 ranks run one after another.
    """
    for group in only or []:
        check_choice("--only", group, GROUPS)
    if out is not None and not as_rows:
        raise UsageError(f"calibrate takes no {str(out)!r}; write --json {out} for the rows as JSON")
    if serving:
        if only:
            raise UsageError("calibrate --serving takes no --only: its cases are one group")
        found = _read(decode) if decode else None
        return measure_serving(case or [], found, out, as_rows, not measured, keep)
    if keep is not None:
        raise UsageError(f"--keep {keep}: only calibrate --serving keeps cases")
    if case:
        for option, is_given in (
            ("--only", only),
            ("--json", as_rows),
            ("--decode", decode),
            ("--measured", measured),
        ):
            if is_given:
                raise UsageError(
                    f"{option} is of published figures, and --case measures others: leave one out"
                )
        return _measure_cases([parse_case(text) for text in case])
    values, walls = emulated.decode(_read(decode)) if decode else {}, dict[str, Any]()
    for job in chosen(only or []):
        typer.echo(f"calibrate: {job.title} ({job.ranks} ranks)", err=True)
        code = _run(job, values, walls)
        if code:
            return code
    found = rows(values)
    text = as_json(found, parameters(), walls)
    if as_rows and out is None:
        typer.echo(text)
        return 0
    if out is not None:
        write_out("--json", out, text)
    typer.echo(as_text(found, not measured), nl=False)
    for title, wall in walls.items():
        typer.echo(f"{title}: clock {clock_said(wall)}")
    return 0


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"--decode {path}: cannot be read: {error}") from None


def _run(job: Job, values: dict[str, Value], walls: dict[str, Any]) -> int:
    content, clock, code = _content(job.module, job.profile, job.ranks, job.managed_bytes, job.arguments)
    if not code:
        values.update(job.values(content))
        walls.update({job.title: clock["wall"]} if "wall" in clock else {})
    return code


def _measure_cases(cases: list[Case]) -> int:
    for job in sorted({_job_of(case) for case in cases}):
        profile, _ = job
        here = [case for case in cases if _job_of(case) == job]
        asked = json.dumps([case.row for case in here])
        ranks = max(case.ranks for case in here)
        content, clock, code = _content("job", profile, ranks, MANAGED_BYTES, (asked,))
        if code:
            return code
        for case in here:
            typer.echo(case_text(case, content[case.row]))
        if "wall" in clock:
            typer.echo(f"clock {clock_said(clock['wall'])}")
    return 0


def _job_of(case: Case) -> tuple[str, int]:
    """Profile, and ranks of the job: XCCL's exchange is of all ranks of a run, the others' of the first."""
    return case.machine, case.ranks if case.library == "xccl" else 0


def _content(
    module: str, profile: str, ranks: int, managed_bytes: int, arguments: tuple[str, ...]
) -> tuple[dict[str, Any], dict[str, Any], int]:
    """What a job found, its duration and clock, and its exit code."""
    with work_directory() as folder:
        out = folder / "found.json"
        program = ["-m", "collectives.calibrate", module, *arguments, str(out)]
        config, report = with_report({"profile": profile, "managed_bytes": managed_bytes}, folder)
        result = run.run_job(ranks, program, config, started_s=run.command_start_s())
        if result.exit_code:
            return {}, {}, result.exit_code
        if not out.exists():
            raise UsageError("calibrate: the ranks ended without a result")
        found: dict[str, Any] = json.loads(out.read_text())
        clock = duration_and_clock(report)
    return found, clock, 0
