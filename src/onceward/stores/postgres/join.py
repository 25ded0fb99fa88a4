"""Which session a connection of the caller's gets. A library is imported only if the connection is of it."""

from collections.abc import Callable
from importlib import import_module
from typing import Final

from onceward.stores.postgres.session import PostgresSession
from onceward.stores.postgres.store import PostgresStore

# The class of a connection, and what its transactions are to us.
_KINDS: Final = {
    "psycopg.Connection": "psycopg:PsycopgSession",
    "psycopg.AsyncConnection": "psycopg:AsyncPsycopgSession",
    "psycopg2.connection": "psycopg2:Psycopg2Session",
    "asyncpg.Connection": "asyncpg:AsyncpgSession",
    "asyncpg.PoolConnectionProxy": "asyncpg:AsyncpgSession",
    "sqlalchemy.Connection": "sqlalchemy:of_connection",
    "sqlalchemy.Session": "sqlalchemy:of_session",
    "sqlalchemy.AsyncConnection": "sqlalchemy:of_async_connection",
    "sqlalchemy.AsyncSession": "sqlalchemy:of_async_session",
    "django.BaseDatabaseWrapper": "django:DjangoSession",
    "django.ConnectionProxy": "django:of_proxy",
}


def join(store: PostgresStore, connection: object) -> PostgresSession:
    """Return the session of a connection (:data:`onceward.stores.capabilities.TRANSACTION`).

    Raises:
        TypeError: it is none that we know.
        ValueError: it cannot hold a transaction of ours.
    """
    for kind in type(connection).__mro__:
        where = _KINDS.get(f"{kind.__module__.partition('.')[0]}.{kind.__name__}")
        if where is not None:
            module, _, name = where.partition(":")
            make: Callable[[PostgresStore, object], PostgresSession]
            make = getattr(import_module(f"onceward.stores.postgres.session_{module}"), name)
            return make(store, connection)
    raise TypeError(
        f"{type(connection).__name__}: give a connection of psycopg, psycopg2 or asyncpg, a Connection or Session of SQLAlchemy "
        "(blocking or asynchronous), or Django's connections[alias]"
    )
