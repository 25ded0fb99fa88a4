"""A worker for one SQS queue."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Unpack

from onceward.aws.events.sqs import Unwrap
from onceward.aws.sqs.broker import SqsBroker
from onceward.aws.sqs.message import Message
from onceward.aws.sqs.queue import Queue
from onceward.aws.sqs.queue_steps import LONGEST_WAIT
from onceward.consumers.worker import Worker
from onceward.core.policy import Options
from onceward.once import check_once

if TYPE_CHECKING:
    from onceward.keys.reading import KeySource
    from onceward.once import Once


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
        key: see :class:`onceward.aws.events.handler.Settings`; by default the message's own id.
        fingerprint: the same.
        name: the namespace of the keys; by default the handler's module and qualified name.
        unwrap: as for :func:`onceward.aws.on_sqs`.
        concurrency: how many handlers run at a time.
        visibility: whole seconds until another worker receives a vanished worker's message; 1 to 43,200; None is the queue's
            own.
        wait: seconds that a poll waits for a message, up to 20; a stop waits for it, too.
        backoff: the first and the longest pause after a failure, in seconds.
        grace: seconds after a stop before running handlers are interrupted, which leaves their keys claimed; None waits
            until they end.
        **options: see :class:`onceward.Policy`. ``on_busy`` and ``cache`` have no effect here. Without a redrive policy,
            ``max_attempts`` is 10 by default; a malformed message, or one with another input under its key, is kept after
            that many receives.

    Raises:
        ValueError, TypeError: an argument is not valid, or does not fit the handler.
    """

    def __init__(
        self,
        once: "Once",
        queue: Queue | str,
        handler: Callable[..., object],
        *,
        key: "KeySource | None" = None,
        fingerprint: "KeySource | bool | None" = None,
        name: str | None = None,
        unwrap: Unwrap | None = None,
        concurrency: int = 10,
        visibility: int | None = None,
        wait: float = LONGEST_WAIT,
        backoff: tuple[float, float] = (1.0, 900.0),
        grace: float | None = None,
        **options: Unpack[Options],
    ) -> None:
        check_once(once, "SqsWorker({}, 'orders', charge)")
        self.queue = Queue(queue) if isinstance(queue, str) else queue
        super().__init__(
            once,
            SqsBroker(self.queue, visibility=visibility, wait=wait, longest=backoff[1], unwrap=unwrap),
            handler,
            key=key,
            fingerprint=fingerprint,
            name=name,
            concurrency=concurrency,
            backoff=backoff,
            grace=grace,
            **options,
        )
