"""Transactions of Django's MySQL databases, on PyMySQL."""

from collections.abc import Sequence
from contextlib import suppress

import pymysql

from onceward.stores.mysql.lane import fetch, is_open, state_of
from onceward.stores.sql import django_driver
from onceward.stores.sql.exchange import Row


class DjangoMysqlDriver(django_driver.DjangoDriver):
    """One of ``django.db.connections``."""

    vendor, server = "mysql", "MySQL"
    state_of = staticmethod(state_of)

    def check_fits(self) -> None:
        """Raise ValueError if the driver is another one than PyMySQL."""
        super().check_fits()
        if not isinstance(self.raw, pymysql.Connection):
            raise ValueError(
                f"the database {self.connection.alias!r} is used by {type(self.raw).__module__}, which does not tell the state "
                "of its transaction: call pymysql.install_as_MySQLdb() at the top of the settings"
            )

    def fetch(self, texts: Sequence[str]) -> Sequence[Row]:
        self.check_healthy()
        with self.connection.wrap_database_errors:
            return fetch(self.raw, texts)

    def undo(self) -> None:
        """Roll back. If the driver's connection is closed, say so to Django, which else connects anew without a limit of time."""
        if self.raw is not None and not is_open(self.raw):
            with suppress(Exception):
                self.connection.close()
        super().undo()


driver_of = DjangoMysqlDriver
