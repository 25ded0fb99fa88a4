"""The oracle of messages: nothing is sent that was not committed, and what was committed is sent, in order, with its own key."""

from collections.abc import Iterator

from torture.facts import Facts, Message, Record
from torture.plan import SENDING


def never_sent_uncommitted(facts: Facts) -> Iterator[str]:
    """A message that left is of the run that completed its key."""
    for message in (*facts.sent, *facts.refused):
        record = facts.records.get(message.key)
        run = facts.runs.get(message.run)
        if record is None or record.status != "COMPLETED" or run is None or run.fence != record.fence:
            yield f"{message.key}: message {message.number} of run {message.run} left, and the record is {record}"


def never_unsent(facts: Facts) -> Iterator[str]:
    """Each message of a completed key is sent, or refused and still in its record."""
    for key, record in _completed(facts):
        sent = {message.number for message in facts.sent if message.key == key}
        refused = {number for number, why in record.messages if why is not None}
        for number, why in record.messages:
            if why is None:
                yield f"{key}: message {number} is still unsent at the end"
            elif number in sent:
                yield f"{key}: message {number} was sent, and its record says that it is refused"
        for number in sorted(_offered(facts, record) - sent - refused):
            yield f"{key}: message {number} was committed, is not in the record, and was never sent"


def never_another_key(facts: Facts) -> Iterator[str]:
    """A message has the same idempotency key in each attempt and each time it is sent, and shares it with no other."""
    known: dict[tuple[str, int], str] = {}
    for message in (*facts.offered, *facts.sent, *facts.refused):
        place = message.key, message.number
        if known.setdefault(place, message.own) != message.own:
            yield f"{message.key}: message {message.number} had the key {known[place]}, and then {message.own}"
    if len(set(known.values())) < len(known):
        yield f"two messages share an idempotency key: {known}"


def never_out_of_order(facts: Facts) -> Iterator[str]:
    """The messages of a key are first sent in the order in which the handler gave them."""
    for key, _ in _completed(facts):
        first = list(dict.fromkeys(message.number for message in facts.sent if message.key == key))
        if first != sorted(first):
            yield f"{key}: its messages were first sent in the order {first}"


def never_expiring_unsent(facts: Facts) -> Iterator[str]:
    """A record with messages stays; one without has nothing of them left, and expires some day."""
    for key, record in _completed(facts):
        if record.messages and record.expires is not None:
            yield f"{key}: has messages, and expires"
        if record.unsent is None and (record.due is not None or record.expires is None):
            yield f"{key}: has no message left, is due at {record.due} and expires at {record.expires}"
        if record.unsent is not None and not record.messages:
            yield f"{key}: nothing is left to send, and it still has {record.unsent}"


def _completed(facts: Facts) -> Iterator[tuple[str, Record]]:
    if facts.plan.shape in SENDING:
        yield from ((key, record) for key, record in facts.records.items() if record.status == "COMPLETED")


def _offered(facts: Facts, record: Record) -> set[int]:
    return {one.number for one in facts.offered if one.key == record.key and _fence(facts, one) == record.fence}


def _fence(facts: Facts, message: Message) -> int | None:
    return facts.runs[message.run].fence


RULES = (never_sent_uncommitted, never_unsent, never_another_key, never_out_of_order, never_expiring_unsent)
