"""The columns of a record in SQL, which have the record's names, for people with the database's own shell; and what a ledger is."""

from collections.abc import Mapping
from functools import reduce
from typing import Final

from onceward.core.protocol import NEEDS, STATUSES
from onceward.core.record import Record
from onceward.errors import StoreError

FIELDS: Final = Record._fields
COLUMNS: Final = ", ".join(FIELDS)
VERSION: Final = ("owner", "fence", "beat")  # what a conditional write compares
TIMES: Final = frozenset({"lease_until", "created_at", "expires_at", "updated_at", "due_at"})

# A status or a need that this version does not know may mean that the record is still needed.
_STATUSES = ", ".join(f"'{status}'" for status in sorted(STATUSES))
_OTHER_NEEDS = reduce(
    lambda rest, need: f"replace({rest}, ' {need} ', ' ')", sorted(NEEDS), "' ' || coalesce(needs, '') || ' '"
)
KNOWN: Final = f"status IN ({_STATUSES}) AND trim({_OTHER_NEEDS}) = ''"

MEANINGS: Final = {  # which the database shows
    "key": "namespace and key of one operation",
    "status": "IN_PROGRESS, COMPLETED, RELEASED or PARKED",
    "owner": "random id of the last claim",
    "fence": "fencing token: a number that grows with each claim of the key",
    "beat": "a number that grows with each write of this claim",
    "lease_until": "when the lease ends; when the claim has ended, the time of its end",
    "attempts": "claims since the key was last completed, cleared, unparked or retried by hand",
    "fingerprint": "hash of the input",
    "result": "the result for duplicates, as JSON; for a PARKED key, the message that it keeps",
    "error": "why the last attempt failed, or why there is no result",
    "created_at": "when the key was first claimed",
    "expires_at": "when the record may be deleted, if no lease is live; NULL means never",
    "updated_at": "when the record was last written",
    "worker": "the worker of the last claim: host/process",
    "needs": "features that code must know to touch this key",
    "steps": "the recorded steps of the handler, as JSON",
    "unsent": "unsent messages of the completion, as JSON",
    "due_at": "from when any process may send the unsent messages",
    "origin": "the keys whose messages led to this call, as JSON",
    "input": "the arguments of the handler as JSON, if it keeps them",
    "history": "the last attempts, as JSON lines",
    "trace": "W3C traceparent of the last run",
}
_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_")
_LONGEST: Final = (
    50  # characters of a name: PostgreSQL allows 63, MySQL 64, and what belongs to a table has longer ones
)


def check_name(what: str, name: str) -> None:
    """Raise ValueError if a table or schema cannot have this name."""
    if not name or set(name) - _PLAIN or name[0].isdigit() or len(name) > _LONGEST:
        raise ValueError(
            f"{what}={name!r}: give a name of lower-case letters, digits and underscores, at most {_LONGEST} long"
        )


def check_version(meta: Mapping[str, str], current: int, url: str) -> None:
    """Raise StoreError if a ledger says that its schema is of another version than the current one."""
    if meta.get("version", str(current)) != str(current):
        raise StoreError(
            f"ledger {url}: its schema is version {meta['version']!r}, and this onceward knows version {current} only. If a "
            "newer onceward made it, upgrade this one; nothing in the ledger was changed"
        )


def is_complete(meta: Mapping[str, str], minor: int) -> bool:
    """Return whether a ledger has all that this version adds."""
    layout = meta.get("layout", "")
    return layout.isdecimal() and int(layout) >= minor
