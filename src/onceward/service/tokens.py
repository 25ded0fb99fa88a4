"""Tokens: who may do what in which namespace. The file has their SHA-256 only, so it cannot be used to sign in.

Each line is a token: its name, namespaces, actions and hash. A ``*`` stands for all::

    orders-worker orders,refunds claim,extend,step,complete,release,park,look sha256:4bf5...
"""

import hmac
import logging
import os
import re
import secrets
from collections.abc import Iterable
from hashlib import sha256
from typing import Final, NamedTuple

from onceward.keys.ledger_keys import checked_name

ACTIONS: Final = ("claim", "extend", "step", "complete", "release", "park", "look")
_ALL: Final = "*"
_NAME: Final = re.compile(r"[A-Za-z0-9_.@-]{1,64}")
_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}")
_LOG: Final = logging.getLogger("onceward.service")


class TokenGrant(NamedTuple):
    """What the holder of a token may do."""

    name: str
    namespaces: frozenset[str]
    actions: frozenset[str]
    digest: bytes

    def allows(self, namespace: str, action: str) -> bool:
        """Return whether it may do this there."""
        return not self.namespaces.isdisjoint({namespace, _ALL}) and not self.actions.isdisjoint({action, _ALL})


class Tokens:
    """The tokens in a file. A change of the file counts from the next request.

    It begins with a file that is right. In a later one, a wrong line counts for nothing, and all other lines count: a token is
    revoked when its line is gone, whatever else is in the file. The tokens of before count while the file cannot be read.

    Raises:
        ValueError: a line is wrong; the message has its number and not its hash.
        OSError: the file cannot be read.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: object = _version(path)
        self._grants = read(path)

    def grant(self, token: str) -> TokenGrant | None:
        """Return what a token allows; None if nobody has it."""
        self._look()
        digest, match = _digest(token), None
        for grant in self._grants:  # all of them, so that the time tells nothing
            if hmac.compare_digest(grant.digest, digest):
                match = grant
        return match

    def _look(self) -> None:
        """Read the file again if it has changed. The log says what is wrong with it."""
        try:
            if (seen := _version(self._path)) != self._seen:
                self._grants, wrong = _read(self._path)
                self._seen = seen
                for error in wrong:
                    _LOG.error("tokens: %s. Correct it: wrong lines count for nothing", error)
                _LOG.info("tokens: read %d from %s", len(self._grants), self._path)
        except OSError as error:
            if self._seen is not None:
                _LOG.error("tokens: %s. The tokens of before count", error)
            self._seen = None


def read(path: str) -> list[TokenGrant]:
    """Return the tokens of a file. Raises ValueError and OSError."""
    grants, wrong = _read(path)
    if wrong:
        raise wrong[0]
    return grants


def _read(path: str) -> tuple[list[TokenGrant], list[ValueError]]:
    """Return the tokens of a file, and what is wrong with other lines. Raises OSError."""
    grants: dict[str, TokenGrant] = {}
    wrong: list[ValueError] = []
    with open(path, encoding="utf-8", errors="replace") as lines:
        rows = [(number, line.split()) for number, line in enumerate(lines, 1)]
    for number, parts in rows:
        if parts and not parts[0].startswith("#"):
            try:
                grant = _grant(f"{path}:{number}", parts)
                if grant.name in grants:
                    raise ValueError(f"{path}:{number}: two tokens have the name {grant.name}. Give each its own")
                grants[grant.name] = grant
            except ValueError as error:
                wrong.append(error)
    return list(grants.values()), wrong


def generate_token(name: str, namespaces: Iterable[str], actions: Iterable[str]) -> tuple[str, str]:
    """Return a new token, and its line for the file.

    Raises:
        ValueError: the name, a namespace or an action is not valid.
    """
    token = f"onceward-{secrets.token_urlsafe(32)}"
    parts = [name, _listed(namespaces), _listed(actions), f"sha256:{_digest(token).hex()}"]
    _grant("this token", parts)
    return token, " ".join(parts)


def add(path: str, line: str) -> None:
    """Add a line to the file of tokens, and make the file if there is none.

    Raises:
        ValueError: a token in the file has the same name.
        OSError: the file cannot be written.
    """
    name = line.partition(" ")[0]
    if os.path.exists(path) and any(grant.name == name for grant in read(path)):
        raise ValueError(f"{path}: there is a token with the name {name}. Delete its line first")
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND  # another process can add one at the same time
    with os.fdopen(os.open(path, flags, 0o600), "r+", encoding="utf-8") as file:
        text = file.read()
        file.write(f"{'' if not text or text.endswith(chr(10)) else chr(10)}{line}\n")


def _grant(where: str, parts: list[str]) -> TokenGrant:
    if len(parts) != 4:
        raise ValueError(f"{where}: write a name, namespaces, actions and a hash, with spaces between them")
    name, namespaces, actions, digest = parts
    if not _NAME.fullmatch(name):
        raise ValueError(f"{where}: {name!r} cannot name a token: use letters, digits, and the signs _ . @ -")
    if not _HASH.fullmatch(digest):
        raise ValueError(f"{where}: the hash must be sha256: and 64 hexadecimal digits, as `onceward token` prints")
    for namespace in (spaces := namespaces.split(",")):
        if namespace != _ALL:
            checked_name(namespace)
    if unknown := set(acts := actions.split(",")) - {*ACTIONS, _ALL}:
        raise ValueError(
            f"{where}: {', '.join(sorted(unknown))} is not an action; there are {', '.join(ACTIONS)} and {_ALL}"
        )
    return TokenGrant(name, frozenset(spaces), frozenset(acts), bytes.fromhex(digest.removeprefix("sha256:")))


def _listed(names: Iterable[str]) -> str:
    for name in (given := list(names)):
        if "," in name:
            raise ValueError(f"{name!r}: a comma in the file of tokens begins another name. Give each name by itself")
    return ",".join(given)


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogateescape")).digest()


def _version(path: str) -> tuple[int, int, int, int]:
    stat = os.stat(path)
    return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino  # a copy can keep the time of its source
