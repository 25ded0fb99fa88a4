"""A ledger in MySQL or MariaDB: ``Once("mysql://user@host/db")``."""

from typing import Any
from urllib.parse import SplitResult, unquote

try:
    import pymysql as _pymysql  # noqa: F401 - tells at once that it is missing
except ImportError as error:
    raise ImportError("MySQL and MariaDB need their driver: pip install 'onceward[mysql]'") from error

from onceward.core.urls import shown_url
from onceward.stores import StoreUrl, limits_in
from onceward.stores.mysql.lane import MysqlLanes
from onceward.stores.mysql.schema import MysqlNames
from onceward.stores.mysql.store import MysqlStore

__all__ = ["open_url"]

OPTIONS = ("table", "lanes", "timeout", "socket", "ca", "tls")


def open_url(parts: StoreUrl, options: dict[str, str]) -> MysqlStore:
    """Open ``mysql://user:password@host:port/database``.

    Args:
        parts: the URL.
        options: ``table=onceward``, ``lanes=2`` (connections at a time, for all threads together and for each event loop), ``timeout=5`` (seconds for one statement). ``socket=`` is
            the path of a Unix socket. ``ca=FILE`` checks the server's certificate. ``tls=on`` only encrypts.

    Raises:
        ValueError: an option is not valid.
    """
    url = shown_url(parts.geturl())
    for name in options:
        if name not in OPTIONS:
            raise ValueError(f"{url!r}: {name} is no option; there are {', '.join(OPTIONS)}")
    timeout, most = limits_in(options, url)
    names = MysqlNames(options.get("table", "onceward"))
    return MysqlStore(MysqlLanes(place_of(parts, options), most, timeout), names, url)


def place_of(parts: StoreUrl, options: dict[str, str]) -> dict[str, Any]:
    """Return the place of a URL's database as the arguments of ``pymysql.connect``; raises ValueError if it is not valid."""
    url, authority = shown_url(parts.geturl()), SplitResult("", parts.netloc, "", "", "")
    database = unquote(parts.path.strip("/"))
    if not database or "/" in database:
        raise ValueError(f"{url!r}: name the database, as in mysql://user@host/shop")
    place: dict[str, Any] = {
        "host": authority.hostname or "127.0.0.1",
        "port": authority.port or 3306,
        "database": database,
        "user": unquote(authority.username or "") or None,
        "password": unquote(authority.password or ""),
    }
    if "socket" in options:
        place["unix_socket"] = options["socket"]
    if (tls := _tls(options, url)) is not None:
        place["ssl"] = tls
    return place


def _tls(options: dict[str, str], url: str) -> Any:
    """Return the context of an encrypted connection; None for a plain one."""
    if options.get("tls", "on") != "on":
        raise ValueError(f"{url!r}: tls must be on")
    if "ca" not in options and "tls" not in options:
        return None
    import ssl

    try:
        context = ssl.create_default_context(cafile=options.get("ca"))
    except OSError as error:
        raise ValueError(f"{url!r}: ca={options['ca']}: {error}") from error
    if "ca" not in options:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
