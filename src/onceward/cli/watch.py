"""The command that tells people what is wrong: watch."""

import shlex
import shutil
import sys
import threading
from collections.abc import Callable
from typing import Annotated

import typer
from typer import Option

from onceward import terminal
from onceward.cli.durations import seconds
from onceward.cli.ledgers import DEFAULT_STORE, TROUBLE, USAGE, StoreOption, looking_at, opened, refuse, said
from onceward.consumers.stop import signals
from onceward.errors import OncewardError
from onceward.watch import IncidentLimits, Notice, Watcher
from onceward.watch.notices import Tell, command, webhook

EveryOption = Annotated[str, Option("--every", metavar="DURATION", help="How often to look.")]
WebhookOption = Annotated[
    str | None, Option("--webhook", metavar="URL", help="POST each notice there, as JSON.", show_default=False)
]
ExecOption = Annotated[
    str | None,
    Option(
        "--exec",
        metavar="COMMAND",
        help="Run this for each notice, without a shell: its JSON is the standard input.",
        show_default=False,
    ),
]
StuckOption = Annotated[
    str, Option("--stuck", metavar="DURATION", help="A key is stuck when a worker holds it so long.")
]
LapsedOption = Annotated[
    str, Option("--lapsed", metavar="DURATION", help="Tell of a vanished worker so long after its lease.")
]
OverdueOption = Annotated[
    str, Option("--overdue", metavar="DURATION", help="Tell of a message that is so long overdue.")
]
DoctorOption = Annotated[bool, Option(help="Look at the ledger's settings, too, every ten minutes.")]
OnceOption = Annotated[
    bool, Option("--once", help="Look once and end: for cron. The exit status is 1 if a notice failed.")
]


def watch(
    store: StoreOption = DEFAULT_STORE,
    every: EveryOption = "30s",
    webhook_url: WebhookOption = None,
    exec_command: ExecOption = None,
    stuck: StuckOption = "1h",
    lapsed: LapsedOption = "5m",
    overdue: OverdueOption = "5m",
    doctor: DoctorOption = True,
    once: OnceOption = False,
) -> None:
    """Tell of parked, stuck and lapsed keys, overdue messages and unsafe settings, when they begin and when they are over.

    Each is told at least once, and normally once, also by several watchers of one ledger: run two, so that one can fail. Without
    --webhook and --exec, the notices are only printed.

    It finds records by an index if the ledger has one. Without it, DynamoDB charges for the whole table each time. SQLite reads its
    whole file for keys in progress.
    """
    tells: list[Tell] = [_print]
    try:
        if webhook_url is not None:
            tells.append(webhook(webhook_url))
        if exec_command is not None:
            argv = shlex.split(exec_command) or refuse("--exec: give a command", USAGE)
            if shutil.which(argv[0]) is None:  # else the first notice of a night would tell it
                refuse(f"--exec {argv[0]}: no such command, or it is not executable", USAGE)
            tells.append(command(argv))
    except ValueError as error:
        refuse(str(error), USAGE)
    pause = seconds("--every", every) or refuse("--every: give more than 0 seconds", USAGE)
    limits = IncidentLimits(
        *(seconds(*one) or 0.0 for one in (("--stuck", stuck), ("--lapsed", lapsed), ("--overdue", overdue)))
    )
    with looking_at(store):
        pass  # the ledger is there
    ledger = opened(store)
    try:
        _rounds(Watcher(ledger, tells[::-1], limits, doctor=doctor), None if once else pause)
    finally:
        ledger.close()


def _rounds(watcher: Watcher, pause: float | None) -> None:
    stopped = threading.Event()
    with signals(stopped.set, stopped.set):
        while True:
            failed = _round(watcher, stopped.is_set)
            if pause is None:
                raise typer.Exit(TROUBLE if failed else 0)
            if stopped.wait(pause):
                return


def _round(watcher: Watcher, is_stopped: Callable[[], bool]) -> bool:
    try:
        errors = watcher.round(is_stopped).errors
    except (
        Exception
    ) as error:  # mostly the ledger is away. A watcher that ends tells nothing: the next round asks again
        errors = [error]
    for one in errors:
        text = said(one) if isinstance(one, OncewardError) else f"{type(one).__name__}: {one}"
        typer.echo(f"onceward: {terminal.line(text)}", err=True)
    return bool(errors)


def _print(notice: Notice) -> None:
    typer.echo(notice.text)
    sys.stdout.flush()
