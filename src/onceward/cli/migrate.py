"""The command that brings a ledger up to this version: migrate."""

import typer

from onceward import terminal
from onceward.cli.ledgers import DEFAULT_STORE, JsonOption, StoreOption, looking_at
from onceward.core.drivers import drive
from onceward.stores.capabilities import MIGRATE


def migrate(store: StoreOption = DEFAULT_STORE, json: JsonOption = False) -> None:
    """Add to a ledger what this version needs and an earlier one did not make. Records stay, and earlier versions go on working.

    A worker does this by itself on first use. Run it where workers have no right to alter the ledger, before you deploy them.
    """
    with looking_at(store) as ledger:
        needed = MIGRATE.of(ledger.store)
        parts = [] if needed is None else drive(needed(), ledger.store)
    if json:
        typer.echo(terminal.json({"store": ledger.store.url, "parts": [part._asdict() for part in parts]}))
    elif not any(part.made for part in parts):
        typer.echo(f"{terminal.line(ledger.store.url)} needs no migration")
    else:
        typer.echo("\n".join(f"added: {terminal.line(part.what)}" for part in parts if part.made))
