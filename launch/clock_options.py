"""`--clock wall --dilation F …` for every command that starts ranks: one set of options, handed on by the
variables that `emulator.config` reads, so an mpirun script is told the same way."""

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any

import typer

from emulator.config import CLOCK_KEYS, clock_of, clock_value
from emulator.errors import UsageError

_COMMANDS = ("run", "replay", "bench", "compare", "calibrate", "decode", "eplb", "chaos", "serve")
_NO_WALL = {
    "eplb": "it starts no ranks, so nothing of it can be slept",
}
_GIVEN = "superpod.clock"
_HELP = {
    "clock": "virtual, or wall: delays are really slept.",
    "dilation": "Wall clock: host seconds that one emulated second takes.",
    "spin_below_us": "Wall clock: spin for the last microseconds of a sleep (needs spare cores).",
    "grace_s": "Wall clock: host seconds a rank may be late before the others go on without it.",
    "compute": "priced, or measured: the real time of the computing thread (wall clock).",
    "compute_factor": "Emulated seconds for each second of measured compute.",
}


def checked(key: str, value: str, name: str = "") -> str:
    """A value of an option, or of the variable `name`. Raises UsageError: not one of the choices, no number,
    or not positive."""
    clock_value(key, value, f"{name}={value}" if name else f"--{key.replace('_', '-')} {value}")
    return value


def check_use(command: str, environ: Mapping[str, str], given: Collection[str]) -> None:
    """Refuse a clock that a command cannot have, values that are none, and options that would do nothing.

    Args:
        command: its name, "bench coll" for one in a group.
        environ: the environment, with what the options have put there.
        given: keys of the options on the command line.

    Raises:
        UsageError: see above.
    """
    for key, name in CLOCK_KEYS.items():
        if name in environ:
            checked(key, environ[name], "" if key in given else name)
    first = command.split(" ", 1)[0]
    if clock_of(environ).get("clock") == "wall":
        why = _NO_WALL.get(command) or _NO_WALL.get(first)
        if why and given:
            raise UsageError(f"superpod {command} has no wall clock: {why}")
        return
    for key in given:
        if key != "clock":
            raise UsageError(f"--{key.replace('_', '-')} is of the wall clock: give --clock wall as well")


def check_server(card: Mapping[str, Any], environ: Mapping[str, str], given: Collection[str]) -> None:
    """Refuse a server that does not run with the clock that the options ask for.

    Args:
        card: what the server says of its clock, by key; empty: nothing.
        environ: with what the options have put there.
        given: keys of the options on the command line.

    Raises:
        UsageError: see above; the line says how the server would have to be started.
    """
    wanted = {key: clock_value(key, environ[CLOCK_KEYS[key]], key) for key in CLOCK_KEYS if key in given}
    for key, value in wanted.items():
        if card.get(key) != value:
            words = " ".join(f"--{k.replace('_', '-')} {environ[CLOCK_KEYS[k]]}" for k in wanted)
            has = f"has {key.replace('_', ' ')} {card[key]}" if key in card else "does not tell its clock"
            raise UsageError(f"superpod bench serve {words}: the server {has}: start superpod serve {words}")


def given_options(context: Any) -> set[str]:
    """Keys of the clock's options that are on the command line of a command."""
    found: set[str] = context.meta.get(_GIVEN, set())
    return found


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
            context.meta.setdefault(_GIVEN, set()).add(key)

    return callback


def add_clock_options(command: Any) -> None:
    """Give the clock's options to the commands that start ranks, those inside groups included."""
    for name, sub in getattr(command, "commands", {}).items():
        if name in _COMMANDS:
            _add(sub, name)


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


def _add(command: Any, name: str) -> None:
    if hasattr(command, "commands"):
        for inner, sub in command.commands.items():
            _add(sub, f"{name} {inner}")
        return
    taken = {word for parameter in command.params for word in parameter.opts}
    command.params.extend(o for o in _options().values() if not taken.intersection(o.opts))
    invoke = command.invoke

    def guarded(context: Any) -> Any:
        check_use(name, os.environ, given_options(context))
        return invoke(context)

    command.invoke = guarded
