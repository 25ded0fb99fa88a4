"""Transactions of Django's PostgreSQL databases, on psycopg or psycopg2."""

from collections.abc import Sequence

from onceward.stores.postgres.inside import pyformat
from onceward.stores.postgres.session import state_of
from onceward.stores.sql import django_driver
from onceward.stores.sql.exchange import Row


class DjangoPostgresDriver(django_driver.DjangoDriver):
    """One of ``django.db.connections``."""

    vendor, server = "postgresql", "PostgreSQL"
    state_of = staticmethod(state_of)

    def fetch(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        self.check_healthy()
        with self.connection.cursor() as cursor:
            cursor.execute(pyformat(text), {f"p{at}": value for at, value in enumerate(values, 1)})
            rows: Sequence[Row] = cursor.fetchall()
            return rows


driver_of = DjangoPostgresDriver
