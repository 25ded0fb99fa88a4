"""The commands for those who look after a ledger: ls, show, clear, park, unpark, purge and stats."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import msgspec
import typer

from onceward.cli.ledgers import DEFAULT_STORE, TROUBLE, USAGE, JsonOption, StoreOption, existing, refuse
from onceward.cli.records import as_json, details, heading, row
from onceward.core.protocol import STATUSES
from onceward.core.record import Record
from onceward.errors import Busy, OncewardError
from onceward.ledger import Ledger

KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="The key as `onceward ls` shows it.")]
PrefixOption = Annotated[str, typer.Option(metavar="P", help="Only keys that start with P.")]
StatusOption = Annotated[str | None, typer.Option(metavar="S", help=f"Only {', '.join(sorted(STATUSES))}.")]
LimitOption = Annotated[int | None, typer.Option(min=0, metavar="N", help="At most N records.", show_default="all")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do it although a worker holds the key.")]
ReasonOption = Annotated[str, typer.Option(metavar="TEXT", help="What to tell those who meet the key.")]


def ls(
    store: StoreOption = DEFAULT_STORE,
    prefix: PrefixOption = "",
    status: StatusOption = None,
    limit: LimitOption = None,
    json: JsonOption = False,
) -> None:
    """List the records, in the order of their keys."""
    if status is not None and status.upper() not in STATUSES:
        refuse(f"--status {status}: there are {', '.join(sorted(STATUSES))}", USAGE)
    with _ledger(store) as ledger:
        for count, (record, now) in enumerate(ledger.records(prefix, status and status.upper())):
            if count == limit:
                break
            if not json and count == 0:
                typer.echo(heading())
            typer.echo(as_json(record) if json else row(record, now))


def show(key: KeyArgument, store: StoreOption = DEFAULT_STORE, json: JsonOption = False) -> None:
    """Show all that is recorded of a key."""
    with _ledger(store) as ledger:
        record, now = ledger.show(key)
        typer.echo(as_json(record) if json else details(record, now))


def clear(
    key: KeyArgument, yes: YesOption = False, store: StoreOption = DEFAULT_STORE, json: JsonOption = False
) -> None:
    """Forget a key, so that its next delivery runs again. Asks first when a worker holds it."""
    with _ledger(store) as ledger:
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
    with _ledger(store) as ledger:
        record = _asking(lambda live: ledger.park(key, reason, live=live), "Park it", yes=yes)
        _tell(record, f"parked: {reason}", json=json)


def unpark(key: KeyArgument, store: StoreOption = DEFAULT_STORE, json: JsonOption = False) -> None:
    """Let a parked key run again, with all its attempts."""
    with _ledger(store) as ledger:
        _tell(ledger.unpark(key), "unparked; its next delivery runs", json=json)


def purge(store: StoreOption = DEFAULT_STORE, json: JsonOption = False) -> None:
    """Delete the expired records now; writes do the same, a few at a time."""
    with _ledger(store) as ledger:
        gone = ledger.purge()
        typer.echo(msgspec.json.encode({"purged": gone}).decode() if json else f"{gone} expired record(s) deleted")


def stats(prefix: PrefixOption = "", store: StoreOption = DEFAULT_STORE, json: JsonOption = False) -> None:
    """Count the records by status; `lapsed` are in progress with nobody at work, `expired` await deletion."""
    with _ledger(store) as ledger:
        counts = ledger.stats(prefix)
        if json:
            typer.echo(msgspec.json.encode(counts).decode())
        else:
            typer.echo("\n".join(f"{name:<12} {count:>10}" for name, count in counts.items()))


@contextmanager
def _ledger(store: str) -> Iterator[Ledger]:
    """Open the ledger that is there; its errors end the command with one line."""
    once = existing(store)
    try:
        yield once.ledger
    except OncewardError as error:
        refuse(str(error), TROUBLE)
    except BrokenPipeError:
        sys.stdout = None
        raise typer.Exit(141) from None
    finally:
        once.close()


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
