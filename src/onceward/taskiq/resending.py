"""Sends a message of Taskiq once more: for later, or to its dead letters. Only then the worker acknowledges it."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from taskiq import InMemoryBroker
from taskiq.kicker import AsyncKicker

from onceward.batch.outcomes import BatchOutcome
from onceward.consumers.backoff import Backoff
from onceward.consumers.dead_letters import dead_headers, dead_name
from onceward.errors import Mismatch, Parked
from onceward.observe.logs import logger

if TYPE_CHECKING:
    from taskiq import AsyncBroker, ScheduleSource, TaskiqMessage

    from onceward.consumers.tasks import TaskEnd

LONGEST: Final = 60.0  # seconds that a message waits in a worker, which holds it meanwhile
_BROKER: Final = Backoff(0.5, 15.0)  # between two tries to send
_MILLISECONDS: Final = 1000.0


async def send_again(
    broker: "AsyncBroker", message: "TaskiqMessage", end: "TaskEnd", later: "ScheduleSource | None"
) -> None:
    """Send the message once more, unchanged, so that it comes when its key may be free."""
    kicker = _kicker(broker, message, {})
    if later is not None:
        when = datetime.now(UTC) + timedelta(seconds=end.seconds)
        logger().info("%s %s comes again in %.1f s: %s", message.task_name, message.task_id, end.seconds, end.error)
        await _sent(lambda: kicker.schedule_by_time(later, when, *message.args, **message.kwargs))
        return
    idle = getattr(broker, "idle_timeout", None)  # after which RedisStreamBroker gives the message to another worker
    held = LONGEST if idle is None else min(LONGEST, idle / _MILLISECONDS / 2)
    timeout = message.labels.get("timeout")  # of the task; it would count this pause as a failure
    with suppress(asyncio.CancelledError):  # the receiver ends, so another one gets the message now
        await asyncio.sleep(min(end.seconds, held if timeout is None else float(timeout) / 2))
    logger().info("%s %s comes again: %s", message.task_name, message.task_id, end.error)
    await _sent(lambda: kicker.kiq(*message.args, **message.kwargs))


def has_dead_letters(broker: "AsyncBroker", message: "TaskiqMessage") -> bool:
    """Return whether there is a place for a dead letter: its broker has queues with names, or keeps no messages at all."""
    return isinstance(_queue_of(broker, message), str) or isinstance(broker, InMemoryBroker)


async def dead_letter(broker: "AsyncBroker", message: "TaskiqMessage", end: "TaskEnd") -> None:
    """Send the message to the dead letters."""
    queue = _queue_of(broker, message)
    logger().warning("%s %s becomes a dead letter: %s", message.task_name, message.task_id, end.error)
    if not isinstance(queue, str):
        return
    status = (
        "parked" if isinstance(end.error, Parked) else "mismatch" if isinstance(end.error, Mismatch) else "malformed"
    )
    outcome = BatchOutcome(status, message, getattr(end.error, "key", None), None, end.error)  # type: ignore[arg-type]
    tries = int(message.labels.get("_retries", 0)) + 1
    labels = {**dead_headers(outcome, queue, tries), "queue_name": dead_name(queue)}
    kicker = _kicker(broker, message, labels)
    await _sent(lambda: kicker.kiq(*message.args, **message.kwargs))


def _queue_of(broker: "AsyncBroker", message: "TaskiqMessage") -> object:
    return message.labels.get("queue_name") or getattr(broker, "queue_name", None)


def _kicker(broker: "AsyncBroker", message: "TaskiqMessage", labels: dict[str, str]) -> "AsyncKicker[Any, Any]":
    kicker: AsyncKicker[Any, Any] = AsyncKicker(message.task_name, broker, {**message.labels, **labels})
    return kicker.with_task_id(message.task_id)


async def _sent(send: Callable[[], Awaitable[object]]) -> None:
    """Send until the broker has it. Meanwhile the message is not acknowledged, so a crash loses nothing."""
    tries = 0
    while True:
        try:
            await send()
        except Exception as error:  # each broker has errors of its own
            tries += 1
            logger().warning("a message could not be sent again yet: %s", error)
            await asyncio.sleep(_BROKER.seconds(tries))
        else:
            return
