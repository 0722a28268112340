"""`superpod trace`: export a trace directory, compare two traces, draw one."""

from pathlib import Path
from typing import Annotated

import typer

from launch import tracefile, traceplot


def register(app: typer.Typer) -> None:
    """Add the subcommands."""
    trace = typer.Typer(help="Look at traces of runs.", no_args_is_help=True)
    trace.command("diff")(diff)
    trace.command("export")(export)
    trace.command("plot")(plot)
    app.add_typer(trace, name="trace")


def diff(
    a: Annotated[Path, typer.Argument(help="A trace directory or a file of --trace-out.")],
    b: Annotated[Path, typer.Argument(help="Another one.")],
) -> int:
    """Show the first difference of two traces in virtual time. Exit code 0: none, 1: there is one."""
    found = tracefile.first_difference(a, b)
    if found is None:
        typer.echo("the traces are equal")
        return 0
    for path, event in zip((a, b), found, strict=True):
        typer.echo(f"{path}: {event if event is not None else 'this track has ended'}")
    return 1


def export(
    directory: Annotated[Path, typer.Argument(help="A trace directory.")],
    out: Annotated[Path, typer.Argument(help="The JSON file to write, for ui.perfetto.dev.")],
) -> int:
    """Write a trace directory as Perfetto/Chrome JSON."""
    typer.echo(f"{tracefile.export(directory, out)} events")
    return 0


def plot(
    trace: Annotated[Path, typer.Argument(help="A trace directory or a file of --trace-out.")],
    out: Annotated[Path, typer.Argument(help="The picture to write: .png, .svg or .pdf.")],
    from_ms: Annotated[float, typer.Option(help="Virtual time to begin at.")] = 0.0,
    to_ms: Annotated[float, typer.Option(help="Virtual time to end at.")] = float("inf"),
) -> int:
    """Draw what each rank was doing over virtual time."""
    typer.echo(f"{out}: {traceplot.plot(trace, out, from_ms, to_ms)} ranks")
    return 0
