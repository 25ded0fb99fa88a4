"""Lists records in an order that no store keeps: all that match are read, and the first ones are kept."""

import heapq
from collections.abc import Callable
from typing import Final

import typer

from onceward.cli.ledgers import USAGE, looking_at, refuse
from onceward.cli.records import as_json, heading, row
from onceward.cli.watching import watching
from onceward.core.record import Record
from onceward.core.views import Criteria, last_change
from onceward.dashboard.reading import RecordQuery
from onceward.stores.ledger import Ledger

_MOST: Final = 1000  # rows without --limit
_BY: Final[dict[str, Callable[[Record, float], float]]] = {
    "changed": last_change,
    "claimed": lambda record, _: record.created_at,
    "attempts": lambda record, _: record.attempts,
}


class Sorted:
    """The first records of a list, by what the user chose; without an order, by the store's own."""

    def __init__(
        self, store: str, prefix: str, criteria: Criteria, by: str | None, limit: int | None, *, json: bool
    ) -> None:
        if by is not None and by not in _BY:
            refuse(f"--sort {by}: there are {', '.join(_BY)}", USAGE)
        self._store = store
        self._prefix = prefix
        self._criteria = criteria
        self._by = None if by is None else _BY[by]
        self._limit = _MOST if limit is None else limit
        self._json = json

    def show(self, *, watch: bool) -> None:
        """Print the list, or draw it again and again."""
        if watch:
            watching(self._store, self._watched)
            return
        with looking_at(self._store) as ledger:
            if text := self._text(ledger):
                typer.echo(text)

    def _watched(self, ledger: Ledger) -> str:
        survey = ledger.survey()
        quick = (
            survey.exact if self._by is not None else RecordQuery(self._criteria, self._prefix, None).is_quick(survey)
        )
        if not quick:
            refuse(
                f"{ledger.store.url} finds these records only by reading all, so --watch would do that every time",
                USAGE,
            )
        return self._text(ledger)

    def _text(self, ledger: Ledger) -> str:
        rows = [as_json(record) if self._json else row(record, now) for record, now in self._first(ledger)]
        return "\n".join(rows if self._json or not rows else [heading(), *rows])

    def _first(self, ledger: Ledger) -> list[tuple[Record, float]]:
        by = self._by
        if by is None:
            pages = ledger.pages(self._prefix, *self._criteria, limit=self._limit)
            return [(record, page.now) for page in pages for record in page.records]
        found = ledger.records(self._prefix, self._criteria.states or None, *self._criteria[1:])
        return heapq.nlargest(self._limit, found, key=lambda one: by(*one))
