"""Connections to RabbitMQ, publishing that the broker confirms, and the settings of queues."""

import asyncio
import os
import re
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection
from aio_pika.exceptions import (
    CONNECTION_EXCEPTIONS,
    ChannelClosed,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    PublishError,
)
from pamqp.common import FieldTable
from yarl import URL

from onceward.consumers.broker import BrokerError, check_settings
from onceward.consumers.retry_queues import InTurn, QueueArguments, dead_arguments, version_of
from onceward.core.urls import encoded_url, has_login, shown_url

_FORMS = "amqp:orders, amqp://host/vhost?queue=orders or amqp://host/vhost?exchange=shop&key=order.paid"


class RabbitPlace(NamedTuple):
    """A queue, or an exchange with a routing key, of one broker."""

    url: str  # with the password
    exchange: str
    key: str

    @property
    def shown(self) -> str:
        """It, without the password."""
        what = f"exchange {self.exchange}, routing key {self.key}" if self.exchange else f"queue {self.key}"
        return f"{what} at {urlsplit(self.url).hostname}"


def read_address(address: str) -> RabbitPlace:
    """Return the place at an address. User and password come from AMQP_URL, and so does the broker if the address names none.

    Raises:
        ValueError: the address is not valid, or has a password.
    """
    if has_login(address):  # first: what urlsplit raises can quote a password
        raise ValueError("amqp: the ledger would hold the password of this address: leave it out, and set AMQP_URL")
    parts = urlsplit(address)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    queue = options.pop("queue", "") or ("" if parts.netloc else unquote(parts.path))
    exchange, key = options.pop("exchange", ""), options.pop("key", "")
    if options or bool(queue) is bool(exchange) or (queue and key) or parts.fragment:
        raise ValueError(f"{shown_url(address)!r}: give {_FORMS}")
    broker = place(None)
    if not parts.netloc:
        return RabbitPlace(broker, exchange, queue or key)
    known_parts = urlsplit(broker)
    user, at, _ = known_parts.netloc.rpartition("@")
    url = urlunsplit((parts.scheme, f"{user}{at}{parts.netloc}", parts.path or "/", known_parts.query, ""))
    return RabbitPlace(url, exchange, queue or key)


# What aio-pika raises when the broker is away, or closes a channel or a connection.
TROUBLE: Final = (*CONNECTION_EXCEPTIONS, TimeoutError)
LOCAL: Final = "amqp://guest:guest@127.0.0.1/"
_TIMEOUT: Final = 30.0  # seconds for a connection or a confirm
PATIENCE: Final = 5.0  # seconds for what need not end well


def refused(what: str, error: BaseException) -> BrokerError:
    """Return the error for what the broker said or did, without credentials."""
    text = error.args[0] if error.args and isinstance(error.args[0], str) else str(error)
    return BrokerError(f"RabbitMQ, {what}: {text or type(error).__name__}")


def place(url: str | None) -> str:
    """Return the URL of the broker: this one, or that of AMQP_URL, or the one on this machine.

    Raises:
        ValueError: it is no URL of RabbitMQ.
    """
    address = url or os.environ.get("AMQP_URL") or LOCAL
    if not address.startswith(("amqp://", "amqps://")):
        raise ValueError("url=: give amqp://user:password@host:5672/vhost, or amqps://... for TLS")
    return encoded_url(address)


async def connect(url: str) -> AbstractConnection:
    """Return a connection that does not reconnect by itself.

    Raises:
        BrokerError: there is none.
    """
    connection = aio_pika.Connection(URL(url), client_properties={"connection_name": "onceward"})
    try:
        await connection.connect(timeout=_TIMEOUT)
    except BaseException as error:
        await connection.close()  # aio-pika would do so when it is collected, in any thread
        if isinstance(error, TROUBLE):
            failed = refused("connecting", error)
            raise BrokerError(f"{failed}. Is it running there, and is AMQP_URL right?") from error
        raise
    return connection


async def closed(connection: AbstractConnection) -> None:
    """Close a connection; what its consumers hold comes again."""
    try:
        async with asyncio.timeout(PATIENCE):
            await connection.close()
    except TROUBLE:
        pass  # it is closed, or the broker hangs


class Publisher:
    """Publishes messages to queues, each confirmed. It belongs to one event loop."""

    def __init__(self, connection: AbstractConnection, channel: AbstractChannel) -> None:
        self._connection, self._channel = connection, channel
        self._turns = InTurn()

    @classmethod
    async def on(cls, connection: AbstractConnection) -> "Publisher":
        """Return one with a channel of its own."""
        return cls(connection, await connection.channel(publisher_confirms=True, on_return_raises=True))

    @classmethod
    async def to(cls, url: str) -> "Publisher":
        """Return one with a connection of its own; raises BrokerError if there is none."""
        connection = await connect(url)
        try:
            return await cls.on(connection)
        except BaseException:
            await closed(connection)
            raise

    async def close(self) -> None:
        """Close the connection."""
        await closed(self._connection)

    @property
    def closed(self) -> bool:
        """Whether the channel is closed, as by a missing exchange."""
        return self._channel.is_closed

    async def send(self, message: aio_pika.Message, routing_key: str, exchange: str = "") -> None:
        """Publish a message; return when the broker has stored it in each queue that it goes to.

        Raises:
            BrokerError: it may not be stored, or it goes to no queue.
        """
        there = f"exchange {exchange}, routing key {routing_key}" if exchange else f"queue {routing_key}"
        try:
            connection: Any = (await self._channel.get_underlay_channel()).connection
            async with asyncio.timeout(_TIMEOUT), self._turns.of(message.message_id or ""):
                await connection.ready()  # what is sent in an alarm may be stored after we gave it up
                to = (
                    await self._channel.get_exchange(exchange, ensure=False)
                    if exchange
                    else self._channel.default_exchange
                )
                await to.publish(message, routing_key, mandatory=True)
        except PublishError as error:
            raise BrokerError(f"RabbitMQ, {there}: no queue takes the message: declare or bind one") from error
        except TimeoutError as error:
            text = f"RabbitMQ, {there}: not confirmed within {_TIMEOUT:g} s"
            raise BrokerError(
                f"{text}. In an alarm, RabbitMQ takes no messages: see `rabbitmq-diagnostics alarms`"
            ) from error
        except (*TROUBLE, ValueError) as error:
            raise refused(there, error) from error


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
    check_settings(f"queue {queue}", arguments.losses(), arguments.risks(version), advice=". Or give another dead=")


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
    """Return what a queue was declared with, and what is unsafe about that.

    AMQP cannot list the arguments of a queue. But RabbitMQ refuses a declaration that differs from the queue, and its refusal names
    one difference. So this asks again with each difference, until the declaration is accepted, which changes nothing. Policies are
    not among the arguments: only the management API shows them.

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
