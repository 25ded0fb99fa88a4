"""The registry of stores: opens a store by its URL.

A store's module has ``open_url(parts, options)``, which returns the store. To add a store from your package, declare an entry
point in the group ``onceward.stores``: its name is the scheme, its value the module.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from onceward.core.urls import shown_url, split_authority

if TYPE_CHECKING:
    from onceward.stores.contract import Store

# Scheme → module, imported on first use: `import onceward` loads no driver.
STORES: Final = {
    "dynamodb": "onceward.stores.dynamodb",
    "mariadb": "onceward.stores.mysql",
    "memory": "onceward.stores.memory",
    "mysql": "onceward.stores.mysql",
    "postgresql": "onceward.stores.postgres",
    "redis": "onceward.stores.redis",
    "rediss": "onceward.stores.redis",
    "sqlite": "onceward.stores.sqlite",
    "valkey": "onceward.stores.redis",
    "valkeys": "onceward.stores.redis",
}
_SQL: Final = frozenset({"postgresql", "postgres", "mysql", "mariadb", "sqlite"})
_OTHERS: Final = {"postgres": "postgresql", "pgsql": "postgresql"}  # names that other libraries take
GROUP: Final = "onceward.stores"


class StoreUrl(NamedTuple):
    """The parts of a store's URL, named as ``urllib.parse.urlsplit`` does. That module takes 3 ms of a cold start."""

    scheme: str
    netloc: str
    path: str
    query: str

    def geturl(self) -> str:
        """Return the whole URL."""
        slashes = "//" if self.netloc or self.path.startswith("/") else ""
        return f"{self.scheme}:{slashes}{self.netloc}{self.path}{self.query and '?'}{self.query}"


def open_store(url: str) -> "Store":
    """Open the store that ``url`` names.

    Args:
        url: ``sqlite:///relative/path.db``, ``sqlite:////absolute/path.db``, each with ``?timeout=SECONDS`` and
            ``?synchronous=FULL|NORMAL``; ``postgresql://user@host/db`` with libpq's parameters and those of
            ``onceward.stores.postgres.open_url``; ``mysql://user@host/db``, or ``mariadb://``, with the options of
            ``onceward.stores.mysql.open_url``; ``dynamodb://TABLE?region=REGION`` with the options of
            ``onceward.stores.dynamodb.open_table``; ``memory:``; or the URL of another package's store. A ``+`` is a plus.
            Within a name or value, write ``%``, ``#``, ``&``, ``?`` and a space as ``%25``, ``%23``, ``%26``, ``%3F`` and
            ``%20``.

    Raises:
        ValueError: the URL is not one of these forms, or has a fragment, an option twice, or one without a value.
    """
    parts = _parts(url)
    module = STORES.get(parts.scheme) or _installed().get(parts.scheme)
    if module is None:
        schemes = ", ".join(sorted(STORES | _installed()))
        raise ValueError(
            f"{shown_url(url)!r} names no store: its scheme must be one of {schemes}, as in sqlite:///orders.db"
        )
    if "@" in parts.path and not parts.netloc and parts.scheme != "sqlite":
        raise ValueError(f"{shown_url(url)!r}: write {parts.scheme}://USER:PASSWORD@HOST/... with //")
    if "#" in parts.path + parts.query:
        raise ValueError(f"{shown_url(url)!r}: a # ends a URL, and what follows would be ignored: write it %23")
    return cast("Store", import_module(module).open_url(parts, _options(url, parts.query)))


def url_parts(url: str) -> tuple[StoreUrl, dict[str, str]]:
    """Return the parts of a store's URL and its options; raises ValueError if an option is given twice or has no value."""
    parts = _parts(url)
    return parts, _options(url, parts.query)


def _installed() -> dict[str, str]:
    """Return the stores of other packages."""
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=GROUP)}


def _parts(url: str) -> StoreUrl:
    scheme, _, rest = url.partition(":")
    base, plus, _ = scheme.lower().partition("+")
    if (plus and base in _SQL) or base in _OTHERS:  # a driver, as in SQLAlchemy's URLs: the ledger uses its own
        scheme = _OTHERS.get(base, base)
    netloc = ""
    if rest.startswith("//"):
        netloc, rest = split_authority(url, rest[2:])
    rest, _, query = rest.partition("?")
    return StoreUrl(scheme.lower(), netloc, rest, query)


def _options(url: str, query: str) -> dict[str, str]:
    """Return the options of a URL. Unlike in an HTML form, a plus is a plus."""
    options: dict[str, str] = {}
    if not query:
        return options
    from urllib.parse import unquote

    for text in filter(None, query.split("&")):
        name, equals, value = text.partition("=")
        name = unquote(name)
        if not equals:  # perhaps the end of a secret
            raise ValueError(
                f"{shown_url(url)!r}: a part of its query has no value: write NAME=VALUE, and & in a value as %26"
            )
        if name in options:
            raise ValueError(f"{shown_url(url)!r}: {name} is given twice")
        if not value:
            raise ValueError(f"{shown_url(url)!r}: {name} has no value: give it one, or leave it out")
        options[name] = unquote(value)
    return options


def limits_in(options: dict[str, str], url: str) -> tuple[float, int]:
    """Return the ``timeout`` and the number of ``lanes`` among a URL's options; raises ValueError if one is not valid."""
    try:
        timeout, most = float(options.get("timeout", "5")), int(options.get("lanes", "2"))
    except ValueError:
        timeout = most = 0
    if not 0 < timeout < 3600 or most < 1:
        raise ValueError(f"{url!r}: timeout must be seconds above 0 and below 3600, and lanes a number of at least 1")
    return timeout, most
