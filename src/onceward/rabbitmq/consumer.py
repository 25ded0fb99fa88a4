"""One connection to RabbitMQ that the messages of a queue come from."""

from collections.abc import Awaitable, Callable
from typing import cast

from aio_pika.abc import AbstractConnection, AbstractIncomingMessage
from aiormq import Channel

from onceward.rabbitmq.connection import TROUBLE, Publisher, closed, connect, refused
from onceward.rabbitmq.settings import count_ready


class RabbitConsumer:
    """One connection that messages come from, and its channel for copies."""

    def __init__(self, connection: AbstractConnection, publisher: Publisher, channel: Channel, tag: str) -> None:
        self.connection, self.publisher = connection, publisher
        self._channel, self._tag = channel, tag

    @classmethod
    async def begin(
        cls,
        url: str,
        queue: str,
        prefetch: int,
        arrived: Callable[[AbstractIncomingMessage], Awaitable[None]],
        broken: Callable[[], None],
    ) -> "RabbitConsumer":
        """Connect and consume; ``broken`` is called when the channel is closed.

        Raises:
            BrokerError: the broker is away, or there is no such queue.
        """
        connection = await connect(url)
        try:
            await count_ready(connection, queue)  # says whether it was deleted
            publisher = await Publisher.on(connection)
            channel = await connection.channel(publisher_confirms=False)
            channel.close_callbacks.add(lambda *_: broken())
            await channel.set_qos(prefetch_count=prefetch)
            tag = await (await channel.get_queue(queue, ensure=False)).consume(arrived)
            return cls(connection, publisher, cast("Channel", await channel.get_underlay_channel()), tag)
        except BaseException as error:
            await closed(connection)
            if isinstance(error, TROUBLE):
                raise refused(f"queue {queue}", error) from error
            raise

    @property
    def ended(self) -> bool:
        """Whether nothing more comes from it: the channel is closed, or the broker has cancelled the consumer."""
        return self.connection.is_closed or self._channel.is_closed or self._tag not in self._channel.consumers

    async def cancel(self) -> None:
        """Let no more messages come."""
        await self._channel.basic_cancel(self._tag)
