"""Large results of steps, each in a record of its own: they go when a person clears their key or forgets their step."""

from contextlib import suppress

from onceward.core.drivers import drive
from onceward.core.record import Record
from onceward.keys.ledger_keys import kept_key
from onceward.results.step_entries import entries_of
from onceward.stores.contract import DamagedRecord, Store


def delete_kept(store: Store, record: Record | None, steps: str | None = None) -> None:
    """Delete the large results of a record's steps, but for those that are still in ``steps``.

    What is left after a crash, or is changed meanwhile, expires.
    """
    if record is None:
        return
    try:
        left = entries_of(steps)
        entries = [one for one in entries_of(record.steps).values() if one.kept and one.name not in left]
    except ValueError:  # then nobody knows which there are
        return
    for entry in entries:
        with suppress(DamagedRecord):
            held = drive(store.load(kept_key(record.key, entry.name, entry.kept)), store).record
            if held is not None:
                drive(store.delete(held), store)
