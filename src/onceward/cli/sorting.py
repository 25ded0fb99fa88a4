"""Lists records in an order that no store keeps: all that match are read, and the first ones are kept."""

import heapq
from collections.abc import Callable
from typing import Final

import typer

from onceward.cli.ledgers import USAGE, looking_at, refuse
from onceward.cli.records import as_json, heading, row
from onceward.core.record import Record
from onceward.core.views import Criteria, last_change

_MOST: Final = 1000  # rows without --limit
_BY: Final[dict[str, Callable[[Record, float], float]]] = {
    "changed": last_change,
    "claimed": lambda record, _: record.created_at,
    "attempts": lambda record, _: record.attempts,
}


def show_sorted(store: str, prefix: str, criteria: Criteria, by: str, limit: int | None, *, json: bool) -> None:
    """Print the first records of a list, in the order that ``by`` names."""
    if by not in _BY:
        refuse(f"--sort {by}: there are {', '.join(_BY)}", USAGE)
    with looking_at(store) as ledger:
        found = ledger.records(prefix, criteria.states or None, *criteria[1:])
        first = heapq.nlargest(_MOST if limit is None else limit, found, key=lambda one: _BY[by](*one))
        rows = [as_json(record) if json else row(record, now) for record, now in first]
    if rows:
        typer.echo("\n".join(rows if json else [heading(), *rows]))
