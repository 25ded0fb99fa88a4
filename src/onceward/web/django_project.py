"""The ledger of a Django project: ``settings.ONCEWARD`` says in which of its databases it is."""

import os
from collections.abc import Iterator
from functools import cache
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.utils import ConnectionDoesNotExist

from onceward.core.policy import Options, Policy
from onceward.once import Once
from onceward.stores import open_store
from onceward.stores.contract import Store

MIDDLEWARE: Final = ("rules", "name", "wait")  # what only the middleware takes
KNOWN: Final = ("DATABASE", "OPTIONS", "once", *MIDDLEWARE, *Policy._fields)
_DJANGOS: Final = ("pool", "isolation_level", "server_side_binding", "assume_role")  # the others are libpq's


class WrongSetting(NamedTuple):
    """What is wrong with the settings, and what to do."""

    number: int
    text: str
    hint: str


def configuration() -> dict[str, Any]:
    """Return ``settings.ONCEWARD``, which may be missing."""
    value = getattr(settings, "ONCEWARD", {})
    return value if isinstance(value, dict) else {}


def alias() -> str:
    """Return the alias of the ledger's database."""
    name: str = configuration().get("DATABASE", "default")
    return name


def policy_options() -> Options:
    """Return the options of :class:`onceward.Policy` in the settings."""
    return {name: value for name, value in configuration().items() if name in Policy._fields}  # type: ignore[return-value]  # checked below


def problems() -> Iterator[WrongSetting]:
    """Yield what is wrong with the settings. Nothing is connected."""
    if not isinstance(getattr(settings, "ONCEWARD", {}), dict):
        yield WrongSetting(1, "settings.ONCEWARD is no dict.", 'Write ONCEWARD = {"DATABASE": "default"}.')
        return
    if unknown := sorted(map(str, configuration().keys() - set(KNOWN))):
        yield WrongSetting(
            1, f"settings.ONCEWARD has unknown names: {', '.join(unknown)}.", f"There are {', '.join(KNOWN)}."
        )
    try:
        Policy(**policy_options()).checked()
    except (TypeError, ValueError) as error:
        yield WrongSetting(2, f"settings.ONCEWARD: {error}", "See onceward.Policy for what each option takes.")
    if "once" in configuration():
        return
    try:
        open_store(project_url()).close()
    except (ImproperlyConfigured, ValueError, TypeError) as error:
        hint = "Name one of DATABASES that is PostgreSQL, MySQL, MariaDB or SQLite, and check OPTIONS."
        yield WrongSetting(3, f"settings.ONCEWARD: {error}", hint)
    except ImportError as error:
        yield WrongSetting(4, str(error), "The ledger uses its own connections, beside Django's.")


class ProjectStore:
    """The store in the project's database. It is looked up at each use: a test run gives that database another name.

    Attributes:
        instead: another store, which a test uses.
    """

    def __init__(self) -> None:
        self.instead: Store | None = None
        self._store: tuple[object, Store] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store(), name)

    def store(self) -> Store:
        """Return the store. Nothing is connected before its first request."""
        if self.instead is not None:
            return self.instead
        place = alias(), _settings_of(alias()).get("NAME")
        if self._store is None or self._store[0] != place:
            if self._store is not None:
                self._store[1].close()
            self._store = place, open_store(project_url())
        return self._store[1]


STORE: Final = ProjectStore()


@cache
def project_once() -> Once:
    """Return the project's Once.

    Raises:
        ImproperlyConfigured: the settings are not valid.
    """
    for problem in problems():
        raise ImproperlyConfigured(f"{problem.text} {problem.hint}")
    if "once" in configuration():
        own: Once = configuration()["once"]
        return own
    return Once(STORE, **policy_options())


class ProjectOnce(Once):
    """The project's Once. It is made at its first use, when the settings are complete."""

    def __init__(self) -> None:
        """Make nothing yet."""

    def __getattr__(self, name: str) -> Any:
        if name not in {"guards", "store"}:
            raise AttributeError(f"Once has no attribute {name!r}")
        once = project_once()
        self.guards, self.store = once.guards, once.store
        return getattr(self, name)

    def __reduce__(self) -> tuple[object, ...]:
        return ProjectOnce, ()


once: Final = ProjectOnce()


def _settings_of(name: str) -> dict[str, Any]:
    try:
        values: dict[str, Any] = connections.settings[name]
    except KeyError:
        raise ImproperlyConfigured(f'"DATABASE": {name!r} is none of DATABASES: {", ".join(connections)}') from None
    return values


def project_url() -> str:
    """Return the URL of the ledger in the project's database, with its password.

    Raises:
        ImproperlyConfigured: there is no such database, or no ledger can be in it.
    """
    given = _settings_of(alias()).items()
    place = {name: "" if value is None else value for name, value in given}  # as Django takes it
    try:
        connection = connections[alias()]
    except ConnectionDoesNotExist as error:
        raise ImproperlyConfigured(str(error)) from error
    make = {"postgresql": _postgresql, "mysql": _mysql, "sqlite": _sqlite}.get(connection.vendor)
    if make is None:
        raise ImproperlyConfigured(f"the database {alias()!r} is {connection.vendor}, and no ledger can be in it")
    ours = configuration().get("OPTIONS", {})
    if not isinstance(ours, dict):
        raise ImproperlyConfigured('"OPTIONS" is not a dict of options of the ledger\'s URL, as in {"lanes": 4}')
    if make is _sqlite and connection.is_in_memory_db():
        return "memory:"
    base, options = make(place)
    query = urlencode({**options, **ours}, quote_via=quote)
    return f"{base}?{query}" if query else base


def _postgresql(place: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    options = {name: value for name, value in place["OPTIONS"].items() if name not in _DJANGOS}
    if role := place["OPTIONS"].get("assume_role"):
        options["options"] = f"{options.get('options', '')} -c role={role}".strip()
    if place["HOST"].startswith("/"):
        return _server("postgresql", place, host=""), {"host": place["HOST"], **options}
    return _server("postgresql", place), options


def _mysql(place: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    theirs = place["OPTIONS"]
    if "read_default_file" in theirs:
        raise ImproperlyConfigured('OPTIONS has a read_default_file, which a ledger does not read: give "once" instead')
    options: dict[str, Any] = {}
    if socket := theirs.get("unix_socket") or (place["HOST"] if place["HOST"].startswith("/") else ""):
        options["socket"] = socket
    if tls := theirs.get("ssl"):
        ca = tls.get("ca") if isinstance(tls, dict) else None
        options |= {"ca": ca} if ca else {"tls": "on"}
    return _server("mysql", place, **({"host": "localhost"} if socket else {})), options


def _sqlite(place: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    if str(place["NAME"]).startswith("file:"):
        raise ImproperlyConfigured(f"the NAME of {alias()!r} is a URI, which no ledger takes: give the file's path")
    return f"sqlite:///{quote(os.path.abspath(place['NAME']))}", {}


def _server(scheme: str, place: dict[str, Any], host: str | None = None) -> str:
    user, password = (quote(str(place[name]), safe="") for name in ("USER", "PASSWORD"))
    login = f"{user}:{password}@" if password else f"{user}@" if user else ""
    server = place["HOST"] if host is None else host
    server = f"[{server}]" if ":" in server else server
    port = f":{place['PORT']}" if place["PORT"] and server else ""
    return f"{scheme}://{login}{server}{port}/{quote(str(place['NAME']), safe='')}"
