"""Addresses of servers: how they are read, and how they are printed without what must stay secret."""

import re
from typing import Final

HIDDEN: Final = "***"
_SECRET: Final = re.compile(r"pass|pwd|secret|token|credential|(api|access)[-_]?key", re.IGNORECASE).search
_SETTING: Final = re.compile(r"^\s*\w+\s*=").search
_NAME: Final = re.compile(r"[\w.\-]+", re.ASCII).fullmatch
_PLACE: Final = re.compile(r"[^:/?#\s\[\]]*(:[0-9]*)?|\[[0-9A-Fa-f:.%]+\](:[0-9]*)?").fullmatch  # a host and its port
_NAMED: Final = frozenset(
    {"postgresql", "postgres", "mysql", "mariadb"}
)  # where a user without a password is no secret


def shown_url(url: str) -> str:
    """Return a URL as it can be printed, also one that is not written as it must be.

    What stands between ``//`` and the last ``@`` is hidden, and so are the values of a query that are named like a secret. The user
    of an SQL server stays if no password follows it.
    """
    scheme, slashes, rest = url.partition("://")
    if not slashes:
        scheme, slashes, rest = url.partition(":")
    if not slashes or _SETTING(url.partition("?")[0]):  # the latter is no URL, but PostgreSQL's "host=h password=..."
        return HIDDEN if "@" in url or _SECRET(url) else url
    login, at, place = rest.rpartition("@")
    if at and "=" in login.partition("?")[2]:
        return f"{scheme}{slashes}{HIDDEN}"  # the @ may be one of the query
    if at and not (scheme == "sqlite" and rest.startswith("/")):  # whose path can have one
        plain = scheme.partition("+")[0].lower() in _NAMED and _NAME(login) is not None
        rest = f"{login if plain else HIDDEN}@{place}"
    elif slashes == "://" and not _is_place(rest[: _end(rest)]):
        return f"{scheme}://{HIDDEN}"  # perhaps a password without its host
    path, mark, query = rest.partition("?")
    return f"{scheme}{slashes}{path}{mark}{_shown_query(query)}"


def _shown_query(query: str) -> str:
    if not query:
        return ""
    from urllib.parse import unquote  # 3 ms of a cold start

    parts, hides = [], False
    for text in query.split("&"):
        name, equals, _ = text.partition("=")
        hides = bool(_SECRET(unquote(name))) if equals else hides  # a secret can have an & that is not encoded
        parts.append(text if not hides else f"{name}={HIDDEN}" if equals else HIDDEN)
    return "&".join(parts)


def encoded_url(url: str) -> str:
    """Return a URL whose login is percent-encoded, for a library that reads it; see :func:`split_authority`."""
    scheme, slashes, rest = url.partition("://")
    return f"{scheme}://{''.join(split_authority(url, rest))}" if slashes else url


def has_login(url: str) -> bool:
    """Return whether a URL has a user or a password; raises ValueError if it can be read in two ways."""
    _, slashes, rest = url.partition("://")
    return bool(slashes) and "@" in split_authority(url, rest)[0]


def split_authority(url: str, rest: str) -> tuple[str, str]:
    """Return the authority of a URL, whose login is percent-encoded, and what follows it.

    A password is taken as it is meant, also with ``/``, ``?``, ``#``, ``@``, ``%`` or a space, if it can be read in one way.

    Args:
        url: the whole URL, for errors.
        rest: what follows its ``//``.

    Raises:
        ValueError: it can be read in two ways.
    """
    end = _end(rest)
    login, at, place = rest[:end].rpartition("@")
    path, _, query = rest[end:].partition("?")
    stray = "@" in path or any("@" in text.partition("=")[0] for text in query.split("&"))
    if stray and not at and ":" in rest[:end] and not _PLACE(rest[:end]):  # the password has the character at ``end``
        login, at, rest = rest.rpartition("@")
        end = _end(rest)
        place = rest[:end]
    elif stray and ":" in rest[:end]:
        character = rest[end]
        raise ValueError(
            f"{shown_url(url)!r}: write {character} in a user or password as %{ord(character):02X}, and @ as %40"
        )
    if not _is_place(place):
        raise ValueError(
            f"{shown_url(url)!r}: it has no host and port that can be read. In a user or password, write / ? # @ % as %2F %3F %23 %40 %25"
        )
    return f"{_encoded(login)}@{place}" if at else place, rest[end:]


def _is_place(place: str) -> bool:
    return all(_PLACE(one) is not None for one in place.split(","))


def _end(rest: str) -> int:
    """Return where the authority ends."""
    return min((at for at in map(rest.find, "/?#") if at >= 0), default=len(rest))


def _encoded(login: str) -> str:
    """Return a login whose characters all stand for themselves."""
    if re.fullmatch(r"[\w.~\-]*(:[\w.~\-]*)?", login, re.ASCII):
        return login
    from urllib.parse import quote, unquote

    user, colon, password = login.partition(":")
    return quote(unquote(user), safe="") + colon + quote(unquote(password), safe="")
