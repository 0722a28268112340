"""`--clock wall --dilation F …` for every command that starts ranks: one set of options, handed on by the
variables that `emulator.config` reads, so an mpirun script is told the same way."""

import contextlib
import os
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from emulator.config import CLOCK_KEYS, CLOCKS, COMPUTES, number_of
from emulator.errors import UsageError

_COMMANDS = ("run", "replay", "bench", "compare", "calibrate", "decode", "eplb", "chaos")
_CHOICES = {"clock": CLOCKS, "compute": COMPUTES}
_HELP = {
    "clock": "virtual, or wall: delays are really slept.",
    "dilation": "Wall clock: host seconds that one emulated second takes.",
    "spin_below_us": "Wall clock: spin for the last microseconds of a sleep (needs spare cores).",
    "grace_s": "Wall clock: host seconds a rank may be late before the others go on without it.",
    "compute": "priced, or measured: the real time of the computing thread (wall clock).",
    "compute_factor": "Emulated seconds for each second of measured compute.",
}


def checked(key: str, value: str) -> str:
    """A value of an option. Raises UsageError: not one of the choices, no number, or not positive."""
    option = "--" + key.replace("_", "-")
    if key in _CHOICES:
        if value not in _CHOICES[key]:
            raise UsageError(f"{option} {value}: choose one of {', '.join(_CHOICES[key])}")
        return value
    number, least = number_of(option, value), 1e-6 if key in ("dilation", "compute_factor") else 0.0
    if not least <= number <= 1e9:
        raise UsageError(f"{option} {value}: must be a number from {least:g} to 1e9")
    return value


@contextlib.contextmanager
def environment_kept() -> Iterator[None]:
    """What the options put into the environment is for one command."""
    before = {name: os.environ.get(name) for name in CLOCK_KEYS.values()}
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _keep(key: str) -> Any:
    def callback(context: Any, parameter: Any, value: str | None) -> None:
        if value is not None:
            os.environ[CLOCK_KEYS[key]] = checked(key, value)

    return callback


def add_clock_options(command: Any) -> None:
    """Give the clock's options to the commands that start ranks, those inside groups included."""
    for name, sub in getattr(command, "commands", {}).items():
        if name in _COMMANDS:
            _add(sub)


def _options() -> dict[str, Any]:
    """The options by key, made by typer itself: how its classes are made differs between versions."""
    template = typer.Typer(add_completion=False)

    @template.command()
    def _all(
        clock: Annotated[str | None, typer.Option(help=_HELP["clock"])] = None,
        dilation: Annotated[str | None, typer.Option(help=_HELP["dilation"])] = None,
        spin_below_us: Annotated[str | None, typer.Option(help=_HELP["spin_below_us"])] = None,
        grace_s: Annotated[str | None, typer.Option(help=_HELP["grace_s"])] = None,
        compute: Annotated[str | None, typer.Option(help=_HELP["compute"])] = None,
        compute_factor: Annotated[str | None, typer.Option(help=_HELP["compute_factor"])] = None,
    ) -> None:
        pass

    made: Any = typer.main.get_command(template)
    found = {option.name: option for option in made.params if option.name in CLOCK_KEYS}
    for key, option in found.items():
        option.expose_value, option.callback = False, _keep(key)
    return found


def _add(command: Any) -> None:
    if hasattr(command, "commands"):
        for sub in command.commands.values():
            _add(sub)
        return
    taken = {word for parameter in command.params for word in parameter.opts}
    command.params.extend(o for o in _options().values() if not taken.intersection(o.opts))
