"""The command that makes a ledger, or prints how: init."""

from typing import Annotated

import typer
from typer import Option

from onceward import terminal
from onceward.cli.ledgers import DEFAULT_STORE, TROUBLE, USAGE, JsonOption, StoreOption, opened, refuse, said
from onceward.core.drivers import drive
from onceward.errors import OncewardError
from onceward.stores.capabilities import PROVISION, TEMPLATE

PitrOption = Annotated[
    bool, Option("--pitr", help="DynamoDB: with point-in-time recovery, which is charged by the table's size.")
]
TtlOption = Annotated[
    bool,
    Option("--ttl", help="DynamoDB: switch TTL on also in a table that has items, of which it deletes the expired."),
]
PrintOption = Annotated[
    str | None, Option("--print", metavar="F", help="DynamoDB: print it as cloudformation or terraform instead.")
]


def init(
    store: StoreOption = DEFAULT_STORE,
    pitr: PitrOption = False,
    ttl: TtlOption = False,
    print_: PrintOption = None,
    json: JsonOption = False,
) -> None:
    """Make the ledger, such as a DynamoDB table on demand with its TTL, or an SQLite file. It does not change what exists.

    A DynamoDB table with items gets a TTL only if you pass --ttl, because the TTL would delete items of others, too.
    """
    once = opened(store)
    options = {name for name, given in (("pitr", pitr), ("ttl", ttl)) if given}
    try:
        if print_ is not None:
            typer.echo(TEMPLATE.needed(once.store)(print_, options), nl=False)
            return
        make = PROVISION.needed(once.store) if options else PROVISION.of(once.store)
        parts = [] if make is None else drive(make(options), once.store)
    except OncewardError as error:
        refuse(said(error), TROUBLE)
    except (ValueError, TypeError) as error:
        refuse(str(error), USAGE)
    finally:
        once.close()
    if json:
        told = {"store": once.store.url, "parts": [part._asdict() for part in parts]}
        typer.echo(terminal.json(told))
    elif not parts:
        typer.echo(f"{terminal.line(once.store.url)} needs nothing made")
    else:
        typer.echo("\n".join(f"{'made' if made else 'was there'}: {terminal.line(what)}" for what, made in parts))
