"""SQS queues as targets, standard and FIFO."""

from collections.abc import Iterable, Sequence

from onceward.aws.sqs.message import ENTRIES, REFUSED, Outgoing, chunks, entry_of
from onceward.aws.sqs.queue import Queue, QueueError, keyed
from onceward.aws.targets.sending import TIMEOUT, Answers, Batches, options_of
from onceward.errors import OncewardError
from onceward.outbox.targets import MessageNotSent, MessageRefused, OutboxMessage


class SqsTarget(Batches):
    """A queue. A message's key is its attribute ``onceward-key``, and its deduplication id in a FIFO queue.

    Its headers are further attributes. SQS takes ten, and onceward itself writes three, so a handler can give seven. In a FIFO queue, a repetition that comes within five minutes is dropped
    by the queue itself.

    Args:
        address: ``sqs:`` and the queue's name, URL or ARN; then ``?region=REGION`` if it has no region and is not in that of the
            environment.

    Raises:
        ValueError: the address is not valid.
    """

    batch = ENTRIES

    def __init__(self, address: str) -> None:
        place, options = options_of(address, {"region"})
        self._queue = Queue(place, region=options.get("region"), timeout=TIMEOUT)

    def check(self, message: OutboxMessage) -> None:
        """Raise ValueError or TypeError if the queue can never take the message."""
        self._outgoing(message)

    def close(self) -> None:
        """Close idle connections."""
        self._queue.close()

    def _outgoing(self, message: OutboxMessage) -> Outgoing:
        return keyed(self._queue, message.body, message.key, message.headers, message.group, message.delay)

    def divided(self, messages: Sequence[OutboxMessage]) -> Iterable[Sequence[int]]:
        """See :class:`Batches`."""
        return chunks([entry_of(self._outgoing(message)) for message in messages])

    def answers(self, messages: Sequence[OutboxMessage], left: float) -> Answers:
        """See :class:`Batches`."""
        try:
            answers = self._queue.send_many([self._outgoing(message) for message in messages], within=left)
        except OncewardError as error:  # the queue's URL could not be asked for
            return MessageNotSent(str(error))
        told = [_told(answer) if isinstance(answer, QueueError) else None for answer in answers]
        first = told[0]
        is_one = isinstance(answers[0], QueueError) and all(answer is answers[0] for answer in answers)
        return first if is_one and first is not None else list(told)


def _told(error: QueueError) -> MessageRefused | MessageNotSent:
    told = MessageRefused(str(error)) if error.code in REFUSED else MessageNotSent(str(error))
    told.__cause__ = error
    return told
