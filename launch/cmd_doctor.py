"""Placeholder while being written."""

import typer


def register(app: typer.Typer) -> None:
    """Add the subcommand."""
