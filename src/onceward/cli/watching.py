"""Draws the output of a command again and again, until ctrl-C."""

import shutil
import sys
import time
from collections.abc import Callable
from typing import Annotated, Final

import typer
from typer import Option

from onceward import terminal
from onceward.cli.ledgers import USAGE, looking_at, refuse, said
from onceward.errors import StoreError
from onceward.stores.ledger import Ledger
from onceward.terminal import line

_EVERY: Final = 2.0  # seconds
_CLEAR: Final = "\x1b[H\x1b[2J"

WatchOption = Annotated[
    bool, Option("--watch", help=f"Show it again every {_EVERY:.0f} seconds on a terminal, until ctrl-C.")
]


def watching(store: str, text: Callable[[Ledger], str]) -> None:
    """Draw what ``text`` says of a ledger, again and again. A ledger that is away is told, and asked again."""
    if not sys.stdout.isatty():
        refuse("--watch needs a terminal: without one, call the command again yourself", USAGE)
    with looking_at(store) as ledger:
        try:
            while True:
                try:
                    told = text(ledger)
                except StoreError as error:
                    told = line(said(error))
                _draw(told)
                time.sleep(_EVERY)
        except KeyboardInterrupt:
            return


def _draw(text: str) -> None:
    """Clear the screen, and write the lines that it has room for."""
    rows = shutil.get_terminal_size().lines - 1
    sys.stdout.flush()
    screen = terminal.drawn(sys.stdout)
    screen.write(_CLEAR)
    screen.flush()
    typer.echo("\n".join(text.split("\n")[:rows]))
