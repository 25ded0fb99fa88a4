"""Transactions of Django's PostgreSQL databases, on psycopg or psycopg2."""

from collections.abc import Sequence
from functools import partial

from psycopg import Connection

from onceward.stores.capabilities import TransactionState
from onceward.stores.postgres import together
from onceward.stores.postgres.connections import state_of
from onceward.stores.postgres.inside import named
from onceward.stores.sql import django_driver
from onceward.stores.sql.queries import Row


class DjangoPostgresDriver(django_driver.DjangoDriver[str, Sequence[object]]):
    """One of ``django.db.connections``."""

    vendor, server = "postgresql", "PostgreSQL"

    def fetch(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """Run one statement and return its rows."""
        self.check_healthy()
        if isinstance(self.raw, Connection):
            with self.connection.wrap_database_errors:
                return together.fetch(self.raw, text, values, self.seconds)
        with self.connection.cursor() as cursor:
            cursor.execute(named(text), {f"p{at}": value for at, value in enumerate(values, 1)})
            rows: Sequence[Row] = cursor.fetchall()
            return rows

    def complete(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """Run the last statement, and commit with it if the driver can."""
        if not isinstance(self.raw, Connection):
            return super().complete(text, values)
        self.check_healthy()
        return together.complete_within(self.raw, text, values, self.finish, self.seconds)

    def undo(self) -> None:
        """Roll back."""
        if isinstance(self.raw, Connection):
            together.forget(self.raw)
        super().undo()

    def is_open(self) -> bool:
        """Return whether the driver's connection is in a transaction."""
        return state_of(self.raw) is TransactionState.OPEN


of_proxy = partial(django_driver.of_proxy, DjangoPostgresDriver)
