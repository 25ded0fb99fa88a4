"""The verbs of a ledger in an SQL server that locks rows: one request for one key, and one for many.

A request waits for somebody's open transaction on its key, but only for a while, and on the lane only for a moment.

Fences only grow over the life of a key. A claim's fence is larger than those of the record, of each deleted record and of each
claim of this process, and at least the server's time. The process's own count when its transaction was rolled back and the clock of a new primary is late: no row
tells of that claim.

The time is read right before the row is written. In between, a claim can be stopped, or wait for a lock. Meanwhile another
may come and use its fence, and go: its transaction is rolled back, or its record is deleted. So each write also returns the time
after it. If that is a millisecond later, or earlier, the claim takes a new fence, now that the row is its own.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final

from onceward.core.clock import boottime
from onceward.core.drivers import Steps
from onceward.core.record import Record, RepeatedWrite, Reply, Write
from onceward.core.register import Answered, KeyLocked
from onceward.core.retries import FIRST_PAUSE, jittered
from onceward.core.writes import CARRIED
from onceward.errors import StoreError
from onceward.stores.contract import Damaged, answer_of
from onceward.stores.sql.exchange import BatchReply, SqlExchange, SqlQuery

_BRIEF: Final = 1000  # microseconds in which no other claim can come, use its fence and go
_LARGEST: Final = 2**53 - 1  # that every reader of JSON reads exactly
AGAIN: Final = 5  # tries of a request whose row others changed meanwhile
PATIENCE: Final = 1.0  # seconds to wait for somebody's open transaction on a key,
BRISK: Final = 10  # of which so many milliseconds on a lane
_LONGEST_PAUSE: Final = 0.2  # seconds between two tries


class Fences:
    """The fences of a process's claims."""

    def __init__(self) -> None:
        self._high = 0  # the largest so far

    def of(self, write: Write, seen: Record | None) -> int:
        """Return a write's fence as the statements take it. Below 1 it asks for a new one, larger than it without its sign."""
        return -max(self._high, write.fence - 1) if is_claim(write, seen) else write.fence

    def note(self, record: Record) -> None:
        """Note the fence of a claim that was won."""
        if self._high < record.fence < _LARGEST:
            self._high = record.fence


def is_claim(write: Write, seen: Record | None) -> bool:
    """Return whether a write asks for a new fence."""
    return write.fence != seen.fence if seen is not None else not write.fence


def is_doubtful(write: Write, reply: Reply) -> bool:
    """Return whether the record that a claim has made, or has met after a lost reply, needs a new fence."""
    record = reply.record
    if record is None:
        return False
    if not reply.won:  # its own, written when nobody knows
        return record.owner == write.owner and record.status == write.status and type(write) is not RepeatedWrite
    return not 0 <= round(reply.now * 1e6) - record.fence <= _BRIEF


def renewed(write: Write, record: Record) -> Write:
    """Return the claim with a new fence, to be swapped for the record that it has made."""
    fields = {field: getattr(record, field) for field in CARRIED}
    return write._replace(fence=record.fence + 1, **fields)


