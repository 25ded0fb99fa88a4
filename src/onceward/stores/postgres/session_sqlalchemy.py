"""Transactions on SQLAlchemy's connections and sessions, with the drivers psycopg, psycopg2 and asyncpg."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from psycopg.pq import TransactionStatus

from onceward.stores.capabilities import TransactionState
from onceward.stores.postgres.inside import pyformat
from onceward.stores.postgres.session import state_of
from onceward.stores.sql import alchemy
from onceward.stores.sql.exchange import Row

_DRIVERS: Final = ("psycopg", "psycopg2", "asyncpg")


class UnderPostgres(alchemy.Underneath):
    """psycopg, psycopg2 or asyncpg."""

    state_of = staticmethod(state_of)

    def check(self) -> None:
        dialect = self.connection.dialect
        if dialect.name != "postgresql" or dialect.driver not in _DRIVERS:
            raise ValueError(f"{self.connection.engine.url!r}: give an engine of postgresql with {', '.join(_DRIVERS)}")
        if getattr(self.connection.connection.dbapi_connection, "autocommit", False):
            raise ValueError("the connection commits each statement by itself: leave out isolation_level='AUTOCOMMIT'")

    def check_begun(self, *, had_begun: bool) -> None:
        """Raise ValueError if the transaction's snapshot is older than the claim."""
        level = (
            self.connection.get_execution_options().get("isolation_level") or self.connection.default_isolation_level
        )
        if had_begun and self.state() is TransactionState.OPEN and level != "READ COMMITTED":
            raise ValueError(
                f"the session has read already, and at {level} it would not see who else handles the key: enter the transaction "
                "before its first statement"
            )

    def fetch(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        connection = self.connected()
        if connection.dialect.paramstyle == "numeric_dollar":
            return list(connection.exec_driver_sql(text, tuple(values)))
        parameters = {f"p{at}": value for at, value in enumerate(values, 1)}
        return list(connection.exec_driver_sql(pyformat(text), parameters))

    def has_failed(self) -> bool:
        """Return whether psycopg or psycopg2 says so. asyncpg does not tell."""
        info = getattr(self.raw, "info", None)
        return info is not None and int(info.transaction_status) == TransactionStatus.INERROR

    def cut(self) -> None:
        if hasattr(self.raw, "pgconn"):
            from onceward.stores.postgres.session_plain import cut  # only with that driver

            cut(self.raw)
        elif hasattr(self.raw, "terminate"):
            self.raw.terminate()
        else:
            self.raw.close()


driver_of = partial(alchemy.driver_of, UnderPostgres)
