"""The option for the number of ranks: one set of names in every command."""

from typing import Any

import typer

NAMES = ("-n", "--np", "--ranks")
"""mpirun's names, and that of nccl-tests' and Mooncake's benchmarks."""


def ranks_option(text: str = "Ranks (NPU dies).", least: int | None = None) -> Any:
    """Return the option for an int whose help is `text`; below `least` the parser refuses it."""
    return typer.Option(*NAMES, min=least, help=text)
