"""Opens the ledger of a command, ends a command with one clear line, and reads durations."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer
from typer import Option

from onceward.core import arguments
from onceward.core.drivers import drive
from onceward.core.policy import Policy, Seal
from onceward.core.urls import has_login, shown_url
from onceward.errors import OncewardError
from onceward.once import Once
from onceward.stores.capabilities import EXISTS
from onceward.stores.ledger import Ledger
from onceward.terminal import line

SealOption = Annotated[str | None, Option(metavar="MODULE:NAME", help="The seal= of the guards: a pair of functions.")]


def import_here() -> None:
    """Let modules of the working directory be imported."""
    sys.path.insert(0, str(Path.cwd()))


def imported_seal(seal: str | None) -> Seal | None:
    """Return the seal that --seal names, or refuse it."""
    if seal is None:
        return None
    from onceward.pipe.functions import imported  # it takes a moment to load

    with usage():
        return Policy(seal=imported(seal, "--seal ", lambda pair: pair is not None)).checked().seal


DEFAULT_STORE = "sqlite:///onceward.db"
USAGE, TROUBLE, INTERRUPTED = 2, 1, 130

StoreOption = Annotated[
    str,
    Option(
        metavar="URL",
        envvar="ONCEWARD_STORE",
        help="The ledger, as sqlite:///PATH, postgresql://USER@HOST/DATABASE, mysql://…, redis://… or dynamodb://TABLE.",
    ),
]
JsonOption = Annotated[bool, Option("--json", help="Write JSON to the standard output.")]
LinesOption = Annotated[bool, Option("--json", help="Write one JSON object per message, and per line of the log.")]
OnceOption = Annotated[bool, Option("--once", help="Do what is due now, then end.")]
AttemptsOption = Annotated[
    int | None, Option(min=1, metavar="N", help="Attempts after which a key is parked.", show_default="no limit")
]
LapseOption = Annotated[
    Literal["retry", "park"], Option(help="What to do with a key whose worker has vanished: run it again, or park it.")
]
NewOption = Annotated[bool, Option("--new-only", help="Print nothing for messages that were done before.")]
YesOption = Annotated[bool, Option("--yes", "-y")]
EmptyOption = Annotated[bool, Option("--until-empty", help="End when the queue has no more messages to give.")]


def say(text: str) -> None:
    """Write a line to the standard error."""
    typer.echo(f"onceward: {line(text)}", err=True)


def refuse(text: str, status: int = USAGE) -> NoReturn:
    """End the command with a line on the standard error and an exit status."""
    say(text)
    raise typer.Exit(status)


@contextmanager
def usage() -> Iterator[None]:
    """End the command with one line if an argument is not valid, or an extra is missing."""
    try:
        yield
    except (ValueError, TypeError, ImportError) as error:
        refuse(str(error))


def refuse_login(place: str) -> None:
    """End the command if the place of a queue has a user or a password, which shells and lists of processes show."""
    with usage():
        if has_login(f":{place}" if place.startswith("//") else place):
            refuse(f"{shown_url(place)}: leave the user and the password out: the broker's variables have them")


def opened(url: str) -> Once:
    """Return the ledger at ``url``; nothing is opened yet. Ends the command if the URL is not valid, or an extra is missing."""
    with usage():
        return Once(url)


@contextmanager
def ledger_at(url: str) -> Iterator[Once]:
    """Open a ledger, which need not be there. Its errors, and wrong arguments, end the command with one line."""
    once = opened(url)
    try:
        with usage():
            yield once
    except OncewardError as error:
        refuse(str(error), TROUBLE)
    finally:
        once.close()


def check_answers(once: Once) -> None:
    """Ask the ledger, so that a mistake shows now, and not at the first request."""
    drive(once.store.load("onceward:health"), once.store)


@contextmanager
def looking_at(url: str, trouble: int = TROUBLE) -> Iterator[Ledger]:
    """Open an existing ledger. Its errors end the command with one line, and this exit status."""
    once = opened(url)
    try:
        exists = EXISTS.of(once.store)
        if exists is not None and not exists():  # it may ask a server
            refuse(f"there is no ledger at {once.store.url}; name one with --store or ONCEWARD_STORE", trouble)
        yield once.ledger
    except OncewardError as error:
        refuse(str(error), trouble)
    except BrokenPipeError:
        sys.stdout = None
        raise typer.Exit(141) from None
    finally:
        once.close()


def seconds(option: str, text: str | None) -> float | None:
    """Return the seconds of a duration such as ``90``, ``90s``, ``10m``, ``1.5h`` or ``7d``. End the command if it is none."""
    try:
        return None if text is None else arguments.seconds(text)
    except ValueError as error:
        refuse(f"{option} {error}")
