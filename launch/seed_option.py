"""The option `--seed`: a whole number of 64 bits, as every generator here takes it."""

from typing import Any

import typer

from emulator.config import check_seed


def seed_option(text: str) -> Any:
    """Return the option for an int whose help is `text`. Parsing raises UsageError beyond 64 bits."""

    def checked(param: typer.CallbackParam, value: int) -> int:
        return check_seed(param.opts[0], value)

    return typer.Option(min=0, help=text, callback=checked)
