"""The commands, put together."""

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from onceward import terminal
from onceward.cli import (
    complete,
    dashboard,
    demo,
    doctor,
    erase,
    execute,
    init,
    mcp,
    operate,
    pipe,
    pipeline_run,
    proxy,
    reconcile,
    redrive,
    relay,
    scans,
    serve,
    work,
)
from onceward.cli.ledgers import TROUBLE, said
from onceward.errors import OncewardError

app = typer.Typer(
    name="onceward",
    help="Handlers of at-least-once messages take effect exactly once.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        from onceward import __version__

        typer.echo(f"onceward {__version__}")
        raise typer.Exit


@app.callback()
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


app.command("pipe", cls=_WithCommand, help=_flowing(pipe.HELP))(pipe.pipe)
app.command("exec", cls=_WithCommand, help=_flowing(execute.HELP))(execute.execute)
app.command("run", help=_flowing(pipeline_run.RUN_HELP))(pipeline_run.run)
app.command("vet", help=_flowing(pipeline_run.VET_HELP))(pipeline_run.vet)
app.command("test", help=_flowing(pipeline_run.TEST_HELP))(pipeline_run.examples)
app.command("work", help=_flowing(work.HELP))(work.work)
app.command("erase", help=_flowing(erase.HELP))(erase.erase)
app.command("complete", help=_flowing(complete.HELP))(complete.complete)
app.command("serve", help=_flowing(serve.HELP))(serve.serve)
app.command("token", help=_flowing(serve.MAKING))(serve.token)
app.command("relay", help=_flowing(relay.HELP))(relay.relay)
app.command("proxy", help=_flowing(proxy.HELP))(proxy.proxy)
for _command in (
    demo.demo,
    init.init,
    init.migrate,
    scans.ls,
    operate.show,
    operate.clear,
    operate.park,
    operate.unpark,
    operate.settle,
    operate.retry,
    scans.purge,
    scans.stats,
    redrive.redrive,
    doctor.doctor,
    reconcile.reconcile,
    dashboard.dashboard,
    mcp.mcp,
):
    app.command(help=_flowing(_command.__doc__ or ""))(_command)


def run(arguments: list[str] | None = None, name: str = "onceward") -> None:
    """Run the command line, by default with this process's arguments.

    typer must not parse what follows ``--`` after ``pipe`` and ``exec``: that is the command to run.
    """
    _open_standard_streams()
    terminal.guard()
    arguments, command = sys.argv[1:] if arguments is None else arguments, []
    if arguments[:1] in (["pipe"], ["exec"]) and "--" in arguments:
        at = arguments.index("--")
        arguments, command = arguments[:at], arguments[at + 1 :]
    status: int | str | None = 0
    try:
        app(args=arguments, obj=command, prog_name=name)
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
