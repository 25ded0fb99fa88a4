"""Compares the completed keys of a ledger with the effects that its downstream knows.

The effects are counted in a temporary file. The ledger is read once, page by page, and each record is looked up there. So
neither needs to be sorted, and the memory that it takes does not grow.
"""

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import islice
from typing import Final, Literal, NamedTuple

from onceward.core.protocol import is_live
from onceward.core.record import COMPLETED, Record
from onceward.keys.ledger_keys import derived_key, ledger_key, may_be_kept
from onceward.stores.contract import NotFound
from onceward.stores.ledger import Ledger

Difference = Literal["effect without a record", "record without an effect", "double"]
_BATCH: Final = 1000
_OURS: Final = "onceward."  # how namespaces of our own records begin: audit entries, incidents, redriven messages
_LIVE: Final = "LIVE"  # of a record that a worker holds: its effect may be made, and is not recorded yet
_RAISED: Final = '{"$onceward":1,"raised"'  # how the result of a handler begins that raised a final exception
_TABLE: Final = "CREATE TABLE effects (key TEXT PRIMARY KEY, times INTEGER NOT NULL, seen TEXT) WITHOUT ROWID"
_COUNT: Final = "INSERT INTO effects (key, times) VALUES (?, 1) ON CONFLICT (key) DO UPDATE SET times = times + 1"
_LEFT: Final = "SELECT key, times, seen FROM effects WHERE times > 1 OR seen IS NULL OR seen <> ? ORDER BY key"


class Mismatched(NamedTuple):
    """A key on which ledger and downstream do not agree.

    Attributes:
        what: an effect without a completed record; a completed record without an effect; or an effect made more than once.
        key: as the ledger has it; of an effect with a derived key, as the downstream has it.
        times: how often the effect was made.
        status: the record's; None if there is none.
        at: when the record was completed, in seconds since the epoch.
    """

    what: Difference
    key: str
    times: int = 0
    status: str | None = None
    at: float | None = None


class Naming(NamedTuple):
    """How the downstream names the keys of a ledger.

    Attributes:
        name: the namespace that the downstream's keys do not have; None: they are the ledger's own.
        derived: they are those that ``claim.key(derived)`` returns, or ``claim.key()`` if it is empty; None: they are not.
    """

    name: str | None = None
    derived: str | None = None

    @property
    def prefix(self) -> str:
        """The beginning of the records' keys."""
        return "" if self.name is None else f"{self.name}:"

    def of_record(self, record: Record) -> str:
        """Return a text to compare: 42 and "42" are the same, because a file or a column does not tell them apart."""
        if self.derived is not None:
            return derived_key(record.key, (self.derived,) if self.derived else ())
        return record.key if self.name is None else _bare(record.key.removeprefix(self.prefix))

    def of_effect(self, key: object) -> str:
        """Return a text to compare. Raises KeyMissing if it is empty, TypeError if it cannot be a key."""
        return str(key) if self.name is None or self.derived is not None else _bare(ledger_key("", key)[1:])

    def keys_of(self, text: str) -> list[str]:
        """Return the possible keys in the ledger of what was compared; none for a derived key."""
        if self.derived is not None:
            return []
        return [text] if self.name is None else [f"{self.prefix}{text}", f"{self.prefix}{json.dumps(text)}"]


ITS_OWN: Final = Naming()


def _bare(form: str) -> str:
    return str(json.loads(form)) if form.startswith('"') else form


def mismatches(
    ledger: Ledger,
    effects: Iterable[object],
    naming: Naming = ITS_OWN,
    *,
    newer_than: float | None = None,
    settle: float = 300.0,
) -> Iterator[Mismatched]:
    """Yield the keys on which a ledger and the effects of its downstream do not agree.

    Args:
        ledger: the ledger.
        effects: the downstream's keys.
        naming: how they are those of the ledger.
        newer_than: only records that changed within so many seconds. Give effects of a longer time. Not with derived keys,
            which do not lead to an older record.
        settle: seconds for which a completed record may lack an effect, because the list of effects may be older.

    Raises:
        StoreError: the ledger cannot be read.
        KeyMissing, TypeError, ValueError: the effects cannot be read.
        ValueError: ``newer_than`` is given for derived keys.
    """
    if newer_than is not None and naming.derived is not None:
        raise ValueError("newer_than: an effect with a derived key does not lead to its older record: leave it out")
    with closing(sqlite3.connect("")) as file:  # SQLite keeps it in a temporary file when it grows
        file.execute(_TABLE)
        rows = ((naming.of_effect(key),) for key in effects)
        while some := list(islice(rows, _BATCH)):
            file.executemany(_COUNT, some)
        yield from _without_effect(ledger, file, naming, newer_than, settle)
        yield from _without_record(ledger, file, naming)


def _without_effect(
    ledger: Ledger, file: sqlite3.Connection, naming: Naming, newer_than: float | None, settle: float
) -> Iterator[Mismatched]:
    for record, now in ledger.records(prefix=naming.prefix, newer_than=newer_than):
        if record.key.startswith(_OURS) and not naming.prefix:
            continue
        seen = _LIVE if is_live(record, now) else record.status
        marked = file.execute("UPDATE effects SET seen = ? WHERE key = ?", (seen, naming.of_record(record)))
        has_none = record.status == COMPLETED and marked.rowcount == 0 and max(0.0, now - record.lease_until) >= settle
        if has_none and not (record.result or "").startswith(_RAISED) and not may_be_kept(record.key):
            yield Mismatched("record without an effect", record.key, 0, record.status, record.lease_until)


def _without_record(ledger: Ledger, file: sqlite3.Connection, naming: Naming) -> Iterator[Mismatched]:
    for text, times, seen in file.execute(_LEFT, (COMPLETED,)):
        status, at = seen, None
        key, *_ = keys = naming.keys_of(text) or [text]
        if seen != COMPLETED and naming.derived is None:  # it may have been completed since, or changed long ago
            status = None
            for name in keys:
                try:
                    record, now = ledger.show(name)
                except NotFound:
                    continue
                key, at, status = name, record.lease_until, _LIVE if is_live(record, now) else record.status
        if times > 1:
            yield Mismatched("double", key, times, status, at)
        elif status not in {COMPLETED, _LIVE}:
            yield Mismatched("effect without a record", key, times, status, at)
