"""TaskJobs of Procrastinate that are deferred once: ``once.enqueue(task, ...)``."""

from collections.abc import Mapping
from concurrent.futures import CancelledError
from inspect import Signature
from typing import Any

from procrastinate import PsycopgConnector
from procrastinate.exceptions import AlreadyEnqueued, AppNotOpen

from onceward.outbox.loop_thread import awaited
from onceward.outbox.targets import SENT_WITHIN
from onceward.outbox.tasks import TaskJobs
from onceward.procrastinate.exactly import ENQUEUED


class ProcrastinateJobs(TaskJobs):
    """The jobs of a task. See :class:`onceward.outbox.tasks.TaskJobs`."""

    broker: Any

    def __init__(self, task: Any) -> None:
        if task.queueing_lock is not None:
            raise ValueError(
                f"{task.name}: once.enqueue gives each job a queueing lock of its own. Leave out the task's queueing_lock=, or defer the "
                "task without once.enqueue"
            )
        task.blueprint.will_configure_task()  # raises if the task belongs to no App yet
        self.function, self.broker = task.func, task.blueprint
        self._task, self._is_opened = task, False

    def signature(self) -> Signature:
        """Return the parameters without the job's context."""
        own = super().signature()
        return own.replace(parameters=list(own.parameters.values())[1:]) if self._task.pass_context else own

    def put(self, key: str, arguments: dict[str, object], headers: Mapping[str, str]) -> None:
        """Defer a job. If a job of this key still waits, it is there already."""
        job = self._task.configure(queueing_lock=f"{ENQUEUED}{key}")
        try:
            try:
                if (loop := self.home()) is not None:
                    awaited(job.defer_async(**arguments), SENT_WITHIN, loop)
                    return
            except CancelledError:  # the loop has ended meanwhile
                pass
            self._defer(job, arguments)
        except AlreadyEnqueued:
            pass

    def close(self) -> None:
        """Close the app, if this has opened it."""
        if self._is_opened:
            self._is_opened = False
            self.broker.close()

    def _defer(self, job: Any, arguments: dict[str, object]) -> None:
        if isinstance(self.broker.connector.get_sync_connector(), PsycopgConnector):  # it is open, in some event loop
            raise RuntimeError("its app is open in an event loop: call await once.enqueue_async(...) there")
        try:
            job.defer(**arguments)
        except AppNotOpen:
            self.broker.open()
            self._is_opened = True
            job.defer(**arguments)
