"""The protocol's writes of a completed record's messages. See ``steps.py`` for the form of the generator.

A record with unsent messages never expires. Its ``due_at`` is a lease on sending them: whoever sends moves it into the future.
The result of the record does not change, nor the time of its completion, from which its retention counts.
"""

from typing import Final

from onceward.core.drivers import Steps
from onceward.core.policy import Policy
from onceward.core.protocol import Verdict, decide, has_messages
from onceward.core.record import COMPLETED, Record, Reply, Write
from onceward.core.register import Register
from onceward.core.steps import Lost, Won
from onceward.core.writes import ended, first_claim, next_claim, next_version
from onceward.errors import StoreError

NEVER_DUE: Final = 1e10  # seconds, three centuries: a person must look at what is left
_NOTHING: Final = "null"  # the result of a record without a handler
_TRIES: Final = 5  # to insert where a record is purged at the same moment
_LONG_AGO: Final = -1e9  # seconds: such a lease ends when the record's did


def noting(record: Record, unsent: str | None, due: float | None, keep: float | None) -> Write:
    """Return the next version of a completed record, with other messages. ``unsent`` of None strikes out all.

    Args:
        record: the record.
        unsent: the messages that are left.
        due: after how many seconds others can send them.
        keep: seconds that the record stays after its completion when no message is left.
    """
    write = next_version(
        record, COMPLETED, result=record.result, error=record.error, lease=_LONG_AGO, keep=None if unsent else keep
    )
    return write._replace(until=record.lease_until, unsent=unsent, due=None if unsent is None else due)


def without_claim(key: str, owner: str, policy: Policy, unsent: str) -> Write:
    """Return the insert of a record that only carries messages, which are due at once."""
    write = ended(first_claim(key, owner, None, policy), COMPLETED, _NOTHING, None)
    return write._replace(unsent=unsent, due=0.0, keep=None)


def insert_messages(store: Register, write: Write) -> Steps[Reply]:
    """Insert a record that only carries messages, also in the place of one that has expired and was not purged yet."""
    for _ in range(_TRIES):
        reply = yield from store.insert(write)
        held = reply.record
        if not reply.won and held is not None and decide(held, reply.now, write.owner, None, Policy()) is Verdict.START:
            reply = yield from store.swap(next_claim(write, held, fresh=True), held)
        if reply.won or reply.record is not None:
            return reply
    raise StoreError(f"{write.key}: its record was deleted again and again; try again later", transient=True)


def noted(
    store: Register, record: Record, unsent: str | None, due: float | None, sent: float, reply: Reply
) -> Won | Lost:
    """Return what the reply to a write of messages means, which was sent at ``sent`` on the owner's clock."""
    held = reply.record
    if held is None or not (reply.won or _is_made(held, record, unsent)):
        return Lost(held)
    remaining = 0.0 if held.due_at is None else held.due_at - reply.now
    return Won(held, sent + min(remaining, due or 0.0) - (due or 0.0) / 100 - store.resolution)


def _is_made(held: Record, before: Record, unsent: str | None) -> bool:
    """Return whether the write was made, and its reply lost. The id of who sends makes each text of messages different."""
    same = (held.owner, held.fence) == (before.owner, before.fence) and held.beat > before.beat
    return same and held.unsent == unsent and (unsent is None or has_messages(held))
