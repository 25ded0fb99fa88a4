"""The ledger in PostgreSQL: a table beside the users' own data."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from onceward.core.clock import boottime
from onceward.core.drivers import Steps
from onceward.core.record import Record, Reply, Write
from onceward.core.register import Answered, KeyLocked
from onceward.errors import StoreError
from onceward.stores.contract import MORE, Damaged, Page, Purged
from onceward.stores.postgres.exchange import Conduit, PostgresExchange
from onceward.stores.postgres.faults import DENIED, NO_FUNCTION, SqlError, stops_all
from onceward.stores.postgres.fences import Fences, is_claim, is_doubtful, renewed
from onceward.stores.postgres.queries import (
    InsertQuery,
    ManyRows,
    Met,
    OneRow,
    PurgeQuery,
    Query,
    ScanQuery,
    columns_of,
    policies_of,
    values_of,
)
from onceward.stores.postgres.schema import Names

_AGAIN: Final = 5  # tries of a request whose row was changed while it waited
_BRISK: Final = 20  # milliseconds to wait for a key that is known to be waited for
_COMMIT: Final = 200  # milliseconds that a slow disk takes for a commit
_SLOW: Final = 0.1  # seconds of waiting that tell an open transaction from a commit


class PostgresStore(PostgresExchange):
    """A ledger in a PostgreSQL database, 13 or newer. Make one with :func:`onceward.stores.postgres.open_ledger`."""

    resolution = 0.0
    poll = 0.05  # seconds; a waiter's look is a read by key
    max_result = 256 * 1024
    capabilities: Final[Mapping[str, str]] = {
        "count": "onceward.stores.postgres.counting:count",
        "find": "onceward.stores.postgres.finding:find",
        "found": "onceward.stores.postgres.provision:found",
        "inspect": "onceward.stores.postgres.inspection:inspect",
        "migrate": "onceward.stores.postgres.provision:migrate",
        "observe": "onceward.stores.observed:observe",
        "provision": "onceward.stores.postgres.provision:provision",
        "template": "onceward.stores.postgres.provision:template",
        "transaction": "onceward.stores.postgres.join:join",
    }

    def __init__(self, conduit: Conduit, names: Names, url: str) -> None:
        super().__init__(conduit, names, url)
        self._fences = Fences()
        self._waited: dict[object, float] = {}  # keys that a verb of this process is writing, and since when

    def insert(self, write: Write) -> Steps[Reply]:
        """Write if the key is absent, or its record is free."""
        for _ in range(_AGAIN):
            request = InsertQuery(self.statements, write, self._fences.asked(write, None), takes=self.takes)
            try:
                reply = yield from self._one(request)
            except SqlError as error:
                if not self._lacks(error):
                    raise
                continue
            if reply.record is not None:
                return (yield from self._fenced(write, None, reply))
            # It waited for a claim that was not committed yet when this statement began: a new one sees that.
        raise self.restless(write.key)

    def swap(self, write: Write, seen: Record) -> Steps[Reply]:
        """Write if the record is still the version seen."""
        reply = yield from self._swap(write, seen)
        return (yield from self._fenced(write, seen, reply))

    def _swap(self, write: Write, seen: Record) -> Steps[Reply]:
        values = (*values_of(write, self._fences.asked(write, seen)), seen.owner, seen.fence, seen.beat)
        for _ in range(_AGAIN):
            text = self.statements.call_swap if self.takes else self.statements.swap
            try:
                reply = yield from self._one(OneRow("swap", text, values))
            except SqlError as error:
                if not self._lacks(error):
                    raise
                continue
            if not _is_stale(reply, seen):
                return reply
            # Another write was committed while this one waited. The record is what the statement saw before.
        raise self.restless(write.key)

    def _lacks(self, error: StoreError) -> bool:
        """Tell whether a function is missing that was there, or may not be called any more. Then go on without."""
        lacks = self.takes and isinstance(error, SqlError) and error.state in {NO_FUNCTION, DENIED}
        self.takes = self.takes and not lacks
        return lacks

    def _fenced(self, write: Write, seen: Record | None, reply: Reply) -> Steps[Reply]:
        """Return the reply to a write. A claim takes another fence if one can have been larger than its own."""
        if not is_claim(write, seen):
            return reply
        if is_doubtful(write, reply) and reply.record is not None:
            won, before = reply.won, reply.before
            try:
                reply = yield from self._swap(renewed(write, reply.record), reply.record)
                reply = reply._replace(won=won and reply.won, before=before)
            except KeyLocked:  # which would mean that another claim has the key
                raise self.restless(write.key) from None
        if reply.record is not None and reply.record.owner == write.owner:
            self._fences.note(reply.record)
        return reply

    def _one(self, request: OneRow) -> Steps[Reply]:
        """Write one key. While another verb here waits for it, wait briefly: many must not hold all the connections."""
        key = request.values[1]
        reply: Reply
        if (since := self._waited.get(key)) is not None:
            request.patient(_BRISK)
            try:
                reply = yield request
            except KeyLocked:
                if boottime() - since > _SLOW:
                    raise
                request.patient(_COMMIT)
                reply = yield request
            return reply
        self._waited[key] = boottime()
        try:
            reply = yield request
        finally:
            self._waited.pop(key, None)
        return reply

    def load(self, key: str) -> Steps[Reply]:
        """Read one record."""
        reply: Reply = yield OneRow("load", self.statements.load, (key,))
        return reply

    def insert_many(self, writes: Sequence[Write]) -> Steps[list[Answered]]:
        """Insert all in one statement, in the order of their keys."""
        first: dict[str, Write] = {}
        for write in writes:
            first.setdefault(write.key, write)
        met = yield from self._batch(list(first.values()), self._insert_all, self.insert)
        answers: list[Answered] = []
        for write in writes:
            answer = met[write.key]
            if isinstance(answer, Reply) and first.get(write.key) is not write:
                answer = answer._replace(won=False, before=None)
            answers.append(answer)
        return answers

    def swap_many(self, pairs: Sequence[tuple[Write, Record]]) -> Steps[list[Answered]]:
        """Swap all in one statement, in the order of their keys."""
        seen = {write.key: record for write, record in pairs}
        if len(seen) < len(pairs):  # one key twice: the second depends on the first
            half = len(pairs) // 2
            answers = yield from self.swap_many(pairs[:half])
            return answers + (yield from self.swap_many(pairs[half:]))
        swap_all = lambda writes: self._swap_all(writes, seen)
        alone = lambda write: self.swap(write, seen[write.key])
        met = yield from self._batch([write for write, _ in pairs], swap_all, alone, seen)
        return [met[write.key] for write, _ in pairs]

    def _batch(
        self,
        writes: list[Write],
        all_of: Callable[[list[Write]], Query],
        alone: Callable[[Write], Steps[Reply]],
        seen: Mapping[str, Record] | None = None,
    ) -> Steps[dict[str, Answered]]:
        """Return the answers by their keys: of one statement, and for keys that changed meanwhile, of one each."""
        answers: dict[str, Answered] = {}
        if not writes:
            return answers
        todo = sorted(writes, key=lambda write: write.key)
        verb = alone
        trouble: StoreError | None = None
        try:
            met: Met = yield all_of(todo)
        except StoreError as error:
            if self._lacks(error):
                return (yield from self._batch(writes, all_of, alone, seen))
            if not stops_all(error):
                raise
            met = Met({}, 0.0)
            verb = lambda write: _briskly(alone(write))
            seen = None
        for write in todo:
            reply = met.replies.get(write.key, None if seen is None else Reply(False, None, met.now))
            of = None if seen is None else seen[write.key]
            if reply is not None and (of is None or not _is_stale(reply, of)):
                answers[write.key] = yield from _alone(self._fenced(write, of, reply))
            elif trouble is not None:
                answers[write.key] = trouble
            else:
                answers[write.key] = answer = yield from _alone(verb(write))
                if isinstance(answer, StoreError) and answer.transient and not stops_all(answer):
                    trouble = answer  # a server that does not answer: the others would wait as long, one after another
        return answers

    def _insert_all(self, writes: list[Write]) -> Query:
        return ManyRows(
            "insert_many",
            self.statements.take_many if self.takes else self.statements.insert_many,
            (*columns_of(writes, [self._fences.asked(write, None) for write in writes]), *policies_of(writes)),
        )

    def _swap_all(self, writes: list[Write], seen: Mapping[str, Record]) -> Query:
        records = [seen[write.key] for write in writes]
        columns = columns_of(writes, list(map(self._fences.asked, writes, records)))
        versions = map(list, zip(*map(_version, records), strict=True))
        text = self.statements.call_swap_many if self.takes else self.statements.swap_many
        return ManyRows("swap_many", text, (*columns, *versions))

    def scan(self, prefix: str, after: str | None, limit: int) -> Steps[Page]:
        """Read records in the order of their keys."""
        reply: Page = yield ScanQuery(self.statements.scan, prefix, after, limit)
        return reply

    def delete(self, seen: Record | Damaged) -> Steps[Reply]:
        """Delete if the record is still the version seen."""
        if isinstance(seen, Damaged):
            raise StoreError(f"ledger {self.url}: {seen.key}: PostgreSQL keeps no record that cannot be read")
        for _ in range(_AGAIN):
            reply: Reply = yield OneRow("delete", self.statements.delete, (seen.key, *_version(seen)))
            if not _is_stale(reply, seen):
                return reply
        raise self.restless(seen.key)

    def purge(self, limit: int, after: str | None = None) -> Steps[Purged]:  # noqa: ARG002 - an index finds them
        """Delete expired records, the longest expired first."""
        gone: int = yield PurgeQuery("purge", self.statements.purge, (limit,))
        return Purged(gone, MORE if gone == limit else None)

    def restless(self, key: str) -> StoreError:
        """Return the error for a key that others changed at every try."""
        return StoreError(f"ledger {self.url}: {key}: others changed it at every try", transient=True)


def _alone(verb: Steps[Reply]) -> Steps[Answered]:
    """Return the reply or the error, so that one key's error does not stop the others."""
    try:
        return (yield from verb)
    except StoreError as error:
        return error


def _briskly(verb: Steps[Reply]) -> Steps[Reply]:
    """Drive one key's verb with a short wait for locks."""
    try:
        request = next(verb)
        while True:
            request.patient(_BRISK)  # type: ignore[attr-defined]  # the verbs yield requests of ours
            try:
                reply = yield request
            except StoreError as error:
                request = verb.throw(error)
            else:
                request = verb.send(reply)
    except StopIteration as end:
        answer: Reply = end.value
        return answer


def _is_stale(reply: Reply, seen: Record) -> bool:
    """Tell whether a refused write was shown the record that it asked for: as it was before another write was committed."""
    return not reply.won and reply.record is not None and _version(reply.record) == _version(seen)


def _version(record: Record) -> tuple[str, int, int]:
    return record.owner, record.fence, record.beat
