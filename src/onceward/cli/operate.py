"""The commands for those who look after single keys: show, clear, park and unpark."""

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from onceward.cli.ledgers import DEFAULT_STORE, TROUBLE, JsonOption, StoreOption, looking_at, refuse
from onceward.cli.records import as_json, details
from onceward.core.record import Record
from onceward.errors import Busy

KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="The key as `onceward ls` shows it.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do it although a worker holds the key.")]
ReasonOption = Annotated[str, typer.Option(metavar="TEXT", help="What to tell those who meet the key.")]


def show(key: KeyArgument, store: StoreOption = DEFAULT_STORE, json: JsonOption = False) -> None:
    """Show all that is recorded of a key."""
    with looking_at(store) as ledger:
        record, now = ledger.show(key)
        typer.echo(as_json(record) if json else details(record, now))


def clear(
    key: KeyArgument, yes: YesOption = False, store: StoreOption = DEFAULT_STORE, json: JsonOption = False
) -> None:
    """Forget a key, so that its next delivery runs again. Asks first when a worker holds it."""
    with looking_at(store) as ledger:
        record = _asking(lambda live: ledger.clear(key, live=live), "Clear it", yes=yes)
        _tell(record, f"cleared; it was {record.status}", json=json)


def park(
    key: KeyArgument,
    reason: ReasonOption = "parked by hand",
    yes: YesOption = False,
    store: StoreOption = DEFAULT_STORE,
    json: JsonOption = False,
) -> None:
    """Stop retrying a key until it is unparked or cleared. Asks first when a worker holds it."""
    with looking_at(store) as ledger:
        record = _asking(lambda live: ledger.park(key, reason, live=live), "Park it", yes=yes)
        _tell(record, f"parked: {reason}", json=json)


def unpark(key: KeyArgument, store: StoreOption = DEFAULT_STORE, json: JsonOption = False) -> None:
    """Let a parked key run again, with all its attempts."""
    with looking_at(store) as ledger:
        _tell(ledger.unpark(key), "unparked; its next delivery runs", json=json)


def _asking(change: Callable[[bool], Record], what: str, *, yes: bool) -> Record:
    """Make a change, after asking when a worker holds the key."""
    try:
        return change(yes)
    except Busy as busy:
        held = (
            f"{busy.key}: a worker holds this key for {busy.retry_after:.0f} s more, or longer if it renews its lease"
        )
        if not sys.stdin.isatty():
            refuse(f"{held}; --yes does it all the same, and that worker's result will be refused", TROUBLE)
        if not typer.confirm(f"{held}. {what} all the same? That worker's result will be refused", err=True):
            refuse("nothing was changed", TROUBLE)
        return change(True)


def _tell(record: Record, text: str, *, json: bool) -> None:
    typer.echo(as_json(record) if json else f"{record.key}: {text}")
