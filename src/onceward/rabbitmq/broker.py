"""RabbitMQ as a broker: one queue, one connection at a time, and the retry and dead-letter queues beside it."""

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple, Unpack, cast

from aio_pika import Message
from aio_pika.abc import AbstractConnection, AbstractIncomingMessage
from aiormq import Channel

from onceward.consumers.broker import Broker, BrokerError, bounded, check_settings
from onceward.consumers.callers import Tasks, comes, unless_set
from onceward.consumers.dead_letters import KEY_HEADER, OURS, RECEIVES, dead_name
from onceward.consumers.delivery import Delivery
from onceward.consumers.retry_queues import (
    NO_ID,
    copy_of,
    header_of,
    length_for,
    lengths,
    receives_of,
    retry_arguments,
    retry_queue,
    version_of,
)
from onceward.consumers.worker import PAUSES, Worker, WorkerOptions
from onceward.core.policy import Policy
from onceward.observe.logs import logger
from onceward.once import Once
from onceward.rabbitmq.connection import (
    TROUBLE,
    Publisher,
    closed,
    connect,
    count_ready,
    declare,
    place,
    prepare_dead,
    read_arguments,
    refused,
)


class RabbitConsumer(NamedTuple):
    """One connection that messages come from, and the channel and the tag of its consumer."""

    connection: AbstractConnection
    channel: Channel
    tag: str

    @property
    def ended(self) -> bool:
        """Whether nothing more comes from it: the channel is closed, or the broker has cancelled the consumer."""
        return self.connection.is_closed or self.channel.is_closed or self.tag not in self.channel.consumers


AHEAD: Final = 2  # messages in this process for each handler that may run


