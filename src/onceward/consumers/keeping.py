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
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

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
    from onceward.batch.batch import Batch
    from onceward.batch.outcomes import BatchOutcome
    from onceward.core.policy import Seal

M = TypeVar("M")
_TRIES: Final = 10  # writes; others may win each of them


class Place(NamedTuple):
    """Where a message is kept."""

    key: str  # in the ledger
    reason: str | None = None  # why the message gets its own record; None if it goes into the parked record of its key


class KeepOutcome(Enum):
    """The result of keeping a message."""

    KEPT = "the ledger keeps it"
    LET_GO = "its key is not parked any more"
    ANOTHER = "its record keeps another message"
    NO_ROOM = "the ledger has no room for it"
    NOT_SEALED = "its seal failed"


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
) -> Steps[KeepOutcome]:
    """Keep a message as ``text``; ``alike`` tells whether two texts are of one message.

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
                return KeepOutcome.ANOTHER
            write = protocol.keeping(record, there or text, place.reason)
        if write is None:
            break
        verb = partial(store.insert, write) if record is None else partial(store.swap, write, record)
        reply = yield from retry_transient(verb, boottime, patience(boottime))
        if reply.won and reply.record is not None:
            if reply.record.result == write.result:
                return KeepOutcome.KEPT
            # The store wrote an error about its missing room over the reason. Write the reason again.
            corrected = protocol.keeping(reply.record, None, write.error)
            if corrected is not None:
                verb = partial(store.swap, corrected, reply.record)
                yield from retry_transient(verb, boottime, patience(boottime))
            return KeepOutcome.NO_ROOM
    return KeepOutcome.LET_GO


class Keeper(Generic[M]):
    """Keeps the messages of a broker without dead letters. The policy of the batch's guard must have a ``max_attempts``."""

    def __init__(self, batch: "Batch", broker: Broker[M]) -> None:
        self._batch = batch
        self._broker = broker

    def place(self, outcome: "BatchOutcome", delivery: Delivery, receives: int) -> Place | None:
        """Return where to keep a message that was received ``receives`` times; None if it stays in the queue, or is done."""
        if outcome.status == "parked" and outcome.key is not None:
            return Place(outcome.key)
        limit = self._batch.guard.policy.max_attempts
        if outcome.status in {"malformed", "mismatch"} and limit is not None and receives >= limit:
            error = outcome.error
            why = outcome.status if error is None else noted(describe(error), self._batch.guard.policy)
            return Place(ledger_key(f"{self._batch.name}.{outcome.status}", delivery.id), why)
        return None

    async def keep(self, message: M, delivery: Delivery, place: Place) -> KeepOutcome:
        """Keep a message, and log the result.

        Raises:
            StoreError: as :func:`keeping`.
        """
        store, policy = self._batch.guard.store, self._batch.guard.policy
        text = self._broker.kept_text(message)

        def alike(there: str, _: str) -> bool:
            try:
                return self._broker.alike(opened_kept(place.key, there, policy.seal), text)
            except OncewardError:
                return False

        size, why = 0, ""
        try:
            sealed = text if policy.seal is None else sealing().sealed_whole(policy.seal, text)
        except NotReplayable as error:
            end, why = KeepOutcome.NOT_SEALED, str(error)
        else:
            end, size = KeepOutcome.NO_ROOM, len(sealed.encode())
            if policy.max_result is None or size <= policy.max_result:
                end = await drive_async(keeping(store, place, sealed, alike), store)
        if (says := self._says(end, place, size, why)) is not None:
            logger().warning("queue %s: message %s %s", self._broker.name, delivery.id, says)
        return end

    def _says(self, end: KeepOutcome, place: Place, size: int, why: str) -> str | None:
        resend, key = self._broker.resend(place.key), place.key
        sealed = " with --seal" if self._batch.guard.policy.seal is not None else ""
        stays = f"stays in the queue, which drops it in the end: {key} is parked, and"
        return {
            KeepOutcome.KEPT: f"is kept in the ledger under {key}, and deleted from the queue: {resend}{sealed}",
            KeepOutcome.ANOTHER: f"{stays} keeps another message: {resend}",
            KeepOutcome.NOT_SEALED: f"{stays} the message cannot be sealed: {why}",
            KeepOutcome.NO_ROOM: (
                f"{stays} the ledger has no room for the {size} bytes of the message. Give the queue a dead-letter queue, or the "
                "worker a max_result= of that, up to what the ledger takes"
            ),
        }.get(end)
