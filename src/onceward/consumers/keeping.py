"""Keeps messages in the ledger if there is no dead-letter queue, so that the broker drops none.

A message goes into the parked record of its key. If there is none (the message is malformed, or its key is another input's), it
gets its own parked record. The worker deletes it from the queue only after it has seen this write succeed:

- After a crash or a lost reply the message is still in the queue. The next time, it finds itself in the record.
- A record that already keeps an equal message is still written, as its next version. A resend unparks the version from
  before the send (``aws/dead_letters/letters.py``), so that unpark is refused. Without the write, somebody could unpark the
  key between our read and the acknowledgement, and the message would be lost.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from onceward.consumers.broker import Broker
from onceward.consumers.delivery import Delivery
from onceward.core import protocol
from onceward.core.clock import boottime
from onceward.core.drivers import Steps, drive_async
from onceward.core.record import Write
from onceward.core.register import Register
from onceward.core.retries import patience, retry_transient
from onceward.core.steps import fetch_result
from onceward.errors import OncewardError
from onceward.keys.ledger_keys import ledger_key
from onceward.observe.logs import logger
from onceward.results.classes import NotReplayable
from onceward.results.outcomes import SEALED, describe, noted, sealing

if TYPE_CHECKING:
    from onceward.batch.outcomes import BatchOutcome
    from onceward.claim.guard import Guard
    from onceward.core.policy import Seal

M = TypeVar("M")
_TRIES: Final = 10  # writes; others may win each of them
_LET_GO: Final = "its key is not parked any more"
_NO_ROOM: Final = "the ledger has no room for it: give the queue a dead-letter queue, or the worker a larger max_result=, up to what the ledger takes"


class Place(NamedTuple):
    """Where a message is kept."""

    key: str  # in the ledger
    reason: str | None = None  # why the message gets its own record; None if it goes into the parked record of its key


def opened_kept(key: str, text: str, seal: "Seal | None") -> str:
    """Return a kept message as it was before sealing; raises OncewardError if the seal is missing, or cannot open it."""
    if not text.startswith(SEALED):
        return text
    try:
        opened: str = sealing().opened(seal, text)
    except NotReplayable as error:
        why = error if seal is not None else "it is sealed, and no seal was given"
        raise OncewardError(
            f"{key}: the message that it keeps cannot be opened: {why}. `onceward unpark KEY --to QUEUE --seal MODULE:NAME` takes the "
            "seal= of its worker"
        ) from error
    return opened


def keeping(
    store: Register,
    place: Place,
    text: str,
    alike: Callable[[str, str], bool] = str.__eq__,
) -> Steps[str | None]:
    """Keep a message as ``text``; return why it is not kept, or None. ``alike`` tells whether two texts are of one message.

    Raises:
        StoreError: the store did not answer for two seconds. The message may be kept or not.
    """
    reply = yield from retry_transient(partial(store.load, place.key), boottime, patience(boottime))
    for _ in range(_TRIES):
        record = reply.record
        if record is not None and protocol.message_in(record) is not None:
            record = yield from fetch_result(record, boottime)
        write: Write | None = None
        if record is None:
            if place.reason is not None:
                write = protocol.parked_message(place.key, os.urandom(16).hex(), text, place.reason)
        else:
            there = protocol.message_in(record)
            if there is not None and not alike(there, text):
                return "its record keeps another message, which must be unparked first"
            write = protocol.keeping(record, there or text, place.reason)
        if write is None:
            break
        verb = partial(store.insert, write) if record is None else partial(store.swap, write, record)
        reply = yield from retry_transient(verb, boottime, patience(boottime))
        if reply.won and reply.record is not None:
            if reply.record.result == write.result:
                return None
            # The store wrote an error about its missing room over the reason. Write the reason again.
            corrected = protocol.keeping(reply.record, None, write.error)
            if corrected is not None:
                verb = partial(store.swap, corrected, reply.record)
                yield from retry_transient(verb, boottime, patience(boottime))
            return _NO_ROOM
    return _LET_GO


def place_for(outcome: "BatchOutcome", delivery: Delivery, receives: int, guard: "Guard") -> Place | None:
    """Return where to keep a message that was received ``receives`` times; None if it stays in the queue, or is done."""
    if outcome.status == "parked" and outcome.key is not None:
        return Place(outcome.key)
    limit = guard.policy.max_attempts
    if outcome.status in {"malformed", "mismatch"} and limit is not None and receives >= limit:
        error = outcome.error
        why = outcome.status if error is None else noted(describe(error), guard.policy)
        return Place(ledger_key(f"{guard.name}.{outcome.status}", delivery.id), why)
    return None


async def keep(broker: Broker[M], guard: "Guard", message: M, delivery: Delivery, place: Place) -> bool:
    """Keep a message of a broker without dead letters, and log the result. Return whether it is kept.

    Raises:
        StoreError: as :func:`keeping`.
    """
    store, policy = guard.store, guard.policy
    text = broker.kept_text(message)

    def alike(there: str, _: str) -> bool:
        try:
            return broker.alike(opened_kept(place.key, there, policy.seal), text)
        except OncewardError:
            return False

    why: str | None = _NO_ROOM
    try:
        sealed = text if policy.seal is None else sealing().sealed_whole(policy.seal, text)
        if policy.max_result is None or len(sealed.encode()) <= policy.max_result:
            why = await drive_async(keeping(store, place, sealed, alike), store)
    except NotReplayable as error:
        why = f"it cannot be sealed: {error}"
    if why is None:
        says = f"is kept in the ledger under {place.key}, and deleted from the queue: {broker.resend(place.key)}"
        says += " with --seal" if policy.seal is not None else ""
    else:
        says = f"stays in the queue, because {place.key} cannot keep it: {why}"
    logger().warning("queue %s: message %s %s", broker.name, delivery.id, says)
    return why is None
