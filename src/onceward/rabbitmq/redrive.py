"""Sends the messages of a dead-letter queue to their queue again, after the cause is fixed, and lets their keys run.

For each message its key is made ready, then a copy is stored and confirmed, and then the message is acknowledged. A kill in between
leaves the message, or the message and its copy. Both have one key, so that the second one replays.
"""

from collections.abc import AsyncGenerator, Callable
from typing import Unpack

from aio_pika.abc import AbstractIncomingMessage

from onceward.consumers.dead_letters import FROM, LEDGER_KEY, OURS, STATUS, dead_name
from onceward.consumers.redriving import DeadLetter, LetterRedrive, RedriveOptions
from onceward.consumers.retry_queues import copy_of, header_of
from onceward.once import Once
from onceward.rabbitmq.connection import TROUBLE, Publisher, closed, connect, count_ready, place, refused


class RabbitRedrive(LetterRedrive):
    """One move of the messages of a dead-letter queue. You can stop or kill it at any time, and run it again.

    Args:
        once: the ledger of the queue's workers.
        queue: the queue that its workers read. The messages go there.
        url: of the broker, as for :class:`onceward.rabbitmq.RabbitWorker`.
        dead: the dead-letter queue; None is ``QUEUE.onceward-dead``.
        **options: see :class:`onceward.consumers.redriving.RedriveOptions`.

    Raises:
        ValueError: an argument is not valid.
    """

    def __init__(
        self,
        once: Once,
        queue: str,
        *,
        url: str | None = None,
        dead: str | None = None,
        **options: Unpack[RedriveOptions],
    ) -> None:
        super().__init__(once, **options)
        self.queue, self.dead = queue, dead or dead_name(queue)
        if self.queue == self.dead:
            raise ValueError(f"{queue} is both the queue and its dead-letter queue: give another dead=")
        self._url = place(url)

    async def run_async(self, stopped: Callable[[], bool] = lambda: False) -> AsyncGenerator[DeadLetter, None]:
        """As :meth:`run`, for a coroutine; the ledger's requests block."""
        connection = await connect(self._url)
        try:
            await count_ready(connection, self.queue)
            ready = await count_ready(connection, self.dead)
            publisher, channel = await Publisher.on(connection), await connection.channel()
            while ready > 0 and self._limit != 0 and not stopped():
                message = await (await channel.get_queue(self.dead, ensure=False)).get(fail=False)
                if message is None:
                    break
                ready -= 1
                yield await self._judged(message, publisher)  # what stays is held, so that it does not come again
        except TROUBLE as error:
            raise refused(f"queue {self.dead}", error) from error
        finally:
            await closed(connection)  # what is held goes back

    async def _judged(self, message: AbstractIncomingMessage, publisher: Publisher) -> DeadLetter:
        """Decide about a letter, and send it on."""
        key, was = header_of(message.headers, LEDGER_KEY), header_of(message.headers, STATUS)
        place = message.message_id or "(no id)"
        if (came := header_of(message.headers, FROM)) not in {None, self.queue}:
            return DeadLetter("refused", place, f"it comes from queue {came}", key, was)
        outcome = self.judged(place, key, was)
        if outcome.outcome in {"moved", "dropped"}:
            self._limit = None if self._limit is None else self._limit - 1
            if not self._dry_run:
                if outcome.outcome == "moved":
                    await publisher.send(copy_of(message, {}, without=OURS), self.queue)
                await message.ack()
        return outcome
