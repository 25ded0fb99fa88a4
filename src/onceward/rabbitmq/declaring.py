"""Declares the queues beside a queue: its retry queues and its dead-letter queue."""

from typing import Final

from aio_pika.abc import AbstractConnection
from aio_pika.exceptions import ChannelClosed, ChannelNotFoundEntity, ChannelPreconditionFailed
from pamqp.common import FieldTable

from onceward.rabbitmq.connection import RabbitError, refused

DEAD_ARGUMENTS: Final[FieldTable] = {"x-queue-type": "quorum"}


async def declare(connection: AbstractConnection, queue: str, arguments: FieldTable) -> None:
    """Declare a durable queue, unless it is there.

    Raises:
        RabbitError: it is there with other arguments; or it is not, and this user may not declare it.
    """
    try:
        async with connection.channel() as channel:
            await channel.declare_queue(queue, durable=True, arguments=arguments)
    except ChannelPreconditionFailed as error:
        raise RabbitError(
            f"queue {queue} is there with other arguments: delete it when it is empty, or declare it with {arguments}. RabbitMQ "
            f"says: {error.args[0]}"
        ) from error
    except ChannelClosed as error:
        try:
            async with connection.channel() as channel:
                await channel.declare_queue(queue, passive=True)
        except ChannelNotFoundEntity:
            raise RabbitError(
                f"there is no queue {queue}, and this user may not declare it: declare it durable, with {arguments}"
            ) from error
        except ChannelClosed as again:
            raise refused(f"queue {queue}", again) from again
