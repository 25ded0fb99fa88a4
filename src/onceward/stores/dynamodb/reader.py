"""Reads records from a table in DynamoDB, page by page or by their keys."""

import json
from collections.abc import Iterator, Sequence
from typing import Final, cast

from onceward.core.clock import Clock
from onceward.core.drivers import Steps
from onceward.core.record import Record, Reply
from onceward.core.register import Answered
from onceward.core.retries import jittered
from onceward.errors import StoreError
from onceward.stores.contract import Damaged, DamagedRecord, Page
from onceward.stores.dynamodb import blobs
from onceward.stores.dynamodb.items import Item, Layout, reason
from onceward.stores.dynamodb.replies import member, page
from onceward.stores.dynamodb.table import DynamoTable
from onceward.stores.dynamodb.terms import Terms
from onceward.wire.calls import ServiceAnswer
from onceward.wire.wires import Wires

_KEYS: Final = 100  # of one BatchGetItem: DynamoDB's own limit
_PAUSES: Final = (0.05, 0.1, 0.2, 0.4)  # seconds before unread keys are requested again


class DynamoReader(DynamoTable):
    """A table whose items are records. For the arguments, see :class:`onceward.stores.dynamodb.store.DynamoStore`."""

    def __init__(
        self, table: str, wires: Wires, layout: Layout, url: str, clock: Clock, kept: blobs.Blobs | None
    ) -> None:
        super().__init__(table, wires, layout, url, clock)
        self.blobs = kept

    def read(self, item: Item) -> Record:
        """Return an item as a record. A result in S3 is not fetched yet.

        Raises:
            DamagedRecord: it cannot be read.
        """
        layout = self.layout
        try:
            record = layout.record(item)
            kept = item.get(layout.names["result"])
            if kept is not None and "M" in kept and not layout.is_foreign(record):
                return record._replace(result=blobs.elsewhere(self, self.blobs, record, kept))
        except (StoreError, LookupError, ValueError, TypeError, AttributeError) as error:
            raise self._damaged(item, error) from error
        return record

    def _damaged(self, item: Item, error: Exception) -> DamagedRecord:
        why = str(error) if isinstance(error, StoreError) else f"its item makes no sense ({reason(error)})"
        key = self.layout.key_in(item)
        return DamagedRecord(
            f"{key}: ledger {self.url} has a record of this key that cannot be read: {why}. To delete it, so that the next "
            "delivery runs, clear the key",
            Damaged(key, why, item),
        )

    def sorted_out(self, items: Sequence[Item]) -> tuple[list[Record], list[Damaged]]:
        """Return items as records, and those that cannot be read."""
        records: list[Record] = []
        damaged: list[Damaged] = []
        for item in items:
            try:
                records.append(self.read(item))
            except DamagedRecord as error:
                damaged.append(error.damaged)
        return records, damaged

    def look(self, key: str, *, consistent: bool) -> Steps[Reply]:
        """Read one record."""
        answer = yield from self.ask(self.requests.get(key, consistent=consistent))
        item = member(answer, "Item")
        return Reply(False, self.read(item) if item else None, self.clock.earliest())

    def look_many(self, keys: Sequence[str]) -> Steps[dict[str, Answered]]:
        """Read records consistently: None for one that is gone, an error for one that cannot be read now.

        Keys are left out if the answer makes no sense, or a permission is missing.
        """
        found: dict[str, Answered] = {}
        todo = list(keys)
        pauses: Iterator[float] = iter(_PAUSES)
        while todo:
            asked = todo[:_KEYS]
            try:
                answer = yield from self.ask(self.requests.get_many([self.layout.key(key) for key in asked]))
                left = self._left(answer)
                read = self._items_of(answer)
            except (StoreError, AttributeError, TypeError, LookupError) as error:
                if isinstance(error, StoreError) and error.transient:
                    return found | dict.fromkeys(todo, error)
                return found
            now = self.clock.earliest()
            answered = [key for key in asked if key not in left]
            for key in answered:
                record = read.get(key)
                found[key] = record if isinstance(record, StoreError) else Reply(False, record, now)
            if answered:
                pauses = iter(_PAUSES)  # there is progress
            todo = [key for key in asked if key in left] + todo[_KEYS:]
            if left:
                pause = next(pauses, None)
                if pause is None:
                    throttled = StoreError(f"ledger {self.url}: dynamodb:BatchGetItem was throttled", transient=True)
                    return found | dict.fromkeys(todo, throttled)
                yield jittered(pause)
        return found

    def _left(self, answer: ServiceAnswer) -> set[str]:
        """Return the keys that were not read."""
        left = member(answer, "UnprocessedKeys") or {}
        keys = left.get(self.requests.table, {}).get("Keys", [])
        return {self.layout.key_in(key) for key in cast("list[Item]", keys)}

    def _items_of(self, answer: ServiceAnswer) -> dict[str, Record | StoreError]:
        """Return the records that were read, or the error for each that cannot be."""
        read: dict[str, Record | StoreError] = {}
        for item in cast("list[Item]", (member(answer, "Responses") or {}).get(self.requests.table, [])):
            try:
                record = self.read(item)
            except DamagedRecord as error:
                read[error.damaged.key] = error
            else:
                read[record.key] = record
        return read

    def hinted(self, keys: Sequence[str]) -> Steps[tuple[list[Record], list[Damaged]]]:
        """Read the records that an index has hinted at, which may be late. Leave out those that are gone."""
        found = yield from self.look_many(keys)
        records: list[Record] = []
        damaged: list[Damaged] = []
        for key in keys:
            if key not in found:
                raise StoreError(f"ledger {self.url}: {key!r} could not be read", transient=True)
            reply = found[key]
            if isinstance(reply, DamagedRecord):
                damaged.append(reply.damaged)
            elif isinstance(reply, StoreError):
                raise reply
            elif reply.record is not None:
                records.append(reply.record)
        return records, damaged

    def read_page(self, terms: Terms, prefix: str, after: str | None, limit: int | None) -> Steps[Page]:
        """Read one page of the items that a filter lets through. DynamoDB looks at ``limit`` items, or at 1 MB."""
        start = None if after is None else resumed(after)
        items, last = page((yield from self.ask(self.requests.scan(start, limit, terms))))
        records, damaged = self.sorted_out(items)
        # DynamoDB's filter may let other keys through.
        records = [record for record in records if record.key.startswith(prefix)]
        damaged = [one for one in damaged if one.key.startswith(prefix)]
        return Page(records, token(last), self.clock.earliest(), tuple(damaged))


def token(last: Item | None) -> str | None:
    """Return where a page goes on after this key."""
    return None if not last else json.dumps(last, separators=(",", ":"))


def resumed(after: str) -> Item:
    """Return the key of :func:`token`. Raises StoreError."""
    try:
        key = json.loads(after)
    except ValueError:
        key = None
    if not isinstance(key, dict):
        raise StoreError(f"{after!r} is not where an earlier page of this ledger ended")
    return key
