"""The commands that make a ledger, or bring it up to this version: init and migrate."""

from collections.abc import Sequence
from typing import Annotated

import typer
from typer import Option

from onceward import terminal
from onceward.cli.ledgers import (
    DEFAULT_STORE,
    TROUBLE,
    USAGE,
    JsonOption,
    StoreOption,
    looking_at,
    opened,
    refuse,
    said,
)
from onceward.core.drivers import drive
from onceward.errors import OncewardError
from onceward.stores.capabilities import MIGRATE, PROVISION, TEMPLATE
from onceward.stores.contract import Part

PitrOption = Annotated[
    bool, Option("--pitr", help="DynamoDB: switch point-in-time recovery on. AWS charges for it by the table's size.")
]
TtlOption = Annotated[
    bool,
    Option("--ttl", help="DynamoDB: switch TTL on even if the table has items. TTL deletes items that have expired."),
]
IndexOption = Annotated[
    bool,
    Option(
        "--index", help="DynamoDB: make an index of what is not completed. Each claim and completion then writes more."
    ),
]
PrintOption = Annotated[
    str | None,
    Option(
        "--print",
        metavar="F",
        help="Print how, and make nothing. DynamoDB: cloudformation or terraform. SQL stores: sql.",
    ),
]


def init(
    store: StoreOption = DEFAULT_STORE,
    pitr: PitrOption = False,
    ttl: TtlOption = False,
    index: IndexOption = False,
    print_: PrintOption = None,
    json: JsonOption = False,
) -> None:
    """Make the ledger, such as an SQLite file, tables in PostgreSQL, or a DynamoDB table (on demand, with a TTL). What exists stays as it is.

    A DynamoDB table with items gets a TTL only if you pass --ttl, because TTL would also delete items that are not onceward's.
    """
    once = opened(store)
    options = {name for name, given in (("pitr", pitr), ("ttl", ttl), ("index", index)) if given}
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
    lines = [f"{'made' if part.made else 'was there'}: {part.what}" for part in parts]
    _tell(once.store.url, parts, lines or [f"{once.store.url} needs nothing made"], json=json)


def migrate(store: StoreOption = DEFAULT_STORE, json: JsonOption = False) -> None:
    """Add to a ledger what this version needs and an earlier version did not make. The records stay as they are.

    Earlier versions can still use the ledger. A worker adds the same things by itself on first use. If your workers have no
    right to alter the ledger, run this command before you deploy them.
    """
    with looking_at(store) as ledger:
        needed = MIGRATE.of(ledger.store)
        parts = [] if needed is None else drive(needed(), ledger.store)
    url = ledger.store.url
    _tell(
        url, parts, [f"added: {part.what}" for part in parts if part.made] or [f"{url} needs no migration"], json=json
    )


def _tell(url: str, parts: Sequence[Part], lines: Sequence[str], *, json: bool) -> None:
    told = terminal.json({"store": url, "parts": [part._asdict() for part in parts]})
    typer.echo(told if json else "\n".join(map(terminal.line, lines)))
