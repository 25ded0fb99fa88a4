"""The settings of a queue, read over AMQP, and what is unsafe about them.

AMQP cannot list the arguments of a queue. But RabbitMQ refuses a declaration that differs from the queue, and its refusal names
one difference. So this asks again with each difference, until the declaration is accepted, which changes nothing. Policies are not
among the arguments: only the management API shows them.
"""

import re
from typing import Final

from aio_pika.abc import AbstractConnection
from aio_pika.exceptions import ChannelClosed, ChannelNotFoundEntity, ChannelPreconditionFailed
from pamqp.common import FieldTable

from onceward.consumers.broker import BrokerError
from onceward.consumers.retry_queues import QueueArguments, dead_arguments, version_of
from onceward.observe.logs import logger
from onceward.rabbitmq.connection import refused


async def prepare_dead(connection: AbstractConnection, queue: str) -> None:
    """Look at the queue of dead letters, and declare it if it is missing.

    Raises:
        ValueError: it is there, and its settings lose messages.
        BrokerError: it can be neither read nor declared.
    """
    version = version_of(connection)
    try:
        arguments = await read_arguments(connection, queue)
    except BrokerError as error:
        if not error.gone:
            raise
        await declare(connection, queue, dead_arguments(version))
        return
    if losses := [f"{what}: {fix}" for what, fix in arguments.losses()]:
        raise ValueError(f"queue {queue} loses dead letters: {'; '.join(losses)}. Or give another dead=")
    for text in arguments.risks(version):
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
    except ChannelClosed as error:  # this user may not declare it
        try:
            await count_ready(connection, queue)
        except BrokerError as missing:
            raise BrokerError(f"{missing}, with {arguments}") from error


_DIFFERS: Final = re.compile(
    r"inequivalent arg '(?P<name>[^']+)' .*?current is (?:the value )?'(?P<value>.*?)'(?: of type '(?P<type>\w+)')?$"
)
_MOST: Final = 30  # arguments; RabbitMQ knows fewer


async def read_arguments(connection: AbstractConnection, queue: str) -> QueueArguments:
    """Return what a queue was declared with.

    Raises:
        BrokerError: there is no such queue (``gone``), or it belongs to another connection.
    """
    durable, auto_delete = True, False
    arguments: FieldTable = {}
    await count_ready(connection, queue)  # a declaration would make a queue that is not there
    for _ in range(_MOST):
        try:
            async with connection.channel() as channel:
                await channel.declare_queue(queue, durable=durable, auto_delete=auto_delete, arguments=arguments)
        except ChannelPreconditionFailed as error:
            match = _DIFFERS.search(str(error.args[0] if error.args else error))
            if match is None:
                break
            name, value = match["name"], match["value"]
            if name == "durable":
                durable = value == "true"
            elif name == "auto_delete":
                auto_delete = value == "true"
            else:
                arguments[name] = _typed(value, match["type"])
        except ChannelClosed:  # 403: it may not be declared
            break
        else:
            return QueueArguments(durable, auto_delete, arguments)
    return QueueArguments(durable, auto_delete, None)


async def count_ready(connection: AbstractConnection, queue: str) -> int:
    """Return how many messages wait in a queue.

    Raises:
        BrokerError: there is no such queue (``gone``), or it belongs to another connection.
    """
    try:
        async with connection.channel() as channel:
            declared = await channel.declare_queue(queue, passive=True)
            return declared.declaration_result.message_count or 0
    except ChannelNotFoundEntity as error:
        if "down or inaccessible" in str(error):  # the node of a classic queue is away, and comes back
            raise refused(f"queue {queue}", error) from error
        raise BrokerError(f"there is no queue {queue}: declare it, as a durable quorum queue", gone=True) from error
    except ChannelClosed as error:
        raise refused(f"queue {queue}", error) from error


def _typed(value: str, kind: str | None) -> str | int:
    if kind == "bool":
        return value == "true"
    return value if kind in {None, "longstr"} else int(value)
