"""A worker for one SQS queue."""

from collections.abc import Callable
from typing import Unpack

from onceward.aws.events.sqs import Unwrap
from onceward.aws.sqs.broker import SqsBroker
from onceward.aws.sqs.message import Message
from onceward.aws.sqs.queue import Queue
from onceward.aws.sqs.queue_steps import LONGEST_WAIT
from onceward.consumers.worker import PAUSES, Worker, WorkerOptions
from onceward.once import Once, check_once


class SqsWorker(Worker[Message]):
    """Handles the messages of a queue, each once: ``SqsWorker(once, "orders", charge, key="order.id").run()``.

    A message is deleted when its effect is recorded, also by an earlier handler. A failed message comes again after a pause that
    doubles with each receive. A busy key's message comes again when the other worker's lease ends. The queue's redrive policy
    moves messages that cannot be handled (a parked key, another input under the same key, a malformed message) to the
    dead-letter queue. Without such a queue, the parked record in the ledger keeps the message, which is then deleted:
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
            policy, ``max_attempts`` is 10 by default; a malformed message, or one with another input under its key, is kept
            after that many receives.

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