class RabbitWorker(Worker[AbstractIncomingMessage]):
    """Handles the messages of a queue, each once: ``RabbitWorker(once, "orders", charge, key="order.id").run()``.

    A message is acknowledged when this handler, or an earlier one, has recorded its effect. A failed message waits in a
    retry queue, for a pause that doubles with each receive. A busy key's message waits there until the other worker's
    lease ends. Messages that cannot be handled (parked, mismatch, malformed) go to the dead-letter queue, with the
    reason in their headers. A copy is stored, and confirmed, before its message is acknowledged.

    A queue whose settings lose messages is refused at the start. The retry queues and the dead-letter queue are declared then.

    Args:
        once: the ledger and the defaults of the policy.
        queue: its name. It must be there: declare it as a durable quorum queue.
        handler: takes the payload. A plain function is called in threads.
        url: of the broker, as ``amqp://user:password@host:5672/vhost`` or ``amqps://...``; by default that of AMQP_URL, else the one
            on this machine.
        dead: the name of the dead-letter queue; by default ``QUEUE.onceward-dead``.
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
        dead: str | None = None,
        prefetch: int | None = None,
        wait: float = 2.0,
        **options: Unpack[WorkerOptions],
    ) -> None:
        longest = options.get("backoff", PAUSES)[1]
        held = AHEAD * options.get("concurrency", 10) if prefetch is None else prefetch
        broker = RabbitBroker(
            place(url), queue, dead=dead or dead_name(queue), prefetch=held, wait=wait, longest=longest
        )
        super().__init__(once, broker, handler, **options)


_ANSWERED: Final = 10.0  # seconds for an answer of the broker
LONGEST: Final = 4_000_000.0  # seconds; RabbitMQ takes 2**32 - 1 milliseconds


class RabbitBroker(Broker[AbstractIncomingMessage]):
    """One queue, for one run of a worker.

    The arguments are those of :class:`onceward.rabbitmq.RabbitWorker`; ``longest`` is the longest pause of its ``backoff``.

    Raises:
        ValueError: an option is not valid.
    """

    most = 100
    dead_letters = "publish"
    client_errors = TROUBLE

    def __init__(self, url: str, queue: str, *, dead: str, prefetch: int, wait: float, longest: float) -> None:
        if not (type(prefetch) is int and 1 <= prefetch <= 65_535):
            raise ValueError(f"prefetch={prefetch!r}: give 1 to 65535 messages")
        if not 0 < wait <= 60:
            raise ValueError(f"wait={wait!r}: give up to 60 seconds")
        if longest > LONGEST:
            raise ValueError(f"backoff=: the longest pause is {longest:g} s: give at most {LONGEST:g}")
        if dead == queue:
            raise ValueError(f"{queue} is both the queue and that of its dead letters: give another dead=")
        self.name, self._dead = queue, dead
        self._url, self._prefetch, self._wait = url, prefetch, wait
        self._lengths = lengths(longest)
        self._consumer: RabbitConsumer | None = None
        # In an alarm, RabbitMQ reads nothing from a connection that publishes: no acknowledgements, either.
        self._copies: Publisher | None = None
        self._beginning = asyncio.Lock()
        self._connecting = asyncio.Lock()
        self._came = asyncio.Event()
        self._waiting: deque[AbstractIncomingMessage] = deque()
        self._stopped = asyncio.Event()
        self._tasks = Tasks(*TROUBLE)  # what a closed channel does not acknowledge comes again

    async def open(self, policy: Policy) -> Policy:
        connection = await connect(self._url)
        try:
            arguments = await read_arguments(connection, self.name)
            check_settings(f"queue {self.name}", arguments.losses(), arguments.risks(version_of(connection)))
            for length in self._lengths:
                await declare(connection, retry_queue(self.name, length), {**retry_arguments(self.name, length)})
            await prepare_dead(connection, self._dead)
        finally:
            await closed(connection)
        return bounded(policy)

    async def receive(self, count: int) -> list[AbstractIncomingMessage]:
        while not self._stopped.is_set():
            consumer = self._consumer
            if consumer is None or consumer.ended:
                consumer = await unless_set(self._stopped, self._consuming())
            if consumer is None:
                break
            if not (
                self._waiting
                or await comes(self._came, self._wait)
                or await unless_set(self._stopped, self._ready(consumer))
            ):
                break
            if self._waiting:
                return [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]
        return []

    async def _ready(self, consumer: RabbitConsumer) -> bool:
        """Return whether messages wait that have not come; they may wait for one that is held.

        Raises:
            BrokerError: the queue was deleted.
            TimeoutError: the connection is gone without a word.
        """
        async with asyncio.timeout(_ANSWERED):
            return await count_ready(consumer.connection, self.name) > 0

    async def _consuming(self) -> RabbitConsumer:
        """Return the consumer that messages come from; begin another if it has ended."""
        async with self._beginning:
            if self._consumer is None or self._consumer.ended:
                await self._end_consumer()
                connection = await connect(self._url)
                try:
                    await count_ready(connection, self.name)  # says whether it was deleted
                    channel = await connection.channel(publisher_confirms=False)
                    channel.close_callbacks.add(lambda *_: self._came.set())
                    await channel.set_qos(prefetch_count=self._prefetch)
                    tag = await (await channel.get_queue(self.name, ensure=False)).consume(self._arrived)
                    own = cast("Channel", await channel.get_underlay_channel())
                except BaseException:
                    await closed(connection)
                    raise
                self._consumer = RabbitConsumer(connection, own, tag)
            return self._consumer

    async def _end_consumer(self) -> None:
        consumer, self._consumer = self._consumer, None
        self._waiting.clear()  # they come again
        if consumer is not None:
            await closed(consumer.connection)

    async def _arrived(self, message: AbstractIncomingMessage) -> None:
        if self._stopped.is_set():  # it was on its way when this worker stopped
            self.leave(message)
            return
        self._waiting.append(message)
        self._came.set()

    def explained(self, error: Exception) -> BrokerError:
        return refused(f"queue {self.name}", error)

    def delivery(self, message: AbstractIncomingMessage) -> Delivery:
        return message_delivery(message, self.name)

    def receives(self, message: AbstractIncomingMessage) -> int:
        return receives_of(message)

    def acknowledge(self, message: AbstractIncomingMessage) -> None:
        self._tasks.begin(message.ack())

    def give_back(self, message: AbstractIncomingMessage, seconds: float = 0.0) -> None:
        self._tasks.begin(self._retry(message, seconds) if seconds > 0 else message.nack(requeue=True))

    def leave(self, message: AbstractIncomingMessage) -> None:
        self._tasks.begin(message.nack(requeue=True))

    async def _retry(self, message: AbstractIncomingMessage, seconds: float) -> None:
        """Store a copy in a retry queue, and only then acknowledge the message."""
        queue = retry_queue(self.name, length_for(seconds, self._lengths))
        copy = copy_of(message, {RECEIVES: str(receives_of(message))}, seconds)
        try:
            await self._publish(copy, queue)
        except Exception as error:
            logger().warning("message %s goes back to its queue at once: %s", message.message_id, error)
            await asyncio.sleep(1.0)  # no faster than that
            await message.nack(requeue=True)
        else:
            await message.ack()

    async def dead_letter(self, message: AbstractIncomingMessage, headers: Mapping[str, str]) -> None:
        await self._publish(copy_of(message, headers, without=OURS), self._dead)

    async def _publish(self, message: Message, queue: str) -> None:
        async with self._connecting:
            if self._copies is None or self._copies.closed:
                await self._end_copies()
                self._copies = await Publisher.to(self._url)
            copies = self._copies
        await copies.send(message, queue)

    async def _end_copies(self) -> None:
        copies, self._copies = self._copies, None
        if copies is not None:
            await copies.close()

    def stop(self) -> None:
        self._stopped.set()
        self._came.set()
        if self._consumer is not None:
            consumer = self._consumer
            self._tasks.begin(
                consumer.channel.basic_cancel(consumer.tag)
            )  # before what is given back, which would come here again
        while self._waiting:
            self._tasks.begin(self._waiting.popleft().nack(requeue=True))

    async def close(self) -> None:
        await self._tasks.end(_ANSWERED)
        await asyncio.gather(self._end_consumer(), self._end_copies())


def message_delivery(message: AbstractIncomingMessage, queue: str) -> Delivery:
    """Return a message as a delivery. Its default key is the header ``Idempotency-Key``, or the message id."""
    body, header, own = message.body, partial(header_of, message.headers), message.message_id
    if not own or own.startswith(NO_ID):
        own = None  # its sender gave none
    name = own or f"sha256:{hashlib.sha256(body).hexdigest()}"
    return Delivery("rabbitmq", message, name, header(KEY_HEADER) or own, None, body, header, queue)
