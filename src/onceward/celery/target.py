"""Celery's tasks as targets of the outbox: a task leaves if the record that sends it is there, and only then."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec
from celery import Celery
from celery.app.task import Context
from kombu.messaging import Producer
from kombu.pools import producers

from onceward.consumers.dead_letters import KEY_HEADER
from onceward.core.arguments import check_type
from onceward.core.clock import boottime
from onceward.core.urls import shown_url
from onceward.outbox.targets import MessageNotSent, OutboxMessage, answers_of, not_sent, refuse_options
from onceward.outbox.tasks import TaskJobs

_ANSWERED: Final = 4.0  # seconds; with the time to connect less than SENT_WITHIN
_BEGIN_WITHIN: Final = 1.0  # seconds; a task of a batch that comes later is sent later, before its send lease can end
_TRANSPORT: Final = {
    "confirm_publish": True,
    "max_retries": 1,
    "connect_retries_timeout": 2.0,
    "read_timeout": _ANSWERED,  # the last three: of AMQP, and of Redis
    "write_timeout": _ANSWERED,
    "socket_timeout": _ANSWERED,
}
_LATE: Final = "the tasks before it took too long"
# The id, the name and the rest of a task are headers of its message, and one of the sender would replace them.
# RabbitMQ takes no text as CC and BCC.
_OWN: Final = frozenset({"BCC", "CC", "argsrepr", "kwargsrepr", "lang", "task", *dir(Context)})


class CeleryTarget:
    """A task of an application: ``celery:NAME``, or ``celery:NAME?queue=QUEUE``.

    The message is the task's arguments: an object by their names, a list by their places. Its key is the task's id, so the task
    takes effect once with no more than ``@exactly(once)``.

    Args:
        app: the application.
        address: as above. Its scheme is the one that the target is registered under.

    Raises:
        ValueError: the address is not valid.
    """

    batch = 20

    def __init__(self, app: Celery, address: str) -> None:
        check_type("CeleryTarget(app, address)", address, str, "celery:NAME")
        self._name, _, query = address.partition(":")[2].partition("?")
        self._options = dict(parse_qsl(query, keep_blank_values=True))
        if not self._name or self._options.keys() - {"queue"} or "" in self._options.values():
            raise ValueError(f"{shown_url(address)!r} is not a task: write celery:NAME or celery:NAME?queue=QUEUE")
        self._app = app
        self._publish = partial(app.send_task, self._name)

    def check(self, message: OutboxMessage) -> None:
        """Raise ValueError if the message is not the arguments of a task."""
        refuse_options(f"{self._name}: Celery", message, "group")
        if own := sorted(_OWN & message.headers.keys()):
            raise ValueError(f"{self._name}: the header {own[0]} is one of the queue's own; give yours another name")
        _arguments(self._name, message)

    def send(self, messages: Sequence[OutboxMessage]) -> list[Exception | None]:
        """Send tasks. On AMQP, wait until the broker has them."""
        return answers_of(self, messages, self._send, partial(not_sent, self._name))

    def _send(self, messages: Sequence[OutboxMessage]) -> list[Exception | None]:
        end = boottime() + _BEGIN_WITHIN
        connection = self._app.connection_for_write(connect_timeout=2.0, transport_options=_TRANSPORT)
        with producers[connection].acquire(block=True, timeout=_ANSWERED) as producer:
            return [
                MessageNotSent(f"{self._name}: {_LATE}")
                if place > 0 and boottime() > end
                else self._sent(producer, message)
                for place, message in enumerate(messages)
            ]

    def close(self) -> None:
        """Do nothing: the connections belong to the process's pool."""

    def _sent(self, producer: Producer, message: OutboxMessage) -> Exception | None:
        args, kwargs = _arguments(self._name, message)
        try:
            self._publish(
                args,
                kwargs,
                task_id=message.key,
                countdown=message.delay,
                headers={**message.headers, KEY_HEADER: message.key},
                producer=producer,
                add_to_parent=False,
                confirm_timeout=_ANSWERED,
                retry_policy={"max_retries": 1, "interval_start": 0.1},
                **self._options,
            )
        except Exception as error:
            return error
        return None


def _arguments(name: str, message: OutboxMessage) -> tuple[list[object], dict[str, object]]:
    arguments: object = None
    try:
        arguments = msgspec.json.decode(message.body)
    except msgspec.DecodeError:
        pass  # a text is no arguments
    if isinstance(arguments, dict):
        return [], arguments
    if isinstance(arguments, list):
        return arguments, {}
    raise ValueError(f"{name}: give the task's arguments, as in {{'order': 42}} or [42]")


class CeleryJobs(TaskJobs):
    """The messages of a task, with the options of its decorator. See :class:`onceward.outbox.tasks.TaskJobs`."""

    def __init__(self, task: Any) -> None:
        self.function = task.run
        self._target = _TaskTarget(task)

    def put(self, key: str, arguments: dict[str, object], headers: Mapping[str, str]) -> None:
        """Publish the task. A second message of the same id is delivered, too."""
        (error,) = self._target.send([OutboxMessage(key, msgspec.json.encode(arguments).decode(), headers)])
        if error is not None:
            raise error


class _TaskTarget(CeleryTarget):
    """Publishes with the task's own options, such as its queue."""

    def __init__(self, task: Any) -> None:
        super().__init__(task.app, f"celery:{task.name}")
        self._publish = task.apply_async
