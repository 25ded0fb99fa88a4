"""Gives the records of an earlier time their entries in the index of what is not completed."""

from onceward.core.drivers import Steps
from onceward.core.protocol import is_known
from onceward.core.record import COMPLETED, Record
from onceward.stores.contract import DamagedRecord, Part
from onceward.stores.dynamodb.indexes import UNFINISHED
from onceward.stores.dynamodb.items import NULL, OPEN, Item
from onceward.stores.dynamodb.replies import page
from onceward.stores.dynamodb.terms import Terms
from onceward.stores.dynamodb.writer import DynamoWriter


def migrate(store: DynamoWriter) -> Steps[list[Part]]:
    """Correct the entries of all records (:data:`onceward.stores.capabilities.MIGRATE`). This reads the whole table once.

    Records that workers without ``index=open`` have written have no entry, or a wrong one. You can run this again.
    """
    layout = store.layout
    if not layout.lists_open:
        return []
    yield from store.learn_time()
    start: Item | None = None
    entered = 0
    while True:
        items, start = page((yield from store.ask(store.requests.scan(start, None, _wanted(store)))))
        for item in items:
            try:
                record = store.read(item)
            except DamagedRecord:
                continue
            if is_known(record) and item.get(OPEN, NULL) != layout.open_of(record):
                entered += yield from _enter(store, record)
        if start is None:
            return [Part(f"entries in the index {UNFINISHED}: {entered}", entered > 0)]


def _enter(store: DynamoWriter, record: Record) -> Steps[bool]:
    """Write the entry of a record, also if others write it meanwhile. Return whether it is still there."""
    held: Record | None = record
    while held is not None and is_known(held):
        call = store.requests.write({OPEN: store.layout.open_of(held)}, held)
        reply = yield from store.reply(call, (yield from store.ask(call, gone=400)), held, 0.0)
        if reply.won:
            return True
        held = reply.record
    return False


def _wanted(store: DynamoWriter) -> Terms:
    """Return the filter of records that are not completed, or have an entry."""
    terms = store.requests.having("")
    terms.add(f"({terms.compared(store.layout.status, '<>', COMPLETED)} OR attribute_exists({terms.name(OPEN)}))")
    return terms
