"""A ledger in PostgreSQL: ``Once("postgresql://user@host/db")``, or :func:`open_ledger` for connections of your own."""

from urllib.parse import SplitResult, quote, urlencode

try:
    import psycopg as _psycopg
except ImportError as error:
    raise ImportError("PostgreSQL needs its driver: pip install 'onceward[postgres]'") from error

from onceward.stores.postgres.links import Links
from onceward.stores.postgres.schema import Names
from onceward.stores.postgres.store import PostgresStore

__all__ = ["CAPABILITIES", "PostgresStore", "open_url"]

CAPABILITIES = PostgresStore.capabilities
OPTIONS = ("table", "schema", "pool", "timeout")


def open_url(parts: SplitResult, options: dict[str, str]) -> PostgresStore:
    """Open ``postgresql://user@host/db``. All options but :data:`OPTIONS` are libpq's own, such as ``sslmode``.

    Raises:
        ValueError: an option is not valid.
    """
    ours = {name: value for name, value in options.items() if name in OPTIONS}
    theirs = {name: value for name, value in options.items() if name not in OPTIONS}
    place = parts._replace(scheme="postgresql", query=urlencode(theirs, quote_via=quote))
    try:
        timeout = float(ours.get("timeout", "5"))
        most = int(ours.get("pool", "10"))
    except ValueError:
        raise ValueError(
            f"{_shown(parts)!r}: timeout must be a number of seconds, and pool a number of connections"
        ) from None
    if not (0 < timeout < 3600 and most > 0):
        raise ValueError(f"{_shown(parts)!r}: timeout must be seconds above 0, and pool at least 1")
    names = Names(ours.get("table", "onceward"), ours.get("schema"))
    shown = _shown(parts)
    try:
        links = Links(place.geturl(), shown, most, timeout)
    except _psycopg.ProgrammingError as error:
        raise ValueError(f"{shown!r}: {error}; of our own there are {', '.join(OPTIONS)}") from None
    return PostgresStore(links, names, shown)


def _shown(parts: SplitResult) -> str:
    """Return the URL without its password."""
    user, at, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{user.partition(':')[0]}{at}{host}").geturl()
