"""SQS as a broker: one queue, the visibility of its messages, and their deletes."""

import base64
import logging
import shlex
from collections.abc import Callable
from typing import Any, Final, Unpack

from onceward.aws.events.sqs import SOURCE, Unwrap, check_unwrap, message_delivery
from onceward.aws.sqs.message import ENTRIES, Message, alike, kept_text
from onceward.aws.sqs.queue import LONGEST_HOLD, LONGEST_WAIT, Queue, QueueSettings
from onceward.aws.sqs.visibility import Deletes, Visibility
from onceward.consumers.broker import Broker, bounded, tell_outlived
from onceward.consumers.callers import Callers
from onceward.consumers.delivery import Delivery
from onceward.consumers.worker import PAUSES, Worker, WorkerOptions
from onceward.core.policy import Policy
from onceward.once import Once, check_once


class SqsWorker(Worker[Message]):
    """Handles the messages of a queue, each once: ``SqsWorker(once, "orders", charge, key="order.id").run()``.

    A message is deleted when this handler, or an earlier one, has recorded its effect. A failed message comes again
    after a pause that doubles with each receive. A busy key's message comes again when the other worker's lease ends.
    The queue's redrive policy moves messages that cannot be handled (parked, mismatch, malformed) to the dead-letter
    queue. Without such a queue, the parked record in the ledger keeps the message, which is then deleted:
    ``onceward unpark KEY --to QUEUE`` sends it again. A FIFO queue's group is handled in order, and waits for a failed message.

    The visibility of held messages is extended until they are done, up to the 12 hours that SQS allows.

    Args:
        once: the ledger and the defaults of the policy.
        queue: its URL, ARN or name; or a Queue.
        handler: takes the payload, as with :func:`onceward.aws.on_sqs`. A plain function is called in threads.
        unwrap: as for :func:`onceward.aws.on_sqs`.
        visibility: whole seconds until another worker receives a vanished worker's message; 1 to 43,200; None is the queue's
            own.
        wait: seconds that a poll waits for a message, up to 20; a stop waits for it, too.
        **options: those of :class:`onceward.consumers.worker.Worker`; the key is the message's id by default. Without a redrive
            policy, ``max_attempts`` is 10 by default, and the ledger keeps such messages.

    Raises:
        ValueError, TypeError: an argument is not valid, or does not fit the handler.
    """

    def __init__(
        self,
        once: Once,
        queue: Queue | str,
        handler: Callable[..., object],
        *,
        unwrap: Unwrap | None = None,
        visibility: int | None = None,
        wait: float = LONGEST_WAIT,
        **options: Unpack[WorkerOptions],
    ) -> None:
        check_once(once, "SqsWorker({}, 'orders', charge)")
        self.queue = Queue(queue) if isinstance(queue, str) else queue
        longest = options.get("backoff", PAUSES)[1]
        broker = SqsBroker(self.queue, visibility=visibility, wait=wait, longest=longest, unwrap=unwrap)
        super().__init__(once, broker, handler, **options)


_log: Final = logging.getLogger("onceward")


class SqsBroker(Broker[Message]):
    """One queue, for one run of a worker.

    The arguments are those of :class:`onceward.aws.SqsWorker`; ``longest`` is the longest pause of its ``backoff``.

    Raises:
        ValueError: an option is not valid.
    """

    most = ENTRIES
    _settings: QueueSettings
    _visibility: Visibility
    _deletes: Deletes

    def __init__(
        self, queue: Queue, *, visibility: int | None, wait: float, longest: float, unwrap: Unwrap | None
    ) -> None:
        if visibility is not None and not (type(visibility) is int and 1 <= visibility <= LONGEST_HOLD):
            raise ValueError(f"visibility={visibility!r}: give 1 to 43200 whole seconds, or None for the queue's own")
        if not 0 <= wait <= LONGEST_WAIT:
            raise ValueError(f"wait={wait!r}: give 0 to 20 seconds")
        if longest > LONGEST_HOLD:
            raise ValueError(f"backoff=: the longest pause is {longest:g} s: give at most 43200")
        check_unwrap(unwrap)
        self.name, self.ordered = queue.name, queue.fifo
        self._queue, self._unwrap = queue, unwrap
        self._callers = Callers()
        self._seconds, self._wait = visibility, wait

    async def open(self, policy: Policy) -> Policy:
        settings = QueueSettings.read(await self._queue.attributes_async())
        seconds = settings.visibility if self._seconds is None else self._seconds
        if seconds == 0:
            raise ValueError(
                f"queue {self.name}: its visibility timeout is 0, so others would receive messages that are being handled: give "
                "visibility=, in seconds"
            )
        self.dead_letters = "broker"
        if settings.dead_letters is None:
            self.dead_letters, policy = "ledger", bounded(policy)
            _log.info(
                "queue %s: it has no dead-letter queue, so the ledger keeps messages that are parked after %s attempts",
                self.name,
                policy.max_attempts,
            )
        tell_outlived(f"queue {self.name}", settings.retention, policy)
        self._settings, self._visible_in = settings, seconds
        self._visibility = Visibility(self._queue, seconds)
        self._deletes = Deletes(self._queue, self._visibility.release)
        self._visibility.start()
        return policy

    async def receive(self, count: int) -> list[Message]:
        def poll() -> list[Message]:
            messages = self._queue.receive(count, self._wait, self._visible_in)
            self._visibility.hold(messages)
            return messages

        return await self._callers.call(poll)

    def delivery(self, message: Message) -> Delivery:
        return message_delivery(record_of(message, self._settings.arn), unwrap=self._unwrap, fifo=self.ordered)

    def receives(self, message: Message) -> int:
        return message.receive_count

    def acknowledge(self, message: Message) -> None:
        self._deletes.add(message.receipt)

    def give_back(self, message: Message, seconds: float = 0.0) -> None:
        self._visibility.give_back(message.receipt, seconds)

    def leave(self, message: Message) -> None:
        self._visibility.release(message.receipt)

    def kept_text(self, message: Message) -> str:
        return kept_text(message, self._settings.arn)

    def alike(self, one: str, other: str) -> bool:
        return alike(one, other)

    def resend(self, key: str) -> str:
        return f"`onceward unpark {shlex.quote(key)} --to {self.name}` sends it again"

    async def close(self) -> None:
        await self._deletes.close()
        await self._callers.call(self._visibility.close)
        self._callers.close()


def record_of(message: Message, queue: str) -> dict[str, Any]:
    """Return a message as Lambda gives it to a function (Lambda Developer Guide, "Using Lambda with Amazon SQS").

    ``queue`` is the ARN of its queue.
    """
    attributes: dict[str, dict[str, object]] = {}
    for name, one in message.user_attributes.items():
        data = one.base64
        item = {"stringValue": one.value} if data is None else {"binaryValue": base64.b64encode(data).decode()}
        attributes[name] = {**item, "stringListValues": [], "binaryListValues": [], "dataType": one.type}
    return {
        "messageId": message.id,
        "receiptHandle": message.receipt,
        "body": message.body,
        "attributes": dict(message.attributes),
        "messageAttributes": attributes,
        "eventSource": SOURCE,
        "eventSourceARN": queue,
        "awsRegion": (queue.split(":") + [""] * 4)[3],
    }
