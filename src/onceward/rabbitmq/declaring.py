"""Declares the queues beside a queue: its retry queues and its dead-letter queue."""

from aio_pika.abc import AbstractConnection
from aio_pika.exceptions import ChannelClosed, ChannelNotFoundEntity, ChannelPreconditionFailed
from pamqp.common import FieldTable

from onceward.consumers.broker import BrokerError
from onceward.consumers.retry_queues import dead_arguments, version_of
from onceward.observe.logs import logger
from onceward.rabbitmq.connection import refused
from onceward.rabbitmq.settings import read_arguments


async def prepare_dead(connection: AbstractConnection, queue: str) -> None:
    """Look at the queue of dead letters, and declare it if it is missing.

    Raises:
        ValueError: it is there, and its settings lose messages.
        BrokerError: it can be neither read nor declared.
    """
    version = version_of(connection)
    try:
        found = await read_arguments(connection, queue)
    except BrokerError as error:
        if not error.gone:
            raise
        await declare(connection, queue, dead_arguments(version))
        return
    if losses := [f"{what}: {fix}" for what, fix in found.losses()]:
        raise ValueError(f"queue {queue} loses dead letters: {'; '.join(losses)}. Or give another dead=")
    for text in found.risks(version):
        logger().warning("queue %s: %s", queue, text)


async def declare(connection: AbstractConnection, queue: str, arguments: FieldTable) -> None:
    """Declare a durable queue, unless it is there.

    Raises:
        BrokerError: it is there with other arguments; or it is not, and this user may not declare it.
    """
    try:
        async with connection.channel() as channel:
            await channel.declare_queue(queue, durable=True, arguments=arguments)
    except ChannelPreconditionFailed as error:
        raise BrokerError(
            f"queue {queue} is there with other arguments: delete it when it is empty, or declare it with {arguments}. RabbitMQ "
            f"says: {error.args[0]}"
        ) from error
    except ChannelClosed as error:
        try:
            async with connection.channel() as channel:
                await channel.declare_queue(queue, passive=True)
        except ChannelNotFoundEntity:
            raise BrokerError(
                f"there is no queue {queue}, and this user may not declare it: declare it durable, with {arguments}"
            ) from error
        except ChannelClosed as again:
            raise refused(f"queue {queue}", again) from again
