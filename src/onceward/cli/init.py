"""The command that makes a ledger, or prints how: init."""

import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from onceward import terminal
from onceward.cli.ledgers import DEFAULT_STORE, TROUBLE, USAGE, JsonOption, StoreOption, file_of, opened, refuse, said
from onceward.core.drivers import drive
from onceward.errors import OncewardError
from onceward.stores.contract import Part, Store

if TYPE_CHECKING:
    from onceward.stores.dynamodb import DynamoStore

PitrOption = Annotated[
    bool, typer.Option("--pitr", help="DynamoDB: with point-in-time recovery, which is charged by the table's size.")
]
TtlOption = Annotated[
    bool,
    typer.Option(
        "--ttl", help="DynamoDB: switch TTL on also in a table that has items, of which it deletes the expired."
    ),
]
PrintOption = Annotated[
    str | None, typer.Option("--print", metavar="F", help="DynamoDB: print it as cloudformation or terraform instead.")
]


def init(
    store: StoreOption = DEFAULT_STORE,
    pitr: PitrOption = False,
    ttl: TtlOption = False,
    print_: PrintOption = None,
    json: JsonOption = False,
) -> None:
    """Make the ledger: a DynamoDB table on demand with its TTL, or an SQLite file. What is there already is left as it is.

    A DynamoDB table that has items and no TTL gets none without --ttl, for it would delete those of others, too.
    """
    once = opened(store)
    scheme = store.partition(":")[0]
    try:
        if print_ is not None:
            if ttl:
                refuse("--ttl is for a table that is there; what --print prints has a TTL in any case", USAGE)
            typer.echo(_printed(scheme, once.store, print_, pitr=pitr), nl=False)
            return
        for flag in (name for name, given in (("--pitr", pitr), ("--ttl", ttl)) if given and scheme != "dynamodb"):
            refuse(f"{flag} is for DynamoDB, and {once.store.url} is not in it", USAGE)
        parts = MAKERS[scheme](once.store, pitr, ttl) if scheme in MAKERS else []
    except OncewardError as error:
        refuse(said(error), TROUBLE)
    finally:
        once.close()
    if json:
        told = {"store": once.store.url, "parts": [part._asdict() for part in parts]}
        typer.echo(terminal.json(told))
    elif not parts:
        typer.echo(f"{terminal.line(once.store.url)} needs nothing made")
    else:
        typer.echo("\n".join(f"{'made' if made else 'was there'}: {terminal.line(what)}" for what, made in parts))


def _printed(scheme: str, store: Store, kind: str, *, pitr: bool) -> str:
    if scheme != "dynamodb":
        refuse(f"--print is for DynamoDB; `onceward init --store {store.url}` makes all there is to make", USAGE)
    from onceward.stores.dynamodb import template

    try:
        return template.printed(kind, cast("DynamoStore", store), pitr=pitr)
    except ValueError as error:
        refuse(f"--print {error}", USAGE)


def _table(store: Store, pitr: bool, ttl: bool) -> list[Part]:
    from onceward.stores.dynamodb.create import create

    return drive(create(cast("DynamoStore", store), pitr=pitr, ttl=ttl), store)


def _file(store: Store, _pitr: bool, _ttl: bool) -> list[Part]:
    path = file_of(store)
    assert path is not None
    there = Path(path).exists()
    had = there and _has_schema(path)
    drive(store.load("?"), store)  # the first use makes both
    return [Part(f"file {path}", not there), Part("its schema", not had)]


def _has_schema(path: str) -> bool:
    connection = sqlite3.connect(f"{Path(path).as_uri()}?mode=ro", uri=True)
    try:
        return connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'onceward_meta'").fetchone() is not None
    except sqlite3.Error:  # no database, which the store says better
        return False
    finally:
        connection.close()


# How each kind of ledger is made, by the scheme of its URL; one that is not here needs nothing made.
MAKERS: Final[Mapping[str, Callable[[Store, bool, bool], list[Part]]]] = {"dynamodb": _table, "sqlite": _file}
