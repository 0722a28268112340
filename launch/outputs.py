"""Files a command writes: refused before the work where that can be known, written in one place.

Every parameter that names such a file stands in `OUTPUTS`, whatever the command. `add_output_checks` looks at
them before the command begins: an empty name, a directory, a place where nothing can be written, one file for
two results.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from emulator.errors import UsageError

OUTPUTS = (
    "json_out",
    "out",
    "plot",
    "plot_out",
    "record",
    "resume",
    "save_result",
    "schedule_out",
    "trace_out",
)
"""Names of the parameters, options and arguments alike."""


def check_writable(option: str, path: Path | None) -> None:
    """Make sure a file can be written at the end of a run. Raises UsageError."""
    if path is None:
        return
    if str(path) == "-":
        raise UsageError(f"{option} -: name a file; /dev/stdout is the output")
    if path.is_dir():
        raise UsageError(f"{option} {path}: that is a directory; name a file")
    if not path.parent.is_dir():
        raise UsageError(f"{option} {path}: there is no directory {path.parent}")
    is_new = not path.exists()
    if not is_new and not path.is_file():  # a pipe or a terminal: opening it might wait
        allowed = os.access(path, os.W_OK)
    else:
        allowed = _opens(path)
        if allowed and is_new:
            path.unlink(missing_ok=True)
    if not allowed:
        raise UsageError(f"{option} {path}: cannot write a file there")


def _opens(path: Path) -> bool:
    """Whether the file opens for writing at its end; it exists afterwards."""
    try:
        path.open("ab").close()
    except (OSError, ValueError):  # also where permissions would allow it, as in /proc
        return False
    return True


def write_out(option: str, path: Path, text: str) -> None:
    """Write a result at the end of a run. Raises UsageError, of a full disk for instance."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as e:
        raise UsageError(f"{option} {path}: cannot be written: {e.strerror}") from None


def check_outputs(given: Mapping[str, Path]) -> None:
    """Check the files of one command, by option. Raises UsageError."""
    taken: dict[Path, str] = {}
    for option, path in given.items():
        check_writable(option, path)
        place = path.resolve()
        if place in taken and (path.is_file() or not path.exists()):
            raise UsageError(f"{option} {path}: {taken[place]} writes that file; name another")
        taken[place] = option


def add_output_checks(command: Any) -> None:
    """Give a command, or those inside a group, the checks of this module and of empty values."""
    for sub in _commands(command):
        for parameter in sub.params:
            _refuse_empty(parameter)
        _guard(sub)


def _commands(command: Any) -> Iterator[Any]:
    subs = getattr(command, "commands", None)
    if subs is None:
        yield command
        return
    for sub in subs.values():
        yield from _commands(sub)


def _guard(command: Any) -> None:
    invoke = command.invoke

    def guarded(context: Any) -> Any:
        given = {
            _written(parameter, command): path
            for parameter in command.params
            if parameter.name in OUTPUTS and (path := context.params.get(parameter.name)) is not None
        }
        check_outputs(given)
        return invoke(context)

    command.invoke = guarded


def said(parameter: Any) -> str:
    """A parameter as its user writes it: `--json` for `--save-result, --json`, FILE for an argument."""
    option: str = "--json" if "--json" in parameter.opts else parameter.opts[0]
    return option if option.startswith("-") else str(parameter.metavar or option).strip("[]").upper()


def _written(parameter: Any, command: Any) -> str:
    """An output as its user writes it: FILE of a command with a flag `--json` is its `--json FILE`."""
    flags = [other for other in command.params if "--json" in other.opts and getattr(other, "is_flag", False)]
    return "--json" if flags and parameter.param_type_name == "argument" else said(parameter)


def _refuse_empty(parameter: Any) -> None:
    """Refuse an option or argument that is given and empty; what is meant for a program is its own affair."""
    if parameter.name == "program":
        return
    process = parameter.process_value

    def checked(context: Any, value: Any) -> Any:
        if value == "" or (isinstance(value, list | tuple) and "" in value):
            raise UsageError(f"{said(parameter)} '': it is empty: {' '.join((parameter.help or '').split())}")
        return process(context, value)

    parameter.process_value = checked
