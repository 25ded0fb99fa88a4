"""A worker for one queue of RabbitMQ."""

from collections.abc import Callable
from typing import Final, Unpack

from aio_pika.abc import AbstractIncomingMessage

from onceward.consumers.worker import PAUSES, Worker, WorkerOptions
from onceward.once import Once, check_once
from onceward.rabbitmq.broker import RabbitBroker
from onceward.rabbitmq.connection import place

AHEAD: Final = 2  # messages in this process for each handler that may run


class RabbitWorker(Worker[AbstractIncomingMessage]):
    """Handles the messages of a queue, each once: ``RabbitWorker(once, "orders", charge, key="order.id").run()``.

    A message is acknowledged when its effect is recorded, also by an earlier handler. A failed message waits in a retry queue, for
    a pause that doubles with each receive. A busy key's message waits there until the other worker's lease ends. Messages that
    cannot be handled (a parked key, another input under the same key, a malformed message) go to the dead-letter queue, with the
    reason in their headers. A copy is stored, and confirmed, before its message is acknowledged.

    A queue whose settings lose messages is refused at the start. The retry queues and the dead-letter queue are declared then.

    Args:
        once: the ledger and the defaults of the policy.
        queue: its name. It must be there: declare it as a durable quorum queue.
        handler: takes the payload. A plain function is called in threads.
        url: of the broker, as ``amqp://user:password@host:5672/vhost`` or ``amqps://...``; by default that of AMQP_URL, else the one
            on this machine.
        dead: the name of the dead-letter queue; True is ``QUEUE.onceward-dead``. With False the ledger keeps such messages.
        prefetch: how many messages RabbitMQ hands this worker at a time; None is twice ``concurrency``.
        wait: seconds after which an empty queue is looked at again, up to 60.
        **options: those of :class:`onceward.consumers.worker.Worker`; the key is by default the header ``Idempotency-Key`` or the
            message id. ``max_attempts`` is 10 by default.

    Raises:
        ValueError, TypeError: an argument is not valid, or does not fit the handler.
    """

    def __init__(
        self,
        once: Once,
        queue: str,
        handler: Callable[..., object],
        *,
        url: str | None = None,
        dead: str | bool = True,
        prefetch: int | None = None,
        wait: float = 2.0,
        **options: Unpack[WorkerOptions],
    ) -> None:
        check_once(once, "RabbitWorker({}, 'orders', charge)")
        longest = options.get("backoff", PAUSES)[1]
        held = AHEAD * options.get("concurrency", 10) if prefetch is None else prefetch
        broker = RabbitBroker(place(url), queue, dead=dead, prefetch=held, wait=wait, longest=longest)
        super().__init__(once, broker, handler, **options)
