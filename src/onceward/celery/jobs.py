"""Tasks of Celery that are queued once: ``once.enqueue(task, ...)``."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from onceward.celery.target import CeleryTarget
from onceward.outbox.targets import OutboxMessage
from onceward.outbox.tasks import TaskJobs


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
        self._task = task

    def _publish(self, args: Sequence[object], kwargs: Mapping[str, object], **options: object) -> None:
        self._task.apply_async(args, kwargs, **options)
