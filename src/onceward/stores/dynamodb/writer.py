"""Stamps writes with DynamoDB's time, sends them, and reads what became of them."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from onceward.core.drivers import Steps
from onceward.core.record import Record, Reply, Write
from onceward.errors import StoreError
from onceward.stores.dynamodb import blobs, faults
from onceward.stores.dynamodb.items import COMPRESS_OVER, Item
from onceward.stores.dynamodb.reader import DynamoReader
from onceward.stores.dynamodb.replies import member, won
from onceward.wire.calls import Call, ServiceAnswer
from onceward.wire.codes import code_of


class Wanted(NamedTuple):
    """One write of a batch. It is made only if the record is still the one seen, or still absent if none was."""

    write: Write
    seen: Record | None


class Sent(NamedTuple):
    """Writes as they were stamped at ``now``, the calls that they were sent with, and the answers to these."""

    records: list[Record]
    now: float
    calls: tuple[Call, ...]
    answers: "list[ServiceAnswer | StoreError]"


class DynamoWriter(DynamoReader):
    """A table whose records are written. For the arguments, see :class:`onceward.stores.dynamodb.store.DynamoStore`.

    Attributes:
        may_batch: whether these credentials may run PartiQL, as far as is known.
    """

    may_batch = True

    def sent(self, wanted: Sequence[Wanted], calls_of: Callable[[list[Item]], tuple[Call, ...]]) -> Steps[Sent]:
        """Stamp writes, send their calls in parallel, and return the answers and errors.

        If a signature was refused, do all of it once more: our estimate of the server's time was wrong, and so are the
        stamps. A write that was already made then meets itself.
        """
        for again in (True, False):
            records, items, now = yield from self.stamped(wanted)
            calls = calls_of(items)
            answers = yield from self.ask_many(calls, again=False)
            if not again or not any(isinstance(answer, ServiceAnswer) and self.may_renew(answer) for answer in answers):
                break
        return Sent(records, now, calls, answers)

    def refused(self, record: Record | None, item: Item | None, *, inserted: bool) -> Steps[Reply]:
        """Return the reply to a refused write of ``record``. ``item`` caused the refusal, if the answer has it."""
        if item:
            return Reply(False, self.read(item), self.clock.earliest())
        if inserted and record is not None:  # a record exists, but the server or a proxy did not send it
            return (yield from self.look(record.key, consistent=True))
        return Reply(False, None, self.clock.earliest())

    def stamped(self, wanted: Sequence[Wanted]) -> Steps[tuple[list[Record], list[Item], float]]:
        """Return the records of writes stamped now, their items, and that time."""
        yield from self.learn_time()
        now = self.clock.latest()
        records, items = [], []
        for write, seen in wanted:
            record = whole(write.at(now))
            item = self.layout.item(record, seen)
            if record.result is not None and len(record.result) > COMPRESS_OVER:
                record, item = yield from self._packed(record, item, seen)
            records.append(record)
            items.append(item)
        return records, items, now

    def reply(
        self,
        call: Call,
        answer: ServiceAnswer | StoreError,
        record: Record | None,
        now: float,
        *,
        inserted: bool = False,
    ) -> Steps[Reply]:
        """Return the reply in the answer to a conditional write of ``record``, stamped ``now``."""
        if isinstance(answer, StoreError):
            raise answer
        if answer.status == 200:
            return won(record, answer, now)
        if code_of(answer) != faults.REFUSED:
            raise self.failure(call, answer)
        return (yield from self.refused(record, member(answer, "Item"), inserted=inserted))

    def _packed(self, record: Record, item: Item, seen: Record | None) -> Steps[tuple[Record, Item]]:
        """Return the record with a result as it can be stored, and its item."""
        name = self.layout.names["result"]
        if name not in item or not blobs.is_large(item[name], record.unsent):
            return record, item
        why = "a DynamoDB item has at most 400 KB; keep larger results in S3 with blobs='s3://bucket/prefix'"
        if self.blobs is not None:
            try:
                item[name] = yield from self.blobs.kept(self, record)
            except StoreError as error:
                why = f"its result could not be kept: {error}"  # a failure of S3 must not run the handler again
            else:
                return record, item
        record = record._replace(result=None, error=why)
        return record, self.layout.item(record, seen)


def whole(record: Record) -> Record:
    """Round the expiry up, because DynamoDB's TTL needs whole seconds."""
    if record.expires_at is None or record.expires_at.is_integer():
        return record
    fields = (*record[:11], float(math.ceil(record.expires_at)), *record[12:])  # half of the time of _replace
    return tuple.__new__(Record, fields)
