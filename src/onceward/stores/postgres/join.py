"""Which connections of the caller's can hold a transaction of PostgreSQL."""

from typing import Final

from onceward.stores.postgres.session import PostgresSession
from onceward.stores.postgres.store import PostgresStore
from onceward.stores.sql.join import driver_of

_ROOM: Final = "onceward.stores.postgres.session"
_KINDS: Final = {
    "psycopg.Connection": f"{_ROOM}_psycopg:PsycopgDriver",
    "psycopg.AsyncConnection": f"{_ROOM}_psycopg:AsyncPsycopgDriver",
    "psycopg2.connection": f"{_ROOM}_psycopg2:Psycopg2Driver",
    "asyncpg.Connection": f"{_ROOM}_asyncpg:AsyncpgDriver",
    "asyncpg.PoolConnectionProxy": f"{_ROOM}_asyncpg:AsyncpgDriver",
    "sqlalchemy.Connection": f"{_ROOM}_sqlalchemy:of_connection",
    "sqlalchemy.Session": f"{_ROOM}_sqlalchemy:of_session",
    "sqlalchemy.AsyncConnection": f"{_ROOM}_sqlalchemy:of_async_connection",
    "sqlalchemy.AsyncSession": f"{_ROOM}_sqlalchemy:of_async_session",
    "django.BaseDatabaseWrapper": f"{_ROOM}_django:DjangoPostgresDriver",
    "django.ConnectionProxy": f"{_ROOM}_django:of_proxy",
}
_KNOWN: Final = (
    "a connection of psycopg, psycopg2 or asyncpg, a Connection or Session of SQLAlchemy (blocking or asynchronous), or "
    "Django's connections[alias]"
)


def join(store: PostgresStore, connection: object) -> PostgresSession:
    """Return the session of a connection (:data:`onceward.stores.capabilities.TRANSACTION`).

    Raises:
        TypeError: it is none that we know.
        ValueError: it cannot hold a transaction of ours.
    """
    return PostgresSession(store, driver_of(_KINDS, connection, store.plain.conduit.timeout, _KNOWN))
