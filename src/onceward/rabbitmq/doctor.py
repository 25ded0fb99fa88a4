"""Which settings of a queue lose messages, or bring them too often."""

import asyncio
from collections.abc import Iterator

from aio_pika.abc import AbstractConnection

from onceward.consumers.broker import ATTEMPTS, BrokerError
from onceward.consumers.dead_letters import dead_name
from onceward.consumers.retry_queues import version_of
from onceward.core.policy import Policy
from onceward.rabbitmq.connection import TROUBLE, closed, connect, read_address, refused
from onceward.rabbitmq.settings import QueueArguments, count_ready, read_arguments
from onceward.stores.inspection import Finding

_DOCS = "docs/reference/brokers.md"
_RABBITMQ = "RabbitMQ, Quorum Queues"


def rabbitmq_findings(address: str, policy: Policy) -> list[Finding]:
    """Return what is unsafe about the queue at an address, as ``amqp:orders``, and what is not. It changes nothing.

    Raises:
        ValueError: the address is not valid, or names no queue.
    """
    place = read_address(address)
    if place.exchange:
        raise ValueError(f"{address}: give a queue, as amqp:orders; doctor reads no exchanges")
    return asyncio.run(_look(place.url, place.key, policy))


async def _look(url: str, queue: str, policy: Policy) -> list[Finding]:
    try:
        connection = await connect(url)
    except BrokerError as error:
        return [Finding("unknown", "queue", f"{queue} cannot be read: {error}", "", "look at AMQP_URL")]
    try:
        arguments = await read_arguments(connection, queue)
        findings = [
            *_queue(queue, arguments, version_of(connection)),
            *_dead(queue, await _count(connection, dead_name(queue))),
        ]
    except TROUBLE as error:
        return [Finding("unknown", "queue", f"{queue} cannot be read: {refused('the queue', error)}")]
    except BrokerError as error:
        return [
            Finding("error" if error.gone else "unknown", "queue", str(error), "nothing can be received", "declare it")
        ]
    finally:
        await closed(connection)
    return [*findings, *_attempts(policy)]


def _queue(queue: str, arguments: QueueArguments, version: tuple[int, ...]) -> Iterator[Finding]:
    losses, risks = list(arguments.losses()), list(arguments.risks(version))
    for what, fix in losses:
        yield Finding("error", "queue", f"{queue}: {what}", "messages are lost", fix, _DOCS)
    for text in risks:
        yield Finding(
            "unknown" if arguments.arguments is None else "warning", "queue", f"{queue}: {text}", "", "", _RABBITMQ
        )
    if not losses and not risks:
        yield Finding("ok", "queue", f"{queue} is a durable {arguments.kind} queue, and its arguments lose no messages")
    says = "policies and consumer_timeout cannot be read over AMQP"
    why = "a policy can set a TTL, a length or a delivery limit, too"
    yield Finding("skipped", "policies", says, why, "look at rabbitmqctl list_policies", _DOCS)


def _dead(queue: str, count: int | None) -> Iterator[Finding]:
    if count:
        fix = f"fix the cause, then onceward redrive amqp:{queue}"
        yield Finding(
            "warning", "dead letters", f"{dead_name(queue)} has {count} message(s)", "nobody handles them", fix
        )
    elif count == 0:
        yield Finding("ok", "dead letters", f"{dead_name(queue)} is empty")


def _attempts(policy: Policy) -> Iterator[Finding]:
    if policy.max_attempts is None:
        yield Finding("ok", "max_attempts", f"none is given, so the worker parks a key after {ATTEMPTS} calls")


async def _count(connection: AbstractConnection, queue: str) -> int | None:
    """Return how many messages wait in a queue; None if there is no such queue."""
    try:
        return await count_ready(connection, queue)
    except BrokerError:
        return None
