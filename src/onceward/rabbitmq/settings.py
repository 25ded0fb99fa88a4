"""The settings of a queue, read over AMQP, and what is unsafe about them.

AMQP cannot list the arguments of a queue. But RabbitMQ refuses a declaration that differs from the queue, and its refusal names
one difference. So this asks again with each difference, until the declaration is accepted, which changes nothing. Policies are not
among the arguments: only the management API shows them.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from aio_pika.abc import AbstractConnection
from aio_pika.exceptions import ChannelClosed, ChannelNotFoundEntity, ChannelPreconditionFailed
from pamqp.common import FieldTable

from onceward.consumers.broker import BrokerError
from onceward.consumers.retry_queues import dead_arguments, version_of
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


class QueueArguments(NamedTuple):
    """What a queue was declared with.

    Attributes:
        durable: whether it survives a restart.
        auto_delete: whether it is deleted with its last consumer.
        arguments: such as ``x-message-ttl``; None if this user may not declare the queue, which they are read by.
    """

    durable: bool
    auto_delete: bool
    arguments: Mapping[str, object] | None

    @property
    def kind(self) -> str:
        """Quorum, classic or stream."""
        return str((self.arguments or {}).get("x-queue-type", "classic"))

    @property
    def dead_letters(self) -> bool:
        """Whether what the queue drops goes to an exchange."""
        return "x-dead-letter-exchange" in (self.arguments or {})

    def losses(self) -> Iterator[tuple[str, str]]:
        """Yield each setting that loses messages, and its fix."""
        arguments = self.arguments or {}
        if not self.durable:
            yield "it is not durable, so a restart deletes it with its messages", "declare it with durable=True"
        if self.auto_delete:
            yield "it is deleted with its last consumer (auto-delete)", "declare it with auto_delete=False"
        if "x-expires" in arguments:
            yield "it is deleted when it is not used (x-expires)", "declare it without x-expires"
        if self.kind == "stream":
            yield "it is a stream, from which nothing is removed", "use a quorum queue"
        if self.dead_letters:
            return
        if "x-message-ttl" in arguments:
            yield (
                "it drops messages that wait too long (x-message-ttl)",
                "give it a dead-letter exchange, or no x-message-ttl",
            )
        if (
            not {"x-max-length", "x-max-length-bytes"}.isdisjoint(arguments)
            and arguments.get("x-overflow", "drop-head") == "drop-head"
        ):
            yield "it drops its oldest messages when it is full (x-max-length)", "set x-overflow to reject-publish"
        if int(str(arguments.get("x-delivery-limit", -1))) >= 0:
            yield (
                "it drops messages that come back too often (x-delivery-limit), as they do when workers are killed",
                "give it a dead-letter exchange, or x-delivery-limit -1",
            )

    def risks(self, version: tuple[int, ...]) -> Iterator[str]:
        """Yield what can lose messages, but does not have to."""
        if self.arguments is None:
            yield (
                "this user may not declare it, so its settings cannot be read: nobody checks whether it drops messages. Permit "
                "`configure` on it, or look yourself (docs/reference/brokers.md)"
            )
            return
        if self.kind == "classic":
            yield "it is a classic queue, which one node holds: a lost node loses its messages. Use a quorum queue"
        elif version >= (4,) and "x-delivery-limit" not in self.arguments and not self.dead_letters:
            yield (
                "RabbitMQ 4 drops messages that came back 20 times, unless a policy says otherwise. Each killed worker brings one "
                "back. Declare the queue with x-delivery-limit -1, or with a dead-letter exchange"
            )


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
