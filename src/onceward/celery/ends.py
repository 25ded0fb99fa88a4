"""How a delivery of a task ends that did not run: it comes again later, or becomes a dead letter.

Both publish the task once more, under its own id, before the worker acknowledges the message. So a crash between the two
leaves a duplicate, never a gap. On AMQP the publish waits for the broker's confirmation.
"""

import re
from collections.abc import Mapping
from functools import wraps
from inspect import signature
from math import ceil
from time import sleep
from typing import Final

from celery import Celery, Task
from celery.exceptions import Ignore, Reject, Retry
from kombu.entity import Queue
from kombu.pools import producers

from onceward.consumers.dead_letters import RECEIVES, dead_name, receives_in
from onceward.consumers.tasks import TaskEnd
from onceward.observe.logs import logger

_DELAY: Final = re.compile(r"^(?:[01]\.){28}")  # kombu's prefix of a routing key in native delayed delivery
_AMQP: Final = frozenset({"amqp", "amqps", "pyamqp", "librabbitmq", "confluentamqp"})  # transports of RabbitMQ
_EXCHANGE: Final = re.compile(r"^celery_delayed.*")  # the same for the exchange
_DEATH: Final = re.compile(r"x-(first-|last-)?death")
_REFUSED: Final = 1.0  # seconds: a task that the broker does not take must not come again in a hot loop
_DEAD_AGAIN: Final = 60.0  # seconds: a worker that reads dead letters must not meet the same one in a loop


class Rejected(Reject, Ignore):
    """A Reject that ``autoretry_for=(Exception,)`` does not retry: that lets only Ignore and Retry pass."""


class _RetryRefused(Reject, Retry):
    """The same for a retry. It is no Ignore, which would be the recorded outcome."""

    def __reduce__(self) -> tuple[type, tuple[str, bool]]:
        return type(self), (self.reason, self.requeue)  # Retry's own would not get from the child to its worker


def come_again(task: Task, end: TaskEnd) -> Exception:
    """Publish the task once more, for later, and return what ends this delivery. To Celery it is no retry."""
    logger().info("%s[%s] comes again in %.1f s: %s", task.name, task.request.id, end.seconds, end.error)
    receives = {RECEIVES: str(_receives(task) + 1)}
    queue = queue_of(task)
    # Without a queue, native delayed delivery chooses that of the task's route, whatever queue the task came from.
    there = {"queue": queue} if queue in task.app.amqp.queues else {}
    return _published(task, end, receives, countdown=end.seconds, **there) or Ignore(str(end.error))


def dead_letter(task: Task, end: TaskEnd) -> Exception:
    """Reject the task. Without a dead-letter exchange, or if it is acknowledged already, first publish it to the dead-letter queue."""
    rejected = Rejected(str(end.error), requeue=False)
    queue = queue_of(task)
    if task.acks_late and has_dead_letters(task.app, queue):
        return rejected
    dead = queue if queue.endswith(dead_name("")) else dead_name(queue)
    headers = end.dead_headers(queue, _receives(task) + 1)
    away = _DEAD_AGAIN if dead == queue else None
    logger().warning("%s[%s] goes to %s: %s", task.name, task.request.id, dead, end.why)
    return _published(task, end, headers, queue=dead, countdown=away, expires=None) or rejected


def keep_refused_retries(task: Task) -> None:
    """Let a retry of Celery's that the broker does not take requeue its message. Celery would reject the message, and lose it.

    A retry after which the function goes on is refused.
    """
    retry = task.retry
    if hasattr(retry, "onceward_keeps"):
        return

    @wraps(retry)
    def retry_or_requeue(*args: object, **kwargs: object) -> object:
        if not signature(Task.retry).bind(task, *args, **kwargs).arguments.get("throw", True):  # not of an override
            raise TypeError(
                "self.retry(throw=False) lets the function go on and complete its key, so the retry would be a duplicate, and would not "
                "run. Call it without throw=False: it then ends the function"
            )
        try:
            return retry(*args, **kwargs)
        except Reject as rejected:
            logger().warning("%s[%s] could not be sent for its retry: %s", task.name, task.request.id, rejected.reason)
            sleep(_REFUSED)
            raise _RetryRefused(str(rejected.reason), requeue=True) from rejected

    vars(retry_or_requeue)["onceward_keeps"] = True  # others wrap it, too
    task.retry = retry_or_requeue


def queue_of(task: Task) -> str:
    """Return the name of the queue that this delivery came from."""
    delivery = task.request.delivery_info or {}
    routing_key = _DELAY.sub("", delivery.get("routing_key") or task.app.conf.task_default_queue)
    queues = task.app.amqp.queues
    if routing_key in queues:
        return routing_key
    exchange = _EXCHANGE.sub("", delivery.get("exchange") or "")
    return next((name for name, one in queues.items() if _is_bound(one, exchange, routing_key)), routing_key)


def _is_bound(queue: Queue, exchange: str, routing_key: str) -> bool:
    """Return whether messages of the exchange with this routing key come to the queue; any exchange if it is not known."""
    if exchange and exchange != queue.exchange.name:
        return False
    pattern = (
        re.escape(queue.routing_key or "").replace(r"\*", r"[^.]+").replace(r"\.\#", r"(\..+)?").replace(r"\#", ".*")
    )
    return bool(queue.exchange.type == "fanout" or re.fullmatch(pattern, routing_key))


def has_dead_letters(app: Celery, queue: str) -> bool:
    """Return whether the application declares the queue with a dead-letter exchange, and its broker has such: RabbitMQ."""
    declared = app.amqp.queues.get(queue)
    arguments = (declared and declared.queue_arguments) or {}
    return "x-dead-letter-exchange" in arguments and app.connection_for_write().transport_cls in _AMQP


def _receives(task: Task) -> int:
    return receives_in(_own_headers(task).get(RECEIVES))


def _own_headers(task: Task) -> dict[str, str]:
    """Return the message's headers without those of RabbitMQ, which takes a message that comes back with them for a cycle."""
    return {name: text for name, text in (task.request.headers or {}).items() if not _DEATH.match(name)}


def _published(
    task: Task, end: TaskEnd, headers: Mapping[str, str], *, countdown: float | None, **options: object
) -> Exception | None:
    """Publish the task once more, and wait until the broker has it. If that fails, return what requeues this delivery."""
    request = task.request
    if countdown is not None:
        options["countdown"] = max(1, ceil(countdown))  # native delayed delivery takes whole seconds
    try:
        again = task.signature_from_request(
            request, retries=request.retries, headers={**_own_headers(task), **headers}, **options
        )
        connection = task.app.connection_for_write(transport_options={"confirm_publish": True})
        with producers[connection].acquire(block=True) as producer:
            again.apply_async(producer=producer, add_to_parent=False)
    except Exception as trouble:  # each transport has errors of its own
        logger().warning("%s[%s] could not be published again: %s", task.name, request.id, trouble)
        sleep(_REFUSED)
        return Rejected(f"{end.error}; and then: {trouble}", requeue=True)
    return None
