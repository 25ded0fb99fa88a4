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
    from onceward.batch.outcomes import BatchOutcome
    from onceward.keys.reading import KeySource
    from onceward.once import Once


class SqsWorker(Worker[Message]):
    """Handles the messages of a queue, each once: ``SqsWorker(once, "orders", charge, key="order.id").run()``.

    A message is deleted when its effect is recorded, also by a handler before this one. One that failed comes again after a
    pause that doubles with each receive; one whose key is busy comes again when the other worker's lease ends. What cannot
    be handled (a parked key, another input under the same key, a malformed message) the queue's redrive policy takes to the
    dead-letter queue. Without one it is kept in the ledger, in the parked record, and deleted after that: ``onceward unpark
    KEY --to QUEUE`` sends it again. In a FIFO queue the messages of a group are handled in order, and what comes after one
    that failed waits for it.

    The visibility of all messages that are held is extended until they are done, up to the 12 hours that SQS allows.

    Args:
        once: the ledger and the defaults of the policy.
        queue: its URL, ARN or name; or a Queue.
        handler: takes the payload, and is given exactly what :func:`onceward.aws.on_sqs` would give it. A plain function is
            called in threads.
        key: see :class:`onceward.aws.events.handler.Settings`; by default the message's own id.
        fingerprint: the same.
        name: the namespace of the keys; by default the handler's module and qualified name.
        unwrap: as for :func:`onceward.aws.on_sqs`.
        concurrency: how many handlers run at a time.
        visibility: whole seconds after which a message that a vanished worker held is received by another; 1 to 43,200; None
            is the queue's own.
        wait: seconds that a poll waits for a message, up to 20; a stop waits for it, too.
        backoff: seconds for which a message stays away after it failed, at first and at most.
        grace: seconds that running handlers have after a stop before they are interrupted, which leaves their keys claimed;
            None is as long as they take.
        on_outcome: called with each message's outcome once it is recorded, in the event loop; for metrics.
        **options: see :class:`onceward.Policy`. ``on_busy`` and ``cache`` mean nothing here. ``max_attempts`` is 10 when it
            is not given and the queue has no redrive policy; a malformed message, or one with another input under its key,
            is kept after so many receives.

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
        on_outcome: "Callable[[BatchOutcome], None] | None" = None,
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
            on_outcome=on_outcome,
            **options,
        )
