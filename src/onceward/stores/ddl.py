"""The statements that make a ledger, for tools that run them on a connection of their own: Django's migrations and SQLAlchemy."""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet


def statements(
    kind: str,
    columns: AbstractSet[str] = frozenset(),
    *,
    mariadb: bool = False,
    table: str = "onceward",
    schema: str | None = None,
) -> Iterator[str]:
    """Yield the statements that make a ledger, or what one lacks. All can be run again.

    Args:
        kind: the database: "postgresql", "mysql" or "sqlite".
        columns: of SQLite: those that the ledger's table has; none if it is not there.
        mariadb: whether a "mysql" is MariaDB.
        table: its name; SQLite's is always ``onceward``.
        schema: its schema in PostgreSQL; None is the first one of the search path.

    Raises:
        ValueError: no ledger can be in such a database, or under such a name.
    """
    if kind == "postgresql":
        from onceward.stores.postgres import schema as postgres

        yield postgres.make(postgres.Names(table, schema))
    elif kind == "mysql":
        from onceward.stores.mysql import schema as mysql

        yield from mysql.tables(mysql.MysqlNames(table), mysql.MARIADB if mariadb else mysql.MYSQL)
    elif kind == "sqlite":
        from onceward.stores.sqlite import schema as sqlite

        yield from sqlite.SCHEMA
        for name in sqlite.ADDED.keys() - columns if columns else ():
            yield f"ALTER TABLE {sqlite.TABLE} ADD COLUMN {name} {sqlite.ADDED[name]}"
        yield from sqlite.INDEXES.values()
    else:
        raise ValueError(f"no ledger can be in {kind}: it can be in PostgreSQL, MySQL, MariaDB or SQLite")


def tables(kind: str, table: str = "onceward") -> tuple[str, ...]:
    """Return the names of a ledger's tables."""
    return tuple(f"{table}{end}" for end in (("", "_meta", "_high") if kind == "sqlite" else ("", "_meta")))
