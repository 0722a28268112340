"""The `superpod` command: its subcommands, and how errors are told.

Whatever the caller did wrong is one line on stderr and exit code 2, whether the parser or the program
noticed.
"""

import importlib
import sys
from importlib import metadata
from typing import Annotated, Any

import typer

from emulator.errors import SuperpodError, UsageError
from launch.clock_options import add_clock_options, environment_kept
from launch.outputs import add_output_checks
from launch.standard_output import OutputError, give_up, output_watched

USAGE_EXIT = 2
_registered: set[str] = set()

# Newer typer carries its own copy of click, so the classes are taken from what typer exports.
_ParserError: Any = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="superpod",
    help="An AI SuperPod you can run on one small machine: one real process per NPU die.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its tables cut names of options off at 80 columns
)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"superpod {metadata.version('superpod')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


_COMMANDS = {
    "run": "launch.cmd_run",
    "replay": "launch.cmd_replay",
    "replay-report": "launch.cmd_replay_report",
    "doctor": "launch.cmd_doctor",
    "trace": "launch.cmd_trace",
    "make-checkpoint": "launch.cmd_make_checkpoint",
    "bench": "launch.cmd_bench",
    "compare": "launch.cmd_compare",
    "calibrate": "launch.cmd_calibrate",
    "prices": "launch.cmd_prices",
    "decode": "launch.cmd_decode",
    "eplb": "launch.cmd_eplb",
    "chaos": "launch.cmd_chaos",
    "serve": "launch.cmd_serve",
}


def _register(words: list[str]) -> None:
    """Import the command asked for, or all for help."""
    named = [w for w in words if not w.startswith("-")][:1]
    wanted = [_COMMANDS[w] for w in named if w in _COMMANDS] or list(_COMMANDS.values())
    for name in wanted:
        if name not in _registered:
            _registered.add(name)
            importlib.import_module(name).register(app)


def _whole_lines(group: Any) -> None:
    """Let lists of commands show each one's first paragraph whole, over several lines."""
    for command in group.commands.values():
        command.short_help = command.short_help or " ".join((command.help or "").split("\n\n")[0].split())
        if hasattr(command, "commands"):
            _whole_lines(command)


def _complain(text: str) -> int:
    _say(f"superpod: error: {' '.join(text.split())}")
    return USAGE_EXIT


def _say(text: str) -> None:
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:  # nobody hears it; the exit code says it as well
        give_up(sys.stderr)


def main(argv: list[str] | None = None) -> int:
    """Run the command. Returns the exit code; the console script passes it to `sys.exit`."""
    try:
        _register(sys.argv[1:] if argv is None else argv)
        command: Any = typer.main.get_command(app)
        add_clock_options(command)
        add_output_checks(command)
        _whole_lines(command)
        with environment_kept(), output_watched():
            code = command(args=argv, standalone_mode=False)
        return code if isinstance(code, int) else 0
    except UsageError as e:
        return _complain(str(e))
    except _ParserError as e:
        context = getattr(e, "ctx", None)
        where = f" (see {context.command_path} --help)" if context else ""
        if type(e).__name__ == "NoArgsIsHelpError":
            _say(e.format_message())
            return USAGE_EXIT
        return _complain(e.format_message() + where)
    except (typer.Abort, KeyboardInterrupt):  # the latter while commands are imported
        return 130
    except OutputError as e:
        if isinstance(e.cause, BrokenPipeError):  # whoever read our tables has left
            return 1
        return _complain(f"the output cannot be written: {e}")
    except SuperpodError as e:
        _say(f"superpod: {type(e).__name__}: {e}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
