"""`superpod replay-report`: the tables of a replay that ran under somebody's own mpirun."""

from pathlib import Path
from typing import Annotated

import typer

from launch import prepared
from launch.cmd_replay import tell


def register(app: typer.Typer) -> None:
    """Add the subcommand."""
    app.command("replay-report")(replay_report)


def replay_report(
    directory: Annotated[Path, typer.Argument(help="Where superpod replay --prepare wrote the job.")],
    json_out: Annotated[Path | None, typer.Option("--json", help="Write the result here.")] = None,
) -> int:
    """Report on a replay that was prepared with --prepare and has run."""
    return tell(prepared.read(directory), json_out)
