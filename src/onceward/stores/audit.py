"""Who has done what to a record, and why: entries in the ledger itself.

An entry is a completed record under the namespace ``onceward.audit``. Its key is the key that was acted on and a number. It is
inserted before the action, so there is no action without an entry. How the action ended is a second record, ``KEY:N:end``. If
there is none, the process was stopped in between. Entries never change and never expire.
"""

import os
from typing import Final, NamedTuple

import msgspec

from onceward.core.drivers import drive
from onceward.core.policy import Policy
from onceward.core.record import COMPLETED, Record
from onceward.core.writes import ended, first_claim
from onceward.keys.ledger_keys import scoped_key
from onceward.results.outcomes import storable
from onceward.stores.contract import NotFound
from onceward.stores.ledger_reader import LedgerReader

NAMESPACE: Final = "onceward.audit"
_MOST: Final = 200  # entries of one key that a page shows
_END: Final = "end"


class Deed(msgspec.Struct, frozen=True):
    """What somebody is about to do.

    Attributes:
        key: the key in the ledger.
        action: its name.
        who: the visitor's name, and how it is known.
        why: the visitor's reason.
        before: the record's status and fence as the visitor saw it.
        detail: what else the action was told, such as a step or a queue.
    """

    key: str
    action: str
    who: str
    why: str
    before: str
    detail: str = ""


class AuditEntry(NamedTuple):
    """A deed, when it began, and how it ended; None if nobody knows."""

    deed: Deed
    at: float
    end: str | None


def begin(ledger: LedgerReader, deed: Deed) -> str:
    """Write an entry. Return its key. Raises StoreError: nothing may be done then."""
    number = _number(ledger, deed.key)
    while True:
        number += 1  # another visitor may have taken the last one
        key = _key(deed.key, number)
        if _insert(ledger, key, msgspec.json.encode(deed).decode()):
            return key


def end(ledger: LedgerReader, entry: str, how: str) -> None:
    """Write how the deed of an entry has ended. Raises StoreError."""
    _insert(ledger, f"{entry}:{_END}", msgspec.json.encode(storable(how)).decode())


def entries_of(ledger: LedgerReader, key: str) -> list[AuditEntry]:
    """Return the latest entries of a key, the latest first."""
    last = _number(ledger, key)
    records = (_find(ledger, _key(key, number)) for number in range(last, max(0, last - _MOST), -1))
    return [_entry(one, _find(ledger, f"{one.key}:{_END}")) for one in records if one is not None]


def _number(ledger: LedgerReader, key: str) -> int:
    """Return how many entries a key has, with few reads: they have no gaps."""
    last, beyond = 0, 1
    while _find(ledger, _key(key, beyond)) is not None:
        last, beyond = beyond, 2 * beyond
    while beyond - last > 1:
        middle = (last + beyond) // 2
        if _find(ledger, _key(key, middle)) is None:
            beyond = middle
        else:
            last = middle
    return last


def latest(ledger: LedgerReader, records: list[Record]) -> list[AuditEntry]:
    """Return the entries among records of the namespace, the latest first. An end that is not among them is read."""
    ends = {record.key: record for record in records if record.key.endswith(f":{_END}")}
    starts = [record for record in records if record.key not in ends]
    keys = ((record, f"{record.key}:{_END}") for record in starts)
    entries = [_entry(record, ends.get(end) or _find(ledger, end)) for record, end in keys]
    return sorted(entries, key=lambda entry: -entry.at)


def _key(key: str, number: int) -> str:
    return scoped_key(NAMESPACE, (key, number))


def _insert(ledger: LedgerReader, key: str, text: str) -> bool:
    owner = os.urandom(16).hex()
    claim = first_claim(key, owner, None, Policy())
    # It takes no record that is there already: an entry is never replaced.
    write = ended(claim, COMPLETED, text, None)._replace(keep=None)
    reply = drive(ledger.store.insert(write), ledger.store)
    return reply.won or (reply.record is not None and reply.record.owner == owner)


def _find(ledger: LedgerReader, key: str) -> Record | None:
    try:
        return ledger.show(key)[0]
    except NotFound:
        return None


def _entry(record: Record, end: Record | None) -> AuditEntry:
    try:
        deed = msgspec.json.decode(record.result or "", type=Deed)
    except msgspec.DecodeError:
        deed = Deed(record.key, "?", "?", "this entry cannot be read", "?")
    how = None if end is None or end.result is None else msgspec.json.decode(end.result, type=str)
    return AuditEntry(deed, record.created_at, how)
