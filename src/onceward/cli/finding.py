"""Finding a record by the key that a client gave, of which the ledger's key is made."""

import json
from collections.abc import Iterator

from onceward.core.record import Record
from onceward.errors import OncewardError
from onceward.keys.ledger_keys import ledger_key
from onceward.stores.ledger import Ledger


def records_of(ledger: Ledger, key: str) -> Iterator[tuple[Record, float]]:
    """Yield each record whose key is made of ``key``, in any namespace, with the store's time. Reads the whole ledger.

    A ledger's key is its namespace and what the client gave, and over HTTP a path and a scope after that, with colons in
    between. A tuple is written (a,b), and counts as made of its first part.
    """
    forms = _forms(key)
    around = (("", ":"), ("(", ","), ("(", ")"))
    beginnings = tuple(f"{before}{form}{after}" for form in forms for before, after in around)
    for record, now in ledger.records():
        rest = record.key.partition(":")[2]
        if rest in forms or rest.startswith(beginnings):
            yield record, now


def _forms(key: str) -> set[str]:
    """Return how a key may be written in the ledger: as it is, as text that needs quotes, or as a digest of long text."""
    try:
        return {key, json.dumps(key), ledger_key("", key)[1:]}
    except OncewardError:  # it is empty
        return {key}
