"""The commands, put together."""

import inspect
import os
import sys
from collections.abc import Callable, Iterable
from copy import copy
from typing import Annotated, Final, get_args, get_origin

import typer

from onceward import terminal
from onceward.cli.ledgers import TROUBLE
from onceward.docstrings import Described, section, summary
from onceward.errors import OncewardError
from onceward.lazily import at

# Each command, and where it is: its module and its function.
COMMANDS: Final = {
    "pipe": "pipe:pipe",
    "exec": "execute:execute",
    "run": "pipeline_run:run",
    "vet": "pipeline_run:vet",
    "test": "pipeline_run:examples",
    "work": "work:work",
    "complete": "complete:complete",
    "serve": "serving:serve",
    "token": "serving:token",
    "relay": "relay:relay",
    "proxy": "proxy:proxy",
    "demo": "demo:demo",
    "init": "init:init",
    "migrate": "init:migrate",
    "ls": "scans:ls",
    "show": "operate:show",
    "clear": "operate:clear",
    "park": "operate:park",
    "unpark": "operate:unpark",
    "settle": "operate:settle",
    "retry": "operate:retry",
    "purge": "scans:purge",
    "stats": "scans:stats",
    "redrive": "redrive:redrive",
    "doctor": "doctor:doctor",
    "reconcile": "scans:reconcile",
    "dashboard": "serving:dashboard",
    "mcp": "mcp:mcp",
}
_WITH_COMMAND: Final = ("pipe", "exec")  # which run the command after ``--``


def _version(is_wanted: bool) -> None:
    if is_wanted:
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


def _described(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that its docstring describes: typer reads signatures."""
    options, signature = section(command, "Options"), inspect.signature(command, eval_str=True)
    parameters = [
        _option(one, options[one.name]) if one.name in options else one for one in signature.parameters.values()
    ]
    vars(command)["__signature__"] = signature.replace(parameters=parameters)
    return command


def _option(parameter: inspect.Parameter, options: Described) -> inspect.Parameter:
    """Return a parameter as an option. What stands for its default is behind "By default:"."""
    annotation = parameter.annotation
    kind, info = get_args(annotation) if get_origin(annotation) is Annotated else (annotation, typer.Option())
    info = copy(info)
    info.help, _, default = options.text.partition(" By default: ")
    info.metavar, info.show_default = options.word or None, default.removesuffix(".") or True
    if kind is bool and info.default is ...:
        info.default = f"--{parameter.name.replace('_', '-')}"  # else there would be a --no-... beside it
    return parameter.replace(annotation=Annotated[kind, info])


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
        command = at(f"onceward.cli.{COMMANDS[name]}")
        app.command(name, help=_flowing(summary(command)))(_described(command))
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
        sys.stderr.write(f"onceward: {terminal.line(str(error))}\n")
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
