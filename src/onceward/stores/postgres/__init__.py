"""A ledger in PostgreSQL: ``Once("postgresql://user@host/db")``."""

import re
from urllib.parse import quote, urlencode

try:
    import psycopg as _psycopg
except ImportError as error:
    raise ImportError("PostgreSQL needs its driver: pip install 'onceward[postgres]'") from error

from onceward.core.urls import shown_url
from onceward.stores import StoreUrl, limits_in
from onceward.stores.postgres.lane import PostgresLanes
from onceward.stores.postgres.schema import Names
from onceward.stores.postgres.store import PostgresStore

__all__ = ["open_url"]

OPTIONS = ("table", "schema", "lanes", "timeout")


def open_url(parts: StoreUrl, options: dict[str, str]) -> PostgresStore:
    """Open ``postgresql://user@host/db``. All options but :data:`OPTIONS` are libpq's own, such as ``sslmode``.

    Args:
        parts: the URL.
        options: ``table=onceward``, ``schema=``, ``lanes=2`` (connections at a time, for all threads together and for each event loop), ``timeout=5`` (seconds for one
            statement), and libpq's.

    Raises:
        ValueError: an option is not valid.
    """
    url = shown_url(parts.geturl())
    ours = {name: value for name, value in options.items() if name in OPTIONS}
    theirs = {name: value for name, value in options.items() if name not in OPTIONS}
    place = parts._replace(query=urlencode(theirs, quote_via=quote))
    timeout, most = limits_in(ours, url)
    names = Names(ours.get("table", "onceward"), ours.get("schema"))
    try:
        lanes = PostgresLanes(place.geturl(), most, timeout)
    except _psycopg.ProgrammingError as error:
        why = re.sub("(percent-encoded .*?):.*", r"\1", str(error).strip())  # libpq shows the value, as of the password
        raise ValueError(f"{url!r}: {why}; of our own there are {', '.join(OPTIONS)}") from None
    return PostgresStore(lanes, names, url)
