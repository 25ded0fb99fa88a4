"""A ledger in PostgreSQL: ``Once("postgresql://user@host/db")``, or :func:`open_ledger` for connections of your own."""

from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlencode

try:
    import psycopg as _psycopg
except ImportError as error:
    raise ImportError("PostgreSQL needs its driver: pip install 'onceward[postgres]'") from error

from onceward.core.urls import shown_url
from onceward.stores import StoreUrl, checked_timeout
from onceward.stores.postgres.exchange import Conduit
from onceward.stores.postgres.lane import PostgresLanes
from onceward.stores.postgres.schema import Names
from onceward.stores.postgres.store import PostgresStore

__all__ = ["CAPABILITIES", "PostgresStore", "open_ledger", "open_url"]

CAPABILITIES = PostgresStore.capabilities
OPTIONS = ("table", "schema", "lanes", "timeout")
_GIVE = (
    "give a psycopg.Connection, AsyncConnection, psycopg_pool.ConnectionPool, AsyncConnectionPool, asyncpg.Connection or "
    "asyncpg.Pool"
)


def open_ledger(
    given: object, *, table: str = "onceward", schema: str | None = None, timeout: float = 5.0
) -> PostgresStore:
    """Return the ledger in a PostgreSQL database, on a connection or pool of yours. Nothing is sent before its first use.

    Asynchronous ones serve coroutines, and their claims' heartbeats, on the event loop that uses them. Handlers that are not
    asynchronous need a blocking one, or a URL.

    Args:
        given: a connection or pool of psycopg 3 or asyncpg. It stays yours to close. A connection is used for one statement
            at a time, and must be in no transaction then. A connection of psycopg must have ``autocommit=True``.
        table: the table's name; its second table is called ``TABLE_meta``.
        schema: its schema; None is the first one of the connection's search path.
        timeout: seconds for one statement.

    Raises:
        TypeError, ValueError: an option is not valid.
    """
    conduit = _conduit(given, checked_timeout(timeout))
    place = f"postgresql:///?table={table}" + ("" if schema is None else f"&schema={schema}")
    return PostgresStore(conduit, Names(table, schema), place)


def open_url(parts: StoreUrl, options: dict[str, str]) -> PostgresStore:
    """Open ``postgresql://user@host/db``. All options but :data:`OPTIONS` are libpq's own, such as ``sslmode``.

    Args:
        parts: the URL.
        options: ``table=onceward``, ``schema=``, ``lanes=2`` (connections at a time, for all threads together and for each event loop), ``timeout=5`` (seconds for one
            statement), and libpq's.

    Raises:
        ValueError: an option is not valid.
    """
    shown = shown_url(parts.geturl())
    ours = {name: value for name, value in options.items() if name in OPTIONS}
    theirs = {name: value for name, value in options.items() if name not in OPTIONS}
    place = parts._replace(query=urlencode(theirs, quote_via=quote))
    try:
        timeout, most = checked_timeout(float(ours.get("timeout", "5"))), int(ours.get("lanes", "2"))
    except ValueError:
        raise ValueError(f"{shown!r}: timeout must be seconds above 0, and lanes a number of connections") from None
    if most < 1:
        raise ValueError(f"{shown!r}: lanes must be at least 1")
    names = Names(ours.get("table", "onceward"), ours.get("schema"))
    try:
        lanes = PostgresLanes(place.geturl(), most, timeout)
    except _psycopg.ProgrammingError as error:
        raise ValueError(f"{shown!r}: {str(error).strip()}; of our own there are {', '.join(OPTIONS)}") from None
    return PostgresStore(lanes, names, shown)


def _conduit(given: object, timeout: float) -> Conduit:
    """Return how a connection or pool is used. Its driver is imported already, so its name tells."""
    names = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(given).__mro__}
    kinds: dict[str, Callable[[Any, float], Conduit]] = {}
    if any(name.startswith("asyncpg.") for name in names):
        from onceward.stores.postgres import given_asyncpg

        kinds["asyncpg.Pool"] = given_asyncpg.GivenAsyncpgPool
        kinds["asyncpg.Connection"] = kinds["asyncpg.PoolConnectionProxy"] = given_asyncpg.GivenAsyncpgConnection
    else:
        from onceward.stores.postgres import given as of_psycopg

        kinds["psycopg_pool.ConnectionPool"] = of_psycopg.GivenPool
        kinds["psycopg_pool.AsyncConnectionPool"] = of_psycopg.GivenAsyncPool
        kinds["psycopg.Connection"] = of_psycopg.GivenConnection
        kinds["psycopg.AsyncConnection"] = of_psycopg.GivenAsyncConnection
    for name, kind in kinds.items():
        if name in names:
            return kind(given, timeout)
    raise TypeError(f"{type(given).__name__}: {_GIVE}")
