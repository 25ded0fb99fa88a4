"""What can go wrong with one statement, whatever the driver."""

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from onceward.core.register import KeyLocked
from onceward.errors import StoreError

_UNREACHED: Final = re.compile(r"Can't connect|refused|resolve host|Name or service", re.IGNORECASE)


class SqlRefusal(Exception):
    """The server's own error for one statement: its code and text."""

    def __init__(self, state: str, message: str) -> None:
        super().__init__(message)
        self.state = state


class Broken(Exception):
    """The connection was lost, or did not answer in time."""


class SqlError(StoreError):
    """The server refused a request; ``state`` is the code of its error."""

    def __init__(self, message: str, state: str, *, transient: bool) -> None:
        super().__init__(message, transient=transient)
        self.state = state


class ServerErrors(NamedTuple):
    """The errors of one kind of server, by their codes.

    Attributes:
        server: its name, for messages.
        locked: somebody's open transaction holds the key.
        anew: the same statement can succeed at once; nothing of it was done.
        transient: codes, or the first two characters of codes, after which the same request may succeed.
        fixes: what to do about a code; ``{url}`` stands for the ledger.
    """

    server: str
    locked: str
    anew: AbstractSet[str]
    transient: AbstractSet[str]
    fixes: Mapping[str, str]

    def error_of(self, state: str, message: str, url: str) -> StoreError:
        """Return the error of one request."""
        if state == self.locked:
            return KeyLocked(f"ledger {url}: an open transaction of another session holds the key ({message})")
        fix = self.fixes.get(state, "")
        advice = f": {fix.format(url=url)}" if fix else ""
        text = f"ledger {url}: {self.server} refused the request, {state} ({message}){advice}"
        return SqlError(text, state, transient=not self.transient.isdisjoint({state, state[:2]}))


def lost(message: str, url: str) -> StoreError:
    """Return the error of a connection that could not be made or was lost."""
    text = re.sub(r"\s*\n\s*", ". ", message.strip())
    if _UNREACHED.search(text) and "server running" not in text:
        text += ". Is the server running, and are host and port in the URL right?"
    return StoreError(f"ledger {url}: {text}", transient=True)
