"""A ledger that a ``MetaData`` declares: made by the ledger's own statements, on the project's connection."""

from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from sqlalchemy import Connection, inspect
from sqlalchemy.engine import Dialect

from onceward.stores import ddl

INFO: Final = "onceward"  # under which a MetaData keeps its ledgers


class DeclaredLedger(NamedTuple):
    """A ledger of a ``MetaData``."""

    table: str
    schema: str | None

    def statements(self, dialect: Dialect, columns: AbstractSet[str] = frozenset()) -> list[str]:
        """Return the statements that make it."""
        kind = "mysql" if dialect.name == "mariadb" else dialect.name
        is_mariadb = bool(getattr(dialect, "is_mariadb", False))
        return list(ddl.statements(kind, columns, mariadb=is_mariadb, table=self.table, schema=self.schema))

    def make(self, connection: Connection) -> None:
        """Make what is missing."""
        inspector = inspect(connection)
        there = connection.dialect.name == "sqlite" and inspector.has_table(self.table)
        columns = {column["name"] for column in inspector.get_columns(self.table)} if there else set[str]()
        for statement in self.statements(connection.dialect, columns):
            connection.exec_driver_sql(statement)
