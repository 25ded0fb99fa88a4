"""Retry and dead-letter queues of brokers that have none: their names, and the headers of what goes there."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from onceward.results.outcomes import describe

if TYPE_CHECKING:
    from onceward.batch.outcomes import BatchOutcome

# ARGV: group, id of the entry, fields and values of the letter. An error of the first command ends the script before the second one,
# which no transaction (MULTI) does.
_LETTER: Final = """
redis.call('XADD', KEYS[1], '*', unpack(ARGV, 3))
redis.call('XACK', KEYS[2], ARGV[1], ARGV[2])
"""
_MOST: Final = 2000  # fields; Lua unpacks fewer than 8000 values


async def add_letter(
    client: Any, dead: str, source: str, group: str, entry: str | bytes, fields: Mapping[Any, Any]
) -> None:
    """Add a letter to the stream ``dead``, and acknowledge its ``entry`` of the stream ``source``: a failover loses both, or none.

    Args:
        client: of redis-py, awaited.
        dead: the stream of the dead letters.
        source: the stream of the entry.
        group: whose entry it is.
        entry: its id.
        fields: of the letter.

    Raises:
        RedisError: the server took neither, or gave no answer.
    """
    if len(fields) > _MOST:
        await client.xadd(dead, fields)  # it is acknowledged afterwards
        return
    flat = [part for pair in fields.items() for part in pair]
    await client.eval(_LETTER, 2, dead, source, group, entry, *flat)


KEY_HEADER: Final = "Idempotency-Key"  # a message's own idempotency key, which its sender derived
STATUS: Final = "onceward-status"  # parked, mismatch or malformed
REASON: Final = "onceward-reason"  # for a person: one line of text
LEDGER_KEY: Final = "onceward-key"  # the key in the ledger; a malformed message has none
FROM: Final = "onceward-from"  # where the message was
RECEIVES: Final = "onceward-receives"  # how often it was received
DELAY: Final = "onceward-delay"  # seconds that a record of Kafka's retry topic waits, counted from its timestamp
GROUP: Final = "onceward-group"  # whose retry it is; other groups skip it
OURS: Final = frozenset({STATUS, REASON, LEDGER_KEY, FROM, RECEIVES})
_LONGEST: Final = 1000  # characters of a reason
_UNHANDLED: Final = frozenset({"parked", "mismatch", "malformed"})


def retry_name(queue: str) -> str:
    """Return the name of the queue or topic where the messages of ``queue`` wait for their next try."""
    return f"{queue}.onceward-retry"


def dead_name(queue: str) -> str:
    """Return the name of the queue or topic that gets the messages of ``queue`` that cannot be handled."""
    return f"{queue}.onceward-dead"


def is_unhandled(outcome: "BatchOutcome") -> bool:
    """Return whether a message can only be dead-lettered: a retry does not help."""
    return outcome.status in _UNHANDLED


def dead_headers(outcome: "BatchOutcome", source: str, receives: int) -> Mapping[str, str]:
    """Return the headers of a message for the dead letters, which tell why it is there."""
    why = outcome.status if outcome.error is None else describe(outcome.error)
    headers = {STATUS: outcome.status, REASON: _one_line(why), FROM: source, RECEIVES: str(receives)}
    return headers if outcome.key is None else {**headers, LEDGER_KEY: outcome.key}


def receives_in(text: str | None) -> int:
    """Return how often a message was received before, as its header says; 0 if that is no number."""
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 10 else 0


def _one_line(text: str) -> str:
    """Return text that any broker takes as a header, also those that write headers as lines."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:_LONGEST]