class SqlVerbs(SqlExchange):
    """Insert, swap and delete, by requests of the database's own."""

    def __init__(self, conduit: Any, url: str) -> None:
        super().__init__(conduit, url)
        self._fences = Fences()

    # --- by each database -----------------------------------------------------------------------------------------

    @abstractmethod
    def _writing(self, write: Write, seen: Record | None) -> SqlQuery:
        """Return the insert of one key, or the swap of a record. Those of many keys can be merged.

        The reply to an insert is without a record if another try may see one. That to a swap is None if it was made, and another
        write has come since.
        """

    @abstractmethod
    def _deleting(self, seen: Record) -> SqlQuery:
        """Return the deletion of one record."""

    def _stops_all(self, error: StoreError) -> bool:
        """Return whether one key of a batch can have stopped the whole statement, because somebody's transaction holds it."""
        return isinstance(error, KeyLocked)

    def _parts(self, writes: list[Write]) -> list[list[Write]]:
        """Split writes into those that fit into one statement each."""
        return [writes]

    def _too_long(self, key: str) -> StoreError | None:
        """Return the error for a key that the table cannot hold."""
        return None

    # --- one key --------------------------------------------------------------------------------------------------

    def insert(self, write: Write, *, brief: bool = False) -> Steps[Reply]:
        """Write if the key is absent. A ``brief`` request does not wait for somebody's open transaction on the key."""
        if (error := self._too_long(write.key)) is not None:
            raise error
        for _ in range(AGAIN):
            reply = yield from self._one(self._writing(write, None), brief=brief)
            if reply is not None and reply.record is not None:
                return (yield from self._fenced(write, None, reply))
            # It waited for a claim that was not committed yet when this statement began: a new one sees that.
        raise self.restless(write.key)

    def swap(self, write: Write, seen: Record, *, brief: bool = False) -> Steps[Reply]:
        """Write if the record is still the version seen. ``brief``: as for :meth:`insert`."""
        reply = yield from self._swap(write, seen, brief=brief)
        return (yield from self._fenced(write, seen, reply))

    def _swap(self, write: Write, seen: Record, *, brief: bool = False) -> Steps[Reply]:
        for _ in range(AGAIN):
            reply = yield from self._one(self._writing(write, seen), brief=brief)
            if reply is None:  # as with a lost reply, the caller asks again
                break
            if not is_stale(reply, seen):
                return reply
            # Another write was committed while this one waited. The record is what the statement saw before.
        raise self.restless(write.key)

    def _fenced(self, write: Write, seen: Record | None, reply: Reply) -> Steps[Reply]:
        """Return the reply to a write. A claim takes another fence if one can have been larger than its own."""
        if not is_claim(write, seen):
            return reply
        if is_doubtful(write, reply) and reply.record is not None:
            won = reply.won
            try:
                reply = yield from self._swap(renewed(write, reply.record), reply.record)
                reply = reply._replace(won=won and reply.won)
            except KeyLocked:  # which would mean that another claim has the key
                raise self.restless(write.key) from None
        if reply.record is not None and reply.record.owner == write.owner:
            self._fences.note(reply.record)
        return reply

    def _one(self, request: SqlQuery, *, brief: bool) -> Steps[Reply | None]:
        """Write one key. Somebody's open transaction on it is waited for here, since the others need the lane."""
        end, pause = boottime() + PATIENCE, FIRST_PAUSE
        while True:
            try:
                reply: Reply | None = yield request
            except KeyLocked as locked:
                if brief or not locked.brief or boottime() + pause >= end:
                    raise
                yield jittered(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                return reply

    def delete(self, seen: Record | Damaged) -> Steps[Reply]:
        if isinstance(seen, Damaged):
            raise StoreError(f"ledger {self.url}: {seen.key}: an SQL server keeps no record that cannot be read")
        for _ in range(AGAIN):
            reply = yield from self._one(self._deleting(seen), brief=False)
            assert reply is not None
            if not is_stale(reply, seen):
                return reply
        raise self.restless(seen.key)

    # --- many keys ------------------------------------------------------------------------------------------------

    def insert_many(self, writes: Sequence[Write]) -> Steps[list[Answered]]:
        """Insert all in one statement, in the order of their keys."""
        first = {write.key: write for write in reversed(writes)}
        outcomes = yield from self._batch(list(first.values()), {})
        answers = [(write, outcomes[write.key]) for write in writes]
        return [
            one._replace(won=False) if isinstance(one, Reply) and first[write.key] is not write else one
            for write, one in answers
        ]

    def swap_many(self, pairs: Sequence[tuple[Write, Record]]) -> Steps[list[Answered]]:
        """Swap all in one statement, in the order of their keys."""
        seen = {write.key: record for write, record in pairs}
        if len(seen) < len(pairs):  # one key twice: the second depends on the first
            half = len(pairs) // 2
            answers = yield from self.swap_many(pairs[:half])
            return answers + (yield from self.swap_many(pairs[half:]))
        outcomes = yield from self._batch([write for write, _ in pairs], seen)
        return [outcomes[write.key] for write, _ in pairs]

    def _batch(self, writes: list[Write], seen: Mapping[str, Record]) -> Steps[dict[str, Answered]]:
        """Return the answers by their keys: of one statement, and of one for each key that it did not answer."""
        answers: dict[str, Answered] = {
            write.key: error for write in writes if (error := self._too_long(write.key)) is not None
        }
        todo = sorted((write for write in writes if write.key not in answers), key=lambda write: write.key)
        trouble: StoreError | None = None
        brief = False
        for part in self._parts(todo) if todo else ():
            batch: BatchReply | None = None
            if len(part) > 1 and trouble is None:
                try:
                    all_of = [self._writing(write, seen.get(write.key)) for write in part]
                    batch = yield all_of[0].merged(all_of)
                except StoreError as error:
                    if not self._stops_all(error):
                        raise
                    brief = True
            for write in part:
                of = seen.get(write.key)
                reply = None if batch is None else _reply_in(batch, write.key, of)
                if reply is not None:
                    answers[write.key] = yield from answer_of(self._fenced(write, of, reply))
                elif trouble is not None:
                    answers[write.key] = trouble
                else:
                    alone = self.insert(write, brief=brief) if of is None else self.swap(write, of, brief=brief)
                    answers[write.key] = answer = yield from answer_of(alone)
                    if isinstance(answer, StoreError) and answer.transient and not self._stops_all(answer):
                        trouble = answer  # a server that does not answer: the others would wait as long, one by one
        return answers

    def restless(self, key: str) -> StoreError:
        """Return the error for a key that others changed at every try."""
        return StoreError(f"ledger {self.url}: {key}: others changed it at every try", transient=True)


def _reply_in(batch: BatchReply, key: str, seen: Record | None) -> Reply | None:
    """Return the reply to one of many; None if a request of its own must ask."""
    if seen is None:
        return batch.replies.get(key)
    reply = batch.replies.get(key) or Reply(False, None, batch.now)
    return None if is_stale(reply, seen) else reply


def is_stale(reply: Reply, seen: Record) -> bool:
    """Return whether a refused write was shown the record that it asked for: as it was before another write was committed."""
    return not reply.won and reply.record is not None and reply.record.version == seen.version
