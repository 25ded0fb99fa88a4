"""RabbitMQ: a message that is not done waits in a retry queue, from which it goes back by itself."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

from aio_pika.exceptions import AMQPError
from aiormq.abc import DeliveredMessage
from faststream.exceptions import SetupError
from faststream.rabbit import QueueType, RabbitQueue

from onceward.consumers.dead_letters import OURS, RECEIVES
from onceward.consumers.delivery import Delivery
from onceward.consumers.retry_queues import (
    InTurn,
    QueueArguments,
    copy_of,
    dead_arguments,
    header_of,
    length_for,
    lengths,
    receives_of,
    retry_arguments,
    retry_queue,
    version_of,
)
from onceward.faststream.settlement import Settlement, Settling
from onceward.observe.logs import logger

_PATIENCE: Final = 10.0  # seconds for RabbitMQ to confirm
_TURNS: Final[WeakKeyDictionary[Any, InTurn]] = WeakKeyDictionary()  # of each broker, whose messages share a channel
_HELD: Final = 60.0  # seconds that a message is held at most, if no retry queue takes it


class RabbitSettlement(Settlement):
    """Settles the messages of a queue."""

    def __init__(self, subscriber: Any, options: Settling) -> None:
        super().__init__(subscriber, options)
        self._lengths = lengths(self.backoff.longest)
        self._version: tuple[int, ...] = ()  # of the server

    def source_name(self) -> str:
        return f"{self.config.prefix}{self.subscriber.queue.name}"

    def losing(self, beside: Sequence[Any]) -> str | None:
        queue = self.subscriber.queue
        declared = QueueArguments(queue.durable, queue.auto_delete or queue.exclusive, queue.arguments or {})
        if losses := "; ".join(declared.losses()):
            return losses
        if not self._is_confirmed():
            return (
                "a retry that RabbitMQ does not confirm can be lost: leave publisher_confirms=False out of the broker's "
                "default_channel"
            )
        if self.order:
            return "RabbitMQ keeps no order when a message waits in a retry queue: leave order=True out"
        return None

    def _is_confirmed(self) -> bool:
        """Return whether RabbitMQ confirms what the broker publishes."""
        manager = self.config.channel_manager
        channel = getattr(manager, "_ChannelManagerImpl__default_channel", None)  # as above
        return channel is None or channel.publisher_confirms

    async def prepare(self) -> None:
        """Declare the queues of retries and dead letters: a lone node that is killed soon after that may lose what they take."""
        self._version = version_of(await self._broker.connect())
        for queue in (*map(self._retry_queue, self._lengths), self._dead_queue):
            try:
                await self._broker.declare_queue(queue)
            except AMQPError as error:
                raise SetupError(f"queue {queue.name} cannot be declared: {error}") from error

    def deliveries(self, message: Any) -> list[Delivery]:
        raw = message.raw_message
        header = partial(header_of, raw.headers)
        return [Delivery("rabbitmq", raw, message.message_id, body=raw.body, header=header, destination=self.source)]

    async def receives(self, delivery: Delivery) -> int:
        return receives_of(delivery.raw)

    async def acknowledge(self, delivery: Delivery) -> None:
        if not delivery.raw.processed:
            await delivery.raw.ack()

    async def give_back(self, delivery: Delivery, seconds: float, receives: int) -> None:
        if delivery.raw.processed:
            return
        length = length_for(seconds, self._lengths)
        queue = self._retry_queue(length)
        try:
            await self._publish(queue, delivery, {RECEIVES: str(receives)}, expiration=min(seconds, length))
        except Exception as error:
            logger().warning(
                "%s: message %s waits here, because %s does not take it: %r",
                self.source,
                delivery.id,
                queue.name,
                error,
            )
            await asyncio.sleep(min(seconds, _HELD))
            await delivery.raw.nack(requeue=True)
        else:
            await delivery.raw.ack()

    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> None:
        await self._publish(self._dead_queue, delivery, headers, without=OURS)

    @property
    def _dead_queue(self) -> RabbitQueue:
        arguments: Any = dead_arguments(self._version)
        return RabbitQueue(self.dead, queue_type=QueueType.QUORUM, arguments=arguments)

    def _retry_queue(self, length: int) -> RabbitQueue:
        arguments: Any = retry_arguments(self.source, length)
        return RabbitQueue(retry_queue(self.source, length), queue_type=QueueType.QUORUM, arguments=arguments)

    @property
    def _broker(self) -> Any:
        return self.config.extra_context["broker"]

    async def _publish(
        self,
        queue: RabbitQueue,
        delivery: Delivery,
        headers: Mapping[str, str],
        expiration: float | None = None,
        without: Collection[str] = (),
    ) -> None:
        """Send a copy to a queue, which is declared; return when RabbitMQ has stored it."""
        raw, broker = delivery.raw, self._broker
        await broker.declare_queue(queue)  # FastStream remembers that it is
        copy = copy_of(raw, headers, expiration, without)
        turns = _TURNS.setdefault(broker, InTurn())
        async with turns.of(raw.message_id or ""):
            answer = await broker.publish(copy, queue=queue.name, timeout=_PATIENCE)
        if isinstance(answer, DeliveredMessage):
            raise ConnectionError(f"RabbitMQ returned the message: there is no queue {queue.name}")
