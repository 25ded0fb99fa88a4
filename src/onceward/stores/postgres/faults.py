"""PostgreSQL's errors and their fixes, by SQLSTATE (postgresql.org/docs/current/errcodes-appendix.html)."""

from typing import Final

from onceward.core.register import KeyLocked
from onceward.errors import StoreError

LOCKED: Final = "55P03"  # lock_not_available
CANCELED: Final = "57014"  # query_canceled: by statement_timeout, which can be shorter than a wait of ours
ANEW: Final = frozenset({"40001", "40P01"})  # serialization_failure, deadlock_detected: the statement starts anew
NO_TABLE: Final = frozenset({"42P01", "3F000"})  # undefined_table, invalid_schema_name
DENIED: Final = "42501"
NO_FUNCTION: Final = "42883"

_FIXES: Final = {
    DENIED: "grant this role SELECT, INSERT, UPDATE and DELETE on the table and on its _meta table (docs/stores.md)",
    "42P01": "there is no such table: make it with `onceward init --store '{url}'`, or check table= and schema=",
    "3F000": "there is no such schema: make it with `onceward init --store '{url}'`, or check schema=",
    "42703": "the table lacks a column: run `onceward migrate --store '{url}'`",
    "25006": "this server is a standby or read-only: give the address of the primary, or target_session_attrs=read-write",
    "54000": "the key is too long for an index: a key may have about 2,600 bytes",
    "28P01": "check the user and the password",
    "28000": "check the user, and the server's pg_hba.conf",
    "3D000": "there is no such database: check the URL",
    "53100": "the server's disk is full",
}
# Classes after which the same request may succeed: connection, rollback, resources, the operator's intervention, system.
_TRANSIENT: Final = frozenset({"08", "40", "53", "57", "58"})


class SqlError(StoreError):
    """PostgreSQL refused a request; ``state`` is the SQLSTATE."""

    def __init__(self, message: str, state: str, *, transient: bool) -> None:
        super().__init__(message, transient=transient)
        self.state = state


def refused(state: str, message: str, url: str) -> StoreError:
    """Return the error of one request."""
    if state == LOCKED:
        return KeyLocked(f"ledger {url}: an open transaction of another session holds the key ({message})")
    transient = state[:2] in _TRANSIENT or state == "25006"  # a failover ends it
    fix = _FIXES.get(state, "")
    advice = f": {fix.format(url=url)}" if fix else ""
    text = f"ledger {url}: PostgreSQL refused the request, {state} ({message}){advice}"
    return SqlError(text, state, transient=transient)


def stops_all(error: StoreError) -> bool:
    """Tell whether one key of a batch can have stopped the whole statement, because somebody's transaction holds it."""
    return isinstance(error, KeyLocked) or (isinstance(error, SqlError) and error.state == CANCELED)


def unreachable(message: str, url: str) -> StoreError:
    """Return the error of a connection that could not be made or was lost."""
    return StoreError(f"ledger {url}: {message.strip()}", transient=True)


class SqlRefusal(Exception):
    """PostgreSQL's own error for one statement: its SQLSTATE and text."""

    def __init__(self, state: str, message: str) -> None:
        super().__init__(message)
        self.state = state


class Broken(Exception):
    """The connection was lost, or did not answer in time."""
