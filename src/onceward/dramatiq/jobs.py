"""Messages of Dramatiq that are enqueued once: ``once.enqueue(actor, ...)``."""

from collections.abc import Mapping
from typing import Any

from onceward.dramatiq.exactly import check_confirms, own_function
from onceward.outbox.tasks import TaskJobs


class DramatiqJobs(TaskJobs):
    """The messages of an actor. See :class:`onceward.outbox.tasks.TaskJobs`."""

    def __init__(self, task: Any) -> None:
        check_confirms(task.broker, task.actor_name)
        self.function = own_function(task)
        self._actor = task

    def put(self, key: str, arguments: dict[str, object], headers: Mapping[str, str]) -> None:
        """Enqueue a message. A second one of the same id is delivered, too."""
        message = self._actor.message_with_options(kwargs=arguments, **headers)
        self._actor.broker.enqueue(message.copy(message_id=key))
