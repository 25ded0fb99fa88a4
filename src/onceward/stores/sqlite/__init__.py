"""The embedded ledger: one SQLite file."""

from onceward.core.urls import shown_url
from onceward.stores import StoreUrl
from onceward.stores.sqlite.store import SqliteStore


def open_url(parts: StoreUrl, options: dict[str, str]) -> SqliteStore:
    """Open ``sqlite:///relative.db`` or ``sqlite:////absolute.db``.

    Raises:
        ValueError: the URL has a host, no path, or an option other than ``timeout`` and ``synchronous``.
    """
    url = shown_url(parts.geturl())
    path = parts.path.removeprefix("/")
    if "%" in path:
        from urllib.parse import unquote  # a cold start should not pay for it

        path = unquote(path)
    if parts.netloc or not path:
        raise ValueError(
            f"{url!r}: write sqlite:///relative/path.db or sqlite:////absolute/path.db (three or four slashes)"
        )
    if path == ":memory:":
        raise ValueError(f"{url!r}: for a ledger in memory, use memory:")
    unknown = options.keys() - {"timeout", "synchronous"}
    if unknown:
        raise ValueError(f"{url!r}: unknown option {', '.join(sorted(unknown))}; there are timeout and synchronous")
    try:
        timeout = float(options.get("timeout", "5"))
    except ValueError:
        raise ValueError(f"{url!r}: timeout must be a number of seconds") from None
    return SqliteStore(path, timeout=timeout, synchronous=options.get("synchronous", "FULL").upper())
