"""Which connections of the caller's can hold a transaction of SQLite."""

from typing import Any

from onceward.stores.sqlite.session import SqliteSession
from onceward.stores.sqlite.store import SqliteStore


def join(store: SqliteStore, connection: Any) -> SqliteSession:
    """Return the session of a connection (:data:`onceward.stores.capabilities.TRANSACTION`).

    Raises:
        TypeError: it is neither one of ``sqlite3``, nor a wrapper of one, nor one of Django's.
        ValueError: it is one of Django's to another database than SQLite.
    """
    if hasattr(connection, "in_atomic_block"):
        from onceward.stores.sqlite.session_django import DjangoSqliteSession  # needs Django

        return DjangoSqliteSession(connection, store)
    if not hasattr(connection, "text_factory"):
        known = "a sqlite3.Connection to the ledger's file, or one of Django's connections"
        raise TypeError(f"{type(connection).__name__}: give {known}")
    return SqliteSession(connection, store)
