"""Transactions of Django's PostgreSQL databases, on psycopg or psycopg2."""

from collections.abc import Sequence

from onceward.stores.capabilities import TransactionState
from onceward.stores.postgres.inside import named
from onceward.stores.postgres.session import state_of
from onceward.stores.sql import django_driver
from onceward.stores.sql.queries import Row


class DjangoPostgresDriver(django_driver.DjangoDriver):
    """One of ``django.db.connections``."""

    vendor, server = "postgresql", "PostgreSQL"

    def fetch(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """Run one statement and return its rows."""
        self.check_healthy()
        with self.connection.cursor() as cursor:
            cursor.execute(named(text), {f"p{at}": value for at, value in enumerate(values, 1)})
            rows: Sequence[Row] = cursor.fetchall()
            return rows

    def is_open(self) -> bool:
        """Return whether the driver's connection is in a transaction."""
        return state_of(self.raw) is TransactionState.OPEN
