"""Tasks of Taskiq that are sent once: ``once.enqueue_async(task, ...)``."""

from asyncio import AbstractEventLoop
from collections.abc import Mapping
from inspect import Signature, get_annotations
from typing import Any, Final, get_args
from weakref import WeakKeyDictionary

from taskiq import AsyncBroker
from taskiq_dependencies.dependency import Dependency

from onceward.outbox.loop_thread import awaited, own_loop
from onceward.outbox.targets import SENT_WITHIN
from onceward.outbox.tasks import HOMES, TaskJobs
from onceward.taskiq.settings import check_broker

_STARTED: Final[WeakKeyDictionary[AsyncBroker, AbstractEventLoop]] = WeakKeyDictionary()  # in a loop of onceward's own


class TaskiqJobs(TaskJobs):
    """The messages of a task. See :class:`onceward.outbox.tasks.TaskJobs`."""

    broker: AsyncBroker

    def __init__(self, task: Any) -> None:
        check_broker(task.broker, task.task_name)
        self.function, self.broker, self._task = task.original_func, task.broker, task

    def signature(self) -> Signature:
        """Return the parameters that Taskiq does not fill in itself."""
        own = super().signature()
        try:
            hints = get_annotations(self.function, eval_str=True)
        except Exception:  # names that are there for type checkers only
            hints = {}
        told = [one for one in own.parameters.values() if not _is_dependency(one.default, hints.get(one.name))]
        return own.replace(parameters=told)

    def settle(self, *, awaited: bool) -> None:
        """As there. A caller that is no coroutine uses onceward's own loop, unless another one is known."""
        super().settle(awaited=awaited)
        if not awaited and self.home() is None:
            HOMES[self.broker] = own_loop()

    def put(self, key: str, arguments: dict[str, object], headers: Mapping[str, str]) -> None:
        """Send the task. A second message of the same id is delivered, too."""
        loop = self.home() or (own_loop() if TaskJobs.alone else None)
        if loop is None:
            raise RuntimeError("this process does not know the event loop of its broker: another process sends it")
        if loop is own_loop() and _STARTED.get(self.broker) is not loop:
            awaited(self.broker.startup(), SENT_WITHIN)
            _STARTED[self.broker] = loop
        kicker = self._task.kicker().with_task_id(key).with_labels(**headers)
        awaited(kicker.kiq(**arguments), SENT_WITHIN, loop)


def _is_dependency(default: object, hint: object) -> bool:
    return any(isinstance(one, Dependency) for one in (default, *get_args(hint)))
