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
    "fence": "fencing token: it only grows over the life of a key",
    "beat": "grows with each write of this claim",
    "lease_until": "when another worker may take the key over; once the claim has ended, when that was",
    "attempts": "claims since the key was last completed or cleared",
    "fingerprint": "hash of the input",
    "result": "what duplicates get, as JSON; for a PARKED key, the message that it keeps",
    "error": "why the last attempt failed, or the result is missing",
    "created_at": "the first claim",
    "expires_at": "when the record may be purged, if no lease is live; NULL is never",
    "updated_at": "the last write",
    "worker": "who made the last claim: host/process",
    "needs": "features that code must know to touch this key",
    "steps": "what is recorded of each step of the handler, as JSON",
    "unsent": "messages that were committed with the completion and are not sent yet, as JSON",
    "due_at": "when anybody can send them; until then, somebody may be sending",
    "origin": "from whose message this call came, as JSON",
    "input": "the arguments of the handler, if they are kept, as JSON",
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


def check_version(meta: Mapping[str, str], known: int, url: str) -> None:
    """Raise StoreError if a ledger says that its schema is of another version than the one known here."""
    if meta.get("version", str(known)) != str(known):
        raise StoreError(
            f"ledger {url}: its schema is version {meta['version']!r}, and this onceward knows version {known} only. If a "
            "newer onceward made it, upgrade this one; nothing in the ledger was changed"
        )


def is_complete(meta: Mapping[str, str], minor: int) -> bool:
    """Return whether a ledger has all that this version adds."""
    layout = meta.get("layout", "")
    return layout.isdecimal() and int(layout) >= minor
