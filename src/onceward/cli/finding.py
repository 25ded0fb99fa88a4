"""Finds a record by the key that a client gave. The ledger's key contains it."""

import json
from collections.abc import Iterator

from onceward.core.record import Record
from onceward.errors import OncewardError
from onceward.keys.ledger_keys import ledger_key
from onceward.stores.ledger import Ledger


def records_of(ledger: Ledger, key: str) -> Iterator[tuple[Record, float]]:
    """Yield each record of the client's ``key``, in any namespace, with the store's time. This reads the whole ledger.

    A ledger's key is the namespace, a colon, and the client's key. Over HTTP a path and a scope follow, each after a colon.
    A tuple is written (a,b): its first part is compared.
    """
    forms = _forms(key)
    around = (("", ":"), ("(", ","), ("(", ")"))
    beginnings = tuple(f"{before}{form}{after}" for form in forms for before, after in around)
    for record, now in ledger.records():
        rest = record.key.partition(":")[2]
        if rest in forms or rest.startswith(beginnings):
            yield record, now


def _forms(key: str) -> set[str]:
    """Return the forms of a key in the ledger: plain, quoted as JSON, or the digest of a long text."""
    try:
        return {key, json.dumps(key), ledger_key("", key)[1:]}
    except OncewardError:  # it is empty
        return {key}
