"""Opening the ledger that a command was told to use, and ending a command with one clear line."""

from pathlib import Path
from typing import Annotated, NoReturn

import typer

from onceward.once import Once
from onceward.stores.contract import Store

DEFAULT_STORE = "sqlite:///onceward.db"
USAGE, TROUBLE = 2, 1

StoreOption = Annotated[
    str, typer.Option("--store", metavar="URL", envvar="ONCEWARD_STORE", help="The ledger, as sqlite:///PATH.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON to the standard output.")]


def refuse(text: str, status: int) -> NoReturn:
    """End the command with a line on the standard error and an exit status."""
    typer.echo(f"onceward: {text}", err=True)
    raise typer.Exit(status)


def opened(url: str) -> Once:
    """Return the ledger at ``url``; nothing is opened yet. Ends the command when the URL is not valid."""
    try:
        return Once(url)
    except (ValueError, TypeError) as error:
        refuse(str(error), USAGE)


def existing(url: str) -> Once:
    """As :func:`opened`, for commands that look at a ledger: refuses to make one."""
    once = opened(url)
    path = file_of(once.store)
    if path is not None and not Path(path).exists():
        refuse(f"there is no ledger at {path}; name one with --store or ONCEWARD_STORE", TROUBLE)
    return once


def file_of(store: Store) -> str | None:
    """Return the file that a store is kept in, or None when it is not a file."""
    path = getattr(store, "path", None)
    return path if isinstance(path, str) else None
