"""The commands, put together."""

import os
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperCommand

from onceward import terminal
from onceward.cli.ledgers import TROUBLE, said
from onceward.errors import OncewardError


class _Place(NamedTuple):
    """Where a command is: its module, its function, and the name of its help text if that is not the function's docstring."""

    module: str
    function: str
    help: str = "__doc__"


COMMANDS: Final = {
    "pipe": _Place("pipe", "pipe", "HELP"),
    "exec": _Place("execute", "execute", "HELP"),
    "run": _Place("pipeline_run", "run", "RUN_HELP"),
    "vet": _Place("pipeline_run", "vet", "VET_HELP"),
    "test": _Place("pipeline_run", "examples", "TEST_HELP"),
    "work": _Place("work", "work", "HELP"),
    "erase": _Place("erase", "erase", "HELP"),
    "complete": _Place("complete", "complete", "HELP"),
    "serve": _Place("serve", "serve", "HELP"),
    "token": _Place("serve", "token", "MAKING"),
    "relay": _Place("relay", "relay", "HELP"),
    "proxy": _Place("proxy", "proxy", "HELP"),
    "demo": _Place("demo", "demo"),
    "init": _Place("init", "init"),
    "migrate": _Place("init", "migrate"),
    "ls": _Place("scans", "ls"),
    "show": _Place("operate", "show"),
    "clear": _Place("operate", "clear"),
    "park": _Place("operate", "park"),
    "unpark": _Place("operate", "unpark"),
    "settle": _Place("operate", "settle"),
    "retry": _Place("operate", "retry"),
    "purge": _Place("scans", "purge"),
    "stats": _Place("scans", "stats"),
    "redrive": _Place("redrive", "redrive"),
    "doctor": _Place("doctor", "doctor"),
    "reconcile": _Place("reconcile", "reconcile"),
    "dashboard": _Place("dashboard", "dashboard"),
    "mcp": _Place("mcp", "mcp"),
}
_WITH_COMMAND: Final = ("pipe", "exec")  # which run the command after ``--``


def _version(asked: bool) -> None:
    if asked:
        from onceward import __version__

        typer.echo(f"onceward {__version__}")
        raise typer.Exit


def _callback(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def _flowing(text: str) -> str:
    """Return a help text with one line per paragraph, for the terminal to break."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n"))


class _WithCommand(TyperCommand):
    """A command whose usage shows what comes after ``--``."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # its type is not public
        return [*super().collect_usage_pieces(ctx), "-- COMMAND [ARG]..."]


def command_line(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """Return the command line with these commands. The import of all of them takes half a second."""
    app = typer.Typer(
        name="onceward",
        help="Handlers of at-least-once messages take effect exactly once.",
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_callback)
    for name in names:
        place = COMMANDS[name]
        module = import_module(f"onceward.cli.{place.module}")
        function = getattr(module, place.function)
        told = getattr(function if place.help == "__doc__" else module, place.help)
        kind = _WithCommand if name in _WITH_COMMAND else TyperCommand
        app.command(name, cls=kind, help=_flowing(told))(function)
    return app


def run(arguments: list[str] | None = None, name: str = "onceward") -> None:
    """Run the command line, by default with this process's arguments.

    typer must not parse what follows ``--`` after ``pipe`` and ``exec``: that is the command to run.
    """
    _open_standard_streams()
    terminal.guard()
    arguments, command = sys.argv[1:] if arguments is None else arguments, []
    names = arguments[:1] if arguments[:1] and arguments[0] in COMMANDS else COMMANDS
    if names is not COMMANDS and arguments[0] in _WITH_COMMAND and "--" in arguments:
        at = arguments.index("--")
        arguments, command = arguments[:at], arguments[at + 1 :]
    status: int | str | None = 0
    try:
        command_line(names)(args=arguments, obj=command, prog_name=name)
    except SystemExit as end:
        status = end.code
    except OncewardError as error:  # of a ledger or a broker: a traceback would say nothing more
        sys.stderr.write(f"onceward: {terminal.line(said(error))}\n")
        status = TROUBLE
    # The caught exception holds the frames, and these the store, until the interpreter ends. So raise a new one.
    sys.exit(status)


def _open_standard_streams() -> None:
    """Open standard streams that this process was started without, before a file of ours takes their numbers."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
